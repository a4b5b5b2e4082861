"""What no fleet can be below: it is said before any is played, and no fleet that is played is below it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.cli.simulate import plan_command
from quire.simulate.capacity.bounds import Bounds, find_bounds, new_tokens
from quire.simulate.capacity.capacity_plan import find_plan
from quire.simulate.capacity.fleet import Fleet, played
from quire.simulate.play.sweep import LocalExecutor, TraceSource
from quire.simulate.setup.engine_pace import Pace
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.trace.read.trace import Trace, TraceRequest, read_trace
from tests.effort import cases

from .test_capacity_plan import search, talks, words


def test_what_no_fleet_can_keep_is_said_before_any_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The p90 prompt has 2,000 new tokens, which take a quarter of a second."""
    source, page = talks(tmp_path), tmp_path / "page.html"
    plan = find_plan(search(source, 0.001, most_workers=3), executor=LocalExecutor())
    assert plan.chosen is None and plan.to_json()["chosen"] is None and plan.tried == ()
    assert plan.bounds == Bounds(2000 / 8000, 1)
    assert plan_command.main(words(source, "--ttft", "200ms", "--html", str(page))) == 1
    told = capsys.readouterr()
    assert told.err == "" and "the p90 prompt alone takes 0.25 s on an idle worker" in told.out
    assert "allow 0.25 s or more (--ttft), or give a faster engine" in told.out and "or memory do not help" in told.out
    assert "alone takes 0.25 s" in re.sub("<.*?>", "", page.read_text(encoding="utf-8"))
    assert plan_command.main(words(source, "--ttft", "200ms", "--json")) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["tried"] == [] and found["bounds"] == {"seconds": 0.25, "workers": 1}
    assert plan_command.main(words(source, "--ttft", "250ms", "--p", "50", "--most-workers", "64")) == 0


def test_no_first_token_comes_before_a_step_could_end(tmp_path: Path) -> None:
    """A prompt that is there already, and one of a single token: both take a turn of decoding."""
    prompts = [[["a", 1]], *[[["rules", 3200]]] * 8]
    lines = [{"time_ms": 5000 * at, "prompt": one, "output_tokens": 1} for at, one in enumerate(prompts)]
    path = tmp_path / "short.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    settings = ReplaySettings(block_size=64, pace=Pace(40_000))
    result = played(read_trace(path), Fleet(1, "exact", settings), (1, 50, 99))
    assert result.hit_rate > 0.8 and result.ttft(1) == result.ttft(50) == pytest.approx(0.01205)
    assert find_bounds(read_trace(path), settings, 1.0, 50) == Bounds(0.01205, 1)
    assert find_bounds(read_trace(path), settings, 1.0, 99.9).seconds > 0.07


def test_workers_that_are_too_few_for_what_is_new_are_not_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """32 prompts of 4,000 tokens at once, within one second: 29 of them take 14.5 s of work."""
    lines = [{"time_ms": 0, "prompt": [[f"one {at}", 4000]], "output_tokens": 2} for at in range(32)]
    path = tmp_path / "burst.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    source = TraceSource(str(path))
    assert plan_command.main(words(source, "--ttft", "1s", "--most-workers", "8")) == 1
    told = capsys.readouterr()
    assert told.err == "" and "it takes at least 14 workers to compute what is new" in told.out
    plan = find_plan(search(source, 1.0, most_workers=64), executor=LocalExecutor())
    assert plan.bounds.workers == 14 and plan.chosen is not None and plan.chosen.fleet.workers in range(14, 18)
    late = find_plan(search(source, 20.0, most_workers=64), executor=LocalExecutor())
    assert late.chosen is not None and late.chosen.fleet.workers == 1, "requests that may wait need no more"


def test_a_plan_that_finds_none_says_what_may_be_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_command.main(words(talks(tmp_path), "--ttft", "251ms", "--most-workers", "1")) == 1
    told = capsys.readouterr().out
    assert "No fleet of up to 1 worker keeps the" in told and "Sooner than 0.25 s no fleet can be" in told


def test_what_is_new_in_a_prompt_can_be_counted_by_hand() -> None:
    def ask(number: int, *parts: tuple[int, int], reuse: bool = True) -> TraceRequest:
        numbers, counts = (np.array(column, np.int64) for column in zip(*parts, strict=True))
        return TraceRequest(number, float(number), numbers, int(counts.sum()), 1, counts=counts, reuse=reuse)

    asked = [
        (ask(0, (1, 100), (2, 50)), 150),
        (ask(1, (1, 100), (2, 50)), 1),  # the last token is always computed
        (ask(2, (1, 100), (2, 70)), 20),  # a longer part begins as the shorter one
        (ask(3, (1, 80), (2, 50)), 50),  # the same part, behind another beginning
        (ask(4, (2, 50), (1, 100)), 150),
        (ask(5, (9, 10), (1, 100), reuse=False), 110),
        (ask(6, (9, 10), (1, 100)), 110),  # a request without reuse leaves nothing
        (ask(7, (1, 100), (2, 70), (3, 5)), 5),
    ]
    assert new_tokens(Trace("by hand", [one for one, _ in asked])).tolist() == [count for _, count in asked]


TALKS = st.lists(  # which talk goes on, how many tokens it gets, when, and whether it may reuse
    st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(0, 30), st.booleans()), min_size=1, max_size=12
)


@given(TALKS, st.sampled_from([50.0, 90.0, 99.0]), st.sampled_from([1, 2]), st.sampled_from([8, 64]))
@pytest.mark.long
@settings(max_examples=cases(25, 60), deadline=None)
def test_no_fleet_is_below_the_bounds(
    drawn: list[tuple[int, int, int, bool]], percent: float, workers: int, blocks: int
) -> None:
    talked: dict[int, list[tuple[int, int]]] = {}
    requests, time = [], 0.0
    for number, (talk, size, pause, reuse) in enumerate(drawn):
        talked.setdefault(talk, []).append((100 * talk + len(talked.get(talk, [])), size))
        parts, counts = (np.array(column, np.int64) for column in zip(*talked[talk][-3:], strict=True))
        time += pause / 1000
        length = int(counts.sum())
        requests.append(TraceRequest(number, time, parts, length, 2, counts=counts, reuse=reuse))
    trace = Trace("drawn", requests)
    pace = Pace(prefill_tokens_per_second=2000, decode_ms=0.1)
    memory = (Memory("device", blocks=(48,)), Memory("host", blocks=(blocks,)))
    worker = ReplaySettings(block_size=4, tiers=memory, pace=pace)
    result = played(trace, Fleet(workers, "exact", worker), (percent,))
    assert result.refused == 0
    reached = result.ttft(percent) + 1e-6
    bounds = find_bounds(trace, worker, reached, percent)
    assert bounds.seconds <= reached and bounds.workers <= workers
