"""Metrics: what they count is what happened, their labels are bounded, and the dashboard asks for nothing else."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire.engine import Sampling
from quire.engine.runner.engine import Engine
from quire.serve import ApiKeys
from quire.trace.read.trace import read_trace

from ..waits import until
from .rig import NAME, Serving, serving

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "deploy.md"
METRIC = re.compile(r"\b((?:vllm|quire):\w+)")
LABEL = re.compile(r"(?:by \(|\{)([^)}]*)[)}]")


def samples(server: Serving) -> list[Any]:
    """As Prometheus reads them."""
    got = server.get("/metrics")
    assert got.status == 200 and got.headers["content-type"].startswith("text/plain; version=0.0.4")
    return [one for family in text_string_to_metric_families(got.data.decode()) for one in family.samples]


def test_text_that_was_here_behind_another_beginning_is_counted_apart_and_recorded(tmp_path: Path) -> None:
    rules = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz ", k=300))
    with serving(sizes={"receipt_chunks": 1 << 14}) as server:
        recorder = server.llm.record(tmp_path / "day.jsonl")
        for time in ("09:00", "17:45"):
            assert server.complete(prompt=f"{time} {rules}", max_tokens=2, ignore_eos=True).status == 200
        server.until_idle()
        recorder.close()
        again = server.metric("quire:missed_tokens_total", cause="interrupted")
        assert 200 < again <= len(rules)
        assert 300 < server.metric("quire:missed_tokens_total", cause="new") < 400
    first, second = (request.interrupted for request in read_trace(tmp_path / "day.jsonl"))
    assert first is None and second is not None and second.equal_after > 200


def test_they_count_what_happened() -> None:
    with serving(sizes={"host_pages": 20}) as server:
        prompt = "A text of some blocks that is asked for twice, so that it is found."
        for _ in range(2):
            assert server.complete(prompt=prompt, max_tokens=3, ignore_eos=True).status == 200
        assert server.complete(prompt=prompt, max_tokens=2, n=2, stream=True, ignore_eos=True).status == 200
        server.until_idle()
        reused = server.metric("vllm:prompt_tokens_cached_total")
        assert server.metric("vllm:prompt_tokens_total") == 3 * len(prompt)
        assert reused >= 2 * (len(prompt) - 8) and reused == server.metric("vllm:prefix_cache_hits_total")
        assert server.metric("quire:hit_tokens_total", tier="device", group="full") == reused
        assert server.metric("quire:missed_tokens_total") == 3 * len(prompt) - reused
        assert server.metric("quire:missed_tokens_total", cause="new") > 0
        assert server.metric("quire:promised_tokens_total") == 3 * len(prompt) - reused
        assert server.metric("vllm:generation_tokens_total") == 10
        assert server.metric("vllm:request_success_total", finished_reason="length") == 4
        for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"):
            assert server.metric(f"vllm:{name}_seconds_count") == 3
        assert server.metric("vllm:inter_token_latency_seconds_count") == 2, "of streams: two answers, one gap each"
        assert server.metric("vllm:request_params_n_sum") == 4
        stats = server.llm.loop.engine.stats
        assert server.metric("quire:steps_total") == stats.num_steps > 0
        assert server.metric("quire:computed_tokens_total") == stats.num_tokens
        assert server.metric("quire:run_computed_tokens_total") == stats.num_tokens
        slots = {state: server.metric("quire:pages", tier="device", state=state) for state in ("empty", "idle", "held")}
        assert sum(slots.values()) == 300 and slots["held"] == 0 and slots["idle"] > 0
        assert server.metric("quire:pages", tier="host") == 20
        assert server.metric("quire:http_requests_total", endpoint="/v1/completions", code="200") == 3
        assert server.metric("quire:engine_up") == 1 and server.metric("quire:runs") == 0
        assert server.metric("quire:places") == 64 and server.metric("quire:http_requests_in_progress") == 0


def test_an_answer_that_nobody_waits_for_is_one_that_was_ended(server: Serving) -> None:
    with server.wire() as wire:
        body = {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True}
        wire.ask("/v1/completions", body)
        wire.read_until(b"text")
        assert server.metric("quire:http_requests_in_progress") == 1
    until(lambda: server.metric("vllm:request_success_total", finished_reason="abort") == 1)


def test_the_last_hour_is_told_when_it_was_judged() -> None:
    with serving() as server:
        assert not [one for one in samples(server) if one.name.startswith("quire:regret_")], "nothing has come"
        prompt = "A text of some blocks that is asked for twice, so that it is found."
        for _ in range(2):
            server.complete(prompt=prompt, max_tokens=2)
        server.until_idle()
        report = server.llm.regret().report()
        assert report.requests == 2 and report.hit_rate > 0.3
        assert server.metric("quire:regret_hit_rate") == pytest.approx(report.hit_rate)
        assert server.metric("quire:regret_optimum") == pytest.approx(report.optimum)
        assert server.metric("quire:regret_order_hit_rate", order="adaptive") == pytest.approx(
            report.orders["adaptive"]
        )
        assert server.metric("quire:regret_tier_hit_rate", tier="device") == pytest.approx(report.tiers[0].hit_rate)
        assert server.metric("quire:regret_tier_gain_per_gb", tier="device") == report.tiers[0].per_gb


def test_pages_that_move_are_counted() -> None:
    with serving(sizes={"device_pages": 30, "host_pages": 60, "max_length": 200, "max_sequences": 2}) as server:
        for place in (0, 1, 2, 0):
            server.complete(prompt=chr(65 + place) * 150, max_tokens=2)
        assert server.metric("quire:moved_bytes_total", source="device", target="host") > 0
        assert server.metric("quire:moved_bytes_total", source="host", target="device") > 0
        assert server.metric("quire:pages_by_kind_total", kind="offloaded") > 0
        assert server.metric("quire:hit_tokens_total", tier="host") > 0
        assert server.metric("quire:moves_total") > 0 and server.metric("quire:failed_moves_total") == 0


def test_pages_that_prompts_share_while_they_are_computed_are_counted() -> None:
    """Two equal prompts of one step."""
    with serving() as server:

        def both(engine: Engine) -> None:
            for _ in range(2):
                engine.submit(np.arange(40, dtype=np.int32), Sampling(max_tokens=2, temperature=0.0))

        server.llm.loop.call(both)
        server.until_idle()
        assert server.metric("quire:pages_by_kind_total", kind="reused_pending") == 4
        assert server.metric("quire:pages_by_kind_total", kind="reused_full") == 4


def test_no_client_can_make_more_of_them(server: Serving) -> None:
    """Nothing that a client chooses is a label."""
    server.chat()
    before = {(one.name, *sorted(one.labels.items())) for one in samples(server)}
    for place in range(5):
        server.chat(user=f"u{place}", request_id=f"r{place}", cache_salt=f"s{place}", model=NAME)
        server.get(f"/nowhere/{place}")
        server.chat(model=f"m{place}")
        server.complete(prompt=f"p{place}", seed=place, max_tokens=1 + place)
    after = {(one.name, *sorted(one.labels.items())) for one in samples(server)}
    assert not any(f"{kind}{place}" in str(one) for one in after for kind in "ursmp" for place in range(5))
    server.chat(model="x")
    again = {(one.name, *sorted(one.labels.items())) for one in samples(server)}
    assert after == again and len(after) < 800 and len(after - before) < 20


ALICE, BOB, OPERATOR = (f"sk-{name}-with-enough-characters" for name in ("alice", "bob", "operator"))


def numbers(server: Serving, key: str | None) -> dict[str, float]:
    """What a key sees, summed over labels."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    got = server.get("/metrics", **headers)
    assert got.status == 200, got
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(got.data.decode()):
        for one in family.samples:
            found[one.name] = found.get(one.name, 0.0) + one.value
    return found


def test_a_tenant_sees_its_own_numbers_and_the_operator_all() -> None:
    keys = ApiKeys([f"alice {ALICE}", f"bob {BOB}"])
    with serving(keys=keys, viewer_key=OPERATOR) as server:
        body = {"prompt": "Once upon a time", "max_tokens": 3, "ignore_eos": True}
        for key, stream in ((ALICE, False), (ALICE, True), (BOB, False)):
            got = server.post("/v1/completions", {**body, "stream": stream}, authorization=f"Bearer {key}")
            assert got.status == 200
        assert server.post("/v1/completions", {"prompt": 1.5}, authorization=f"Bearer {ALICE}").status == 400
        server.until_idle()
        alice, bob, everything = (numbers(server, key) for key in (ALICE, BOB, OPERATOR))
        assert alice["vllm:generation_tokens_total"] == 6 and bob["vllm:generation_tokens_total"] == 3
        assert everything["vllm:generation_tokens_total"] == 9
        for name in (
            "vllm:prompt_tokens_total",
            "vllm:request_success_total",
            "vllm:e2e_request_latency_seconds_count",
        ):
            assert alice[name] == 2 * bob[name] > 0 and everything[name] == 3 * bob[name]
        assert alice["quire:hit_tokens_total"] > 0 and "quire:hit_tokens_total" not in bob, "they share no pages"
        assert (
            alice["vllm:inter_token_latency_seconds_count"] == 2 and not bob["vllm:inter_token_latency_seconds_count"]
        )
        assert alice["quire:http_requests_total"] == 3, "and this one, which is not over"
        assert alice["quire:http_requests_in_progress"] == bob["quire:http_requests_in_progress"] == 1
        for name in ("quire:pages", "quire:runs", "quire:steps_total", "vllm:kv_cache_usage_perc", "quire:engine_up"):
            assert name in everything and name not in alice, "of all together"
        assert server.get("/metrics").status == 401
        assert server.get("/v1/models", authorization=f"Bearer {OPERATOR}").status == 401, "it is no API key"


def expressions() -> list[str]:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


def test_the_dashboard_chooses_among_models() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert METRIC.findall(board["templating"]["list"][1]["query"]) == ["quire:engine_up"]


def test_the_dashboard_names_labels_that_there_are(server: Serving) -> None:
    server.complete(stream=True)
    labels: dict[str, set[str]] = {}
    for one in samples(server):
        labels.setdefault(one.name, set()).update(one.labels)
    for expression in expressions():
        for name in METRIC.findall(expression):
            wanted = set(re.findall(r"by \(([^)]*)\)", expression))
            asked = {label.strip() for group in wanted for label in group.split(",")}
            asked |= set(re.findall(r"(\w+)!?=", expression))
            if name in labels:
                assert asked <= labels[name], expression
