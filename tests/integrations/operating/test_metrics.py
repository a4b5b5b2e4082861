"""What an operator sees: metrics on vLLM's own endpoint, and a dashboard that asks only for those that are there."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from quire.integrations.vllm.reports.connector_counts import CAUSES, COUNTERS, GAUGES
from tests.integrations.test_vllm_contract import filled
from tests.museum.stand_ins import under_vllm

DOCS = Path(__file__).resolve().parents[3] / "docs"
METRIC = re.compile(r"\bvllm:\w+")
LABELS = ["model_name", "engine"]
OF_VLLM = {  # which vLLM 0.32 and 0.33 have themselves
    "vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total",
    "vllm:time_to_first_token_seconds_bucket",
}  # fmt: skip


def shown(patch: pytest.MonkeyPatch, *told: dict[str, Any]) -> dict[str, float]:
    """Samples of the endpoint after these steps."""
    module, registry = under_vllm(patch), CollectorRegistry()
    kinds = {kind: partial(kind, registry=registry) for kind in (Gauge, Counter)}
    metrics = module.QuireConnector.build_prom_metrics(None, kinds, LABELS, {0: ["model", "0"]})
    for one in told:
        metrics.observe(one)
    text = generate_latest(registry).decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert all(one.labels.keys() == set(LABELS) for one in samples)
    return {one.name: one.value for one in samples}


def test_counts_come_out_as_prometheus_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = filled()
    told = engine.side.counts.take()
    found = shown(monkeypatch, told, told, {})
    assert found["vllm:quire_stored_pages_total"] == 10  # counters add up
    assert found["vllm:quire_host_pages"] == 5 and found["vllm:quire_host_slots"] == 24  # gauges do not


def test_a_gauge_is_one_series_however_many_servers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    module, modes = under_vllm(monkeypatch), []

    def gauge(**told: Any) -> None:
        modes.append(told["multiprocess_mode"])

    kinds = {Gauge: gauge, Counter: partial(Counter, registry=CollectorRegistry())}
    module.QuireConnector.build_prom_metrics(None, kinds, LABELS, {})
    assert modes == ["mostrecent"] * len(GAUGES)  # by default each process would be a series of its own


def test_the_dashboard_asks_for_metrics_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    board = json.loads((DOCS / "grafana-vllm.json").read_text())
    every = dict.fromkeys(COUNTERS, 1.0), dict.fromkeys(GAUGES, 1.0)
    exposed = shown(monkeypatch, {"counters": every[0], "gauges": every[1]})
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    asked += [one["query"] for one in board["templating"]["list"]]
    names = {name for query in asked for name in METRIC.findall(query)}
    assert names - OF_VLLM <= exposed.keys() and names & OF_VLLM
    assert all('{model_name="$model"}' in query for query in asked[: -len(board["templating"]["list"])])
    seen = {name.removeprefix("vllm:quire_").removesuffix("_total") for name in names}
    rare = {f"missed_{cause}" for cause in CAUSES} | {"lookups", "loads", "loaded_pages", "stores", "hinted_pages"}
    assert (COUNTERS | GAUGES).keys() - seen - rare == {"disk_restored"}  # the rest is on it
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_page_names_metrics_that_are_there() -> None:
    page = (DOCS / "vllm.md").read_text()
    table = page[page.index("| metric |") : page.index("**Events.**")]
    first = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    names = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
    assert names and names <= (COUNTERS | GAUGES).keys()
