"""A server with a disk, a store that machines share, or a peer for its prompts: reuse, and metrics that tell of it."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main as cli
from quire.engine import LLM, DiskConfig, EngineConfig
from quire.serve.metrics.metrics import Metrics
from quire.tiers.shared import SharedConfig

from ..waits import PATIENCE, until
from .rig import NAME, SIZES, Serving, serving, tiny_model
from .test_metrics import PAGE, expressions

pytest.importorskip("xxhash")

PROMPT = "A text of a few blocks that another process has computed before, or another machine."
MORE = {"host_pages": 60}
METRIC = re.compile(r"\b((?:vllm|quire):\w+)")


def cached(server: Serving) -> int:
    got = server.complete(prompt=PROMPT, max_tokens=2)
    assert got.status == 200
    found: int = got.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_what_was_computed_is_there_after_a_restart(tmp_path: Path) -> None:
    sizes, disk = {**MORE, "disk_pages": 200}, DiskConfig(tmp_path, wait=PATIENCE, flush=PATIENCE)
    with serving(sizes=sizes, outside={"disk": disk}) as first:
        assert cached(first) == 0
        assert first.metric("quire:disk_up") == 1 and first.metric("quire:disk_pages_total", kind="restored") == 0
    with serving(sizes=sizes, outside={"disk": disk}) as again:
        restored = again.metric("quire:disk_pages_total", kind="restored")
        assert restored == again.metric("quire:pages", tier="disk", state="idle") >= len(PROMPT) // 8
        assert cached(again) >= len(PROMPT) // 8 * 8 - 8
        up = again.metric("quire:disk_pages_total", kind="brought_up")
        assert up == again.metric("quire:pages_by_kind_total", kind="prefetched") >= len(PROMPT) // 8 - 1
        page_bytes = again.llm.loop.engine.cache.config.groups[0].page_bytes
        assert again.metric("quire:disk_bytes_total", direction="up") == up * page_bytes
        assert again.metric("quire:hit_tokens_total", tier="host") > 0
        assert again.metric("quire:disk_stalled") == 0 and again.metric("quire:disk_pages_total", kind="failed") == 0


def test_what_one_server_has_computed_another_reuses(tmp_path: Path) -> None:
    store = SharedConfig(tmp_path, wait=PATIENCE)
    with serving(sizes=MORE, outside={"shared": store}) as first:
        assert cached(first) == 0
        assert first.llm.shared is not None and first.llm.shared.wait_until_idle(PATIENCE)
        sent = first.metric("quire:store_pages_total", direction="out")
        assert sent >= len(PROMPT) // 8 and first.metric("quire:store_bytes_total", direction="out") > 0
        assert first.metric("quire:store_missed_pages_total", direction="in", reason="absent") > 0
        assert first.metric("quire:store_calls_total", verb="put") > 0
        assert first.metric("quire:store_call_seconds_total", verb="put") > 0
    with serving(sizes=MORE, outside={"shared": store}) as second:
        assert cached(second) >= len(PROMPT) // 8 * 8 - 8
        came = second.metric("quire:store_pages_total", direction="in")
        assert came >= len(PROMPT) // 8 - 1 and second.metric("quire:store_pages_total", direction="out") < sent
        page_bytes = second.llm.loop.engine.cache.config.groups[0].page_bytes
        assert second.metric("quire:store_bytes_total", direction="in") == came * page_bytes
        assert second.metric("quire:store_up") == 1 and second.metric("quire:store_openings_total") == 0


def test_a_store_that_does_not_answer_costs_reuse_alone() -> None:
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
    with serving(sizes=MORE, outside={"shared": address}) as server:
        until(lambda: cached(server) > 0 and server.metric("quire:store_up") == 0)
        assert server.metric("quire:store_missed_pages_total", reason="unreachable") > 0
        assert server.metric("quire:store_openings_total") >= 1


def test_prompts_that_a_peer_computes_are_counted() -> None:
    pytest.importorskip("msgspec")
    from quire.engine import PrefillPeer

    secret = b"sixteen bytes or more"
    with LLM(tiny_model(), config=EngineConfig(**SIZES)) as prefill:
        peer = PrefillPeer(prefill.serve_prompts("127.0.0.1:0", secret), secret)
        with serving(outside={"prefill_peer": peer}) as server:
            plain = server.complete(prompt=PROMPT, max_tokens=5).json["choices"][0]["text"]
            assert server.metric("quire:transfer_bytes_total") > 0
            assert server.metric("quire:transfer_fallbacks_total") == 0
            until(lambda: server.metric("quire:transfers_open") == 0)
            prefill.close()
            other = server.complete(prompt="B" + PROMPT, max_tokens=5)
            assert other.status == 200 and server.metric("quire:transfer_fallbacks_total") == 1
    with serving() as alone:
        assert alone.complete(prompt=PROMPT, max_tokens=5).json["choices"][0]["text"] == plain


def families(tmp_path: Path) -> dict[str, set[str]]:
    """Every metric that a server can have, with its labels; a counter as it is asked for."""
    pytest.importorskip("zmq")
    pytest.importorskip("msgspec")
    from quire.engine import PrefillPeer

    secret = b"sixteen bytes or more"
    nobody = PrefillPeer("127.0.0.1:9", secret)
    outside: tuple[dict[str, Any], ...] = (
        {"publish": "tcp://127.0.0.1:*", "shared": tmp_path / "store", "prefill_peer": nobody},
        {"disk": tmp_path / "disk"},
    )
    found: dict[str, set[str]] = {}
    for one in outside:
        sizes = SIZES | MORE | ({"disk_pages": 50} if "disk" in one else {})
        with LLM(tiny_model(), config=EngineConfig(**sizes), **one) as llm:
            for family in Metrics(llm, NAME, 400).registry.collect():
                suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
                for suffix in suffixes.get(family.type, ("",)):
                    labels = {label for sample in family.samples for label in sample.labels}
                    found.setdefault(f"{family.name}{suffix}", set()).update(labels)
    return found


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    return families(tmp_path_factory.mktemp("outside"))


def test_the_dashboard_asks_for_what_there_is(known: dict[str, set[str]]) -> None:
    assert len(expressions()) > 55
    for expression in expressions():
        asked = METRIC.findall(expression)
        assert asked and set(asked) <= known.keys(), expression


def test_the_dashboard_has_what_lies_outside(known: dict[str, set[str]]) -> None:
    asked = {name for expression in expressions() for name in METRIC.findall(expression)}
    outside = {name for name in known if re.match(r"quire:(disk|store|transfer)", name)}
    assert len(outside) > 12 and outside - asked == {"quire:disk_compactions_total", "quire:store_openings_total"}


def test_every_metric_has_its_row_in_the_docs(known: dict[str, set[str]]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in known}
    assert len(names) > 60 and not [name for name in names if f"`{name}" not in page]


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--disk", "x"], "nothing says how much of it"),
        (["--disk-bytes", "1GB"], "nothing says where"),
        (["--disk", "x", "--disk-bytes", "much"], "disk"),
        (["--shared", "carrier-pigeon://coop"], "carrier-pigeon"),
        (["--prefill-peer", "127.0.0.1:5710"], "no secret was given"),
        (["--record-key", "k"], "nothing is recorded"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(
    words: list[str], fact: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUIRE_SECRET", raising=False)
    assert cli.main(["serve", "--port", "0", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("quire serve: ") and fact in told, "and nothing was loaded"
