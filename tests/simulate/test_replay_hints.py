"""What a replay says of each request: whose it is, when it comes back; and what computing prompts cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import CacheConfig, InputError, Sequence, TierConfig
from quire.cli.main import main
from quire.simulate import Memory, ReplaySettings, Report, read_trace, replay, sweep
from quire.simulate.play.compute_cost import cost_of
from quire.simulate.play.trace_player import Player
from quire.simulate.setup.replay_settings import USUAL_DOUBLE
from quire.trace.read.trace import Trace

SMALL = ReplaySettings(tiers=(Memory("device", blocks=(64,)),), prefill_only=True, eviction="lru")


def asked(ms: float, *parts: str, **more: Any) -> dict[str, Any]:
    return {"time_ms": ms, "prompt": [[part, 32] for part in parts], "output_tokens": 1, **more}


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


LINES = (
    asked(0, "a", session="ann", finish="tool_calls"),
    asked(100, "b", session="bob", finish="stop"),
    asked(30_000, "a", "a2", session="ann", finish="stop"),
    asked(100_000, "b", "b2", session="bob", finish="length"),
    asked(100_500, "c"),
)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return read_trace(write(tmp_path / "t.jsonl", *LINES))


class Ends:
    """Hears of sequences as they end."""

    def __init__(self) -> None:
        self.heard: list[tuple[str | None, str | None]] = []

    def admitted(self, sequences: Any) -> None:
        pass

    def ending(self, sequence: Sequence, store: bool) -> None:
        self.heard.append((sequence.request.session, sequence.back))


def said(trace: Trace, **settings: Any) -> list[tuple[str | None, str | None]]:
    """What a cache is told at the end of each request."""
    player, ends = Player(trace, replace(SMALL, **settings), None), Ends()
    player.cache.inner._watchers = (ends,)
    player.run()
    return ends.heard


def test_finish_reasons_become_hints(trace: Trace) -> None:
    assert said(trace) == [(None, None)] * 5
    assert said(trace, hints="finish") == [
        ("ann", "soon"), ("bob", "later"), ("ann", "later"), ("bob", None), (None, None)
    ]  # fmt: skip


def test_what_was_said_counts_before_how_it_ended(tmp_path: Path) -> None:
    lines = [asked(0, "a", finish="stop", back="never"), asked(1, "b", back="soon"), asked(2, "c", finish="length")]
    trace = read_trace(write(tmp_path / "t.jsonl", *lines))
    assert [back for _, back in said(trace, hints="finish")] == ["never", "soon", None]
    assert [back for _, back in said(trace)] == [None] * 3


def test_exact_hints_know_the_future_of_a_session(trace: Trace) -> None:
    assert said(trace, hints="exact") == [
        ("ann", "soon"), ("bob", "later"), ("ann", "never"), ("bob", "never"), (None, "never")
    ]  # fmt: skip
    late = [replace(ask, time=ask.time + 3600) if ask.number else ask for ask in trace]
    assert said(Trace("t", late), hints="exact")[1:3] == [("bob", "later"), ("ann", "never")]
    near = [replace(ask, session="bob") for ask in late[3:]]
    again = Trace("t", [late[0], *(replace(ask, number=1 + nth) for nth, ask in enumerate(near))])
    assert said(again, hints="exact")[1] == ("bob", "soon"), "a minute after its end, not of the trace"
    fast = said(trace, hints="exact", speed=2.0)
    assert fast[1] == ("bob", "soon"), "a minute of the replay's own clock"


def test_without_sessions_half_of_a_prompt_tells_what_comes_back(tmp_path: Path) -> None:
    lines = (
        asked(0, "s", "x", "y", "z"),  # comes back as far as y: soon
        asked(1, "s", "p", "q"),  # only the system prompt comes back: never
        asked(2, "s", "x", "y", "v"),
        asked(3, "n", "x", "y"),  # the same parts behind another one: never
    )
    assert [back for _, back in said(read_trace(write(tmp_path / "t", *lines)), hints="exact")] == [
        "soon", "never", "never", "never"
    ]  # fmt: skip
    hashed = [{"timestamp": n, "input_length": 1500, "output_length": 1, "hash_ids": ids}
              for n, ids in enumerate(([1, 2, 3], [1, 4, 5], [1, 2, 6]))]  # fmt: skip
    roomy = {"tiers": (Memory("device", blocks=(500,)),), "hints": "exact"}
    found = said(read_trace(write(tmp_path / "h", *hashed)), **roomy)
    assert [back for _, back in found] == ["soon", "never", "never"]


def test_the_report_counts_hints_and_costs(tmp_path: Path, trace: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    report: Report = replay(trace, ReplaySettings(hints="finish"))
    assert report.hints == {"later": 2, "none": 2, "soon": 1} and replay(trace).hints == {}
    whole = [32, 32, 64, 64, 32]
    found = [0, 0, 32, 32, 0]
    assert report.compute_cost == pytest.approx(sum(map(cost_of, found, whole, [30_000] * 5)), abs=0.1)
    assert main(["replay", str(tmp_path / "t.jsonl"), "--hints", "exact"]) == 0
    told = capsys.readouterr().out
    assert "Hints when requests ended: 1 soon, 1 later, 3 never; 0 without." in told
    assert "cost of computing a prompt" in told
    with pytest.raises(InputError, match="hints 'maybe'"):
        ReplaySettings(hints="maybe")  # type: ignore[arg-type]


def test_the_second_half_is_counted_by_itself(trace: Trace) -> None:
    result = replay(trace, SMALL).result
    assert result.hit_rate_second_half == (32 + 32) / (64 + 64 + 32), "of the last three, two had been there by half"
    assert result.hit_rate == 64 / 224


def test_a_deep_token_costs_more() -> None:
    assert cost_of(0, 0, 9) == 0 and cost_of(5, 5, 9) == 0
    assert cost_of(7_000, 7_001, 7_000) == pytest.approx(2, rel=1e-3), "attention costs as much as the rest there"
    assert cost_of(0, 100, 70) + cost_of(100, 1000, 70) == pytest.approx(cost_of(0, 1000, 70))


def test_what_prompts_cost_is_counted_by_the_models_own_number(tmp_path: Path, trace: Trace) -> None:
    steep = replace(SMALL, compute_doubles_at=10, eviction_cost="compute", eviction="adaptive")
    cost, usual = (replay(trace, settings).compute_cost for settings in (steep, SMALL))
    assert steep.config(trace).compute_doubles_at == 10 and cost > 2 * usual
    assert CacheConfig((TierConfig("device", 1),)).compute_doubles_at == USUAL_DOUBLE == SMALL.compute_doubles_at
    assert steep.to_json()["compute_doubles_at"] == 10 and "compute_doubles_at" not in SMALL.to_json()
    words = ["replay", str(write(tmp_path / "u.jsonl", *LINES)), "--compute-doubles-at"]
    assert main([*words, "0"]) == 2 and main([*words, "10"]) == 0


def test_a_sweep_says_what_hints_bring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "t.jsonl", *LINES))
    found = sweep(path, [SMALL, replace(SMALL, hints="exact")], workers=1)
    assert [point.settings.to_json().get("hints") for point in found.points] == [None, "exact"]
    words = [path, "--device", "40GB", "--host", "0", "--eviction", "lru", "--hints", "none,finish,exact"]
    assert main(["sweep", *words, "--workers", "1"]) == 0
    told = capsys.readouterr().out
    assert "Sessions and finish reasons as hints: changes no hit rate" in told
    assert "Hints that know the trace's future: changes no hit rate" in told
    assert [row.split()[4] for row in told.splitlines() if "40 GB " in row] == ["none", "finish", "exact"]
