"""What a replay counts: identities that hold in every run, whatever is preempted, refused or lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import check
from quire.simulate.play.admission import AdmissionResult
from quire.simulate.play.tally import ReplayResult
from quire.simulate.play.trace_player import Player, play
from quire.simulate.setup.engine_pace import Pace
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.simulate.setup.shape import PRESETS
from quire.simulate.show import page, screen, story
from quire.trace.read.trace import Trace, read_trace
from tests.simulate.test_replay_page import check_alone
from tests.trace.test_replay_trace import GOOD, written

QUICK = Pace(prefill_tokens_per_second=5000, decode_ms=2)
STATES = "qwen3-next-like"


def ran(trace: Trace, settings: ReplaySettings) -> tuple[Player, ReplayResult]:
    """A whole replay, and that everything which must hold after any replay does."""
    player = Player(trace, settings, None)
    player.run()
    if player.cache.inner.usage().capacity < 500:
        check(player.cache.inner)
    result = player.tally.result(player.cache, 1.0)
    assert result.requests + result.refused == len(trace)
    assert len(player.tally._ttft) == result.requests
    assert player._admitted - result.preemptions == result.requests  # every admitted request finishes
    assert result.tokens_computed == result.prompt_tokens - result.tokens_saved + result.recomputed_tokens
    assert result.recomputed_tokens == 0 or result.preemptions > 0
    assert abs(sum(result.hit_rate_by_tier.values()) - result.hit_rate) < 1e-9
    assert result.hit_rate_of_trace <= result.hit_rate and min(result.hit_rate_by_tier.values()) >= 0
    assert not settings.two_phase or result.broken_promises == result.over_budget == 0
    return player, result


def some_asks(rng: np.random.Generator, count: int, gap_ms: int) -> list[dict[str, Any]]:
    """Shared beginnings of several lengths, private ends, answers of any length."""
    asks = []
    for number in range(count):
        parts = [["system", int(rng.choice([1, 40, 64]))], [f"user {rng.integers(4)}", int(rng.integers(1, 250))]]
        parts += [[None, int(rng.integers(1, 60))]] * int(rng.integers(2))
        asks.append({"time_ms": number * gap_ms, "prompt": parts, "output_tokens": int(rng.integers(0, 100))})
    return asks


def some_settings(rng: np.random.Generator) -> ReplaySettings:
    """Any shape, block size, memory and budget; often too small for comfort."""
    shape, size = str(rng.choice([*PRESETS])), int(rng.choice([8, 16, 64]))
    budget = [None, 128, 300][rng.integers(3)]
    chunk = [None, 64, budget][rng.integers(3)]
    tiers = [Memory("device", blocks=(int(rng.integers(300, 1100)) // size + 8,))]
    tiers += [Memory(f"colder {n}", blocks=(int(rng.integers(0, 800)) // size,)) for n in range(int(rng.integers(3)))]
    return ReplaySettings(
        shape=shape, tiers=tuple(tiers), block_size=size, batch=int(rng.choice([1, 4, 16])), token_budget=budget,
        max_chunk=chunk, two_phase=bool(rng.random() < 0.5), partial_reuse=bool(rng.random() < 0.6), pace=QUICK,
        decode_stride=int(rng.choice([1, 7, 16])), prefill_only=bool(rng.random() < 0.2),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore::quire.ConfigWarning")
def test_what_is_computed_is_prompts_less_hits_and_again_what_was_preempted(tmp_path: Path) -> None:
    again = refused = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        trace = read_trace(written(tmp_path, *some_asks(rng, 20, int(rng.choice([0, 15, 200])))))
        _, result = ran(trace, some_settings(rng))
        again += result.recomputed_tokens > 0
        refused += result.refused > 0
    assert again > 5 and refused > 2


@pytest.mark.parametrize("max_chunk", [None, 8192])
@pytest.mark.parametrize("shape", [*PRESETS])
def test_the_baseline_estimates_what_is_computed_where_nothing_is_lost(shape: str, max_chunk: int | None) -> None:
    """Its estimates are fair for every model: states end a step at their snapshots, and so do the estimates."""
    trace = read_trace("sample", limit=30)
    settings = ReplaySettings(
        shape=shape, tiers=(Memory("device", blocks=(40_000,)),), token_budget=None if max_chunk is None else 65536,
        max_chunk=max_chunk, two_phase=False, arrivals="at-once", prefill_only=True,
    )  # fmt: skip
    player = Player(trace, settings, None)
    seen: list[AdmissionResult] = []
    count = player.tally.step

    def step(now: float, admission: AdmissionResult) -> None:
        seen.append(admission)
        count(now, admission)

    player.tally.step = step  # type: ignore[method-assign]
    player.run()
    assert sum(len(outcome.admitted) for outcome in seen) == 30 == player.tally._counts["served"]
    for outcome in seen:
        assert outcome.lost == 0 and outcome.estimate == outcome.num_tokens > 0


def test_the_baseline_runs_models_with_states_under_a_budget_without_chunks() -> None:
    trace = read_trace("sample", limit=60)
    settings = ReplaySettings(shape=STATES, max_chunk=None, two_phase=False)
    _, one = ran(trace, settings)
    _, two = ran(trace, replace(settings, two_phase=True))
    assert one.requests == two.requests and one.refused == two.refused and one.over_budget == 0


def test_a_budget_that_a_state_outgrows_after_its_admission_is_kept_in_parts(tmp_path: Path) -> None:
    """The first step goes to a snapshot, 96 tokens; the next one, 4,096, is more than a step may compute."""
    first = {"time_ms": 0, "prompt": [["a", 4000]], "output_tokens": 1}
    long = {"time_ms": 9000, "prompt": [["a", 4000], ["b", 6000]], "output_tokens": 1}
    settings = ReplaySettings(
        shape=STATES, tiers=(Memory("device", blocks=(2000, 20)),), token_budget=4050, max_chunk=None, pace=QUICK
    )
    for two_phase in (True, False):
        _, result = ran(read_trace(written(tmp_path, first, long)), replace(settings, two_phase=two_phase))
        assert result.requests == 2 and result.over_budget == 0 and result.tokens_saved == 4000


def preempting(folder: Path) -> Trace:
    """Twelve requests of 190 prompt tokens that decode beside each other in too little memory."""
    return read_trace(
        written(folder, *({"time_ms": n * 10, "prompt": [[None, 190]], "output_tokens": 100} for n in range(12)))
    )


@pytest.mark.parametrize("two_phase", [True, False])
@pytest.mark.parametrize("blocks", [40, 48, 56])
def test_a_preempted_request_that_outgrew_the_budget_is_computed_in_parts(
    tmp_path: Path, blocks: int, two_phase: bool
) -> None:
    settings = ReplaySettings(
        tiers=(Memory("device", blocks=(blocks,)),), batch=8, token_budget=200, max_chunk=None, two_phase=two_phase,
        pace=QUICK,
    )  # fmt: skip
    _, result = ran(preempting(tmp_path), settings)
    assert result.requests == 12 and result.refused == 0 and result.over_budget == 0 and result.preemptions > 0
    assert result.generated_tokens == 1200 and result.prompt_tokens == 2280


@pytest.mark.parametrize("two_phase", [True, False])
def test_requests_that_can_never_fit_do_not_stand_before_preempted_ones(tmp_path: Path, two_phase: bool) -> None:
    """They come all the time and first, by priority; who ran before is neither refused with them nor starts over."""
    large = [{"time_ms": 1 + 2 * n, "prompt": [[None, 5000]], "output_tokens": 1, "priority": 1} for n in range(900)]
    asks = [{"time_ms": n * 10, "prompt": [[None, 190]], "output_tokens": 100} for n in range(12)]
    settings = ReplaySettings(
        tiers=(Memory("device", blocks=(48,)),), batch=8, token_budget=200, max_chunk=None, two_phase=two_phase,
        pace=QUICK,
    )  # fmt: skip
    _, result = ran(read_trace(written(tmp_path, *asks, *large)), settings)
    assert result.requests == 12 and result.refused == 900 and result.preemptions > 0 and result.restarts == 0


@pytest.mark.filterwarnings("ignore::quire.ConfigWarning")
@pytest.mark.parametrize("two_phase", [True, False])
def test_a_preempted_request_too_long_for_a_window_in_one_piece_starts_over(tmp_path: Path, two_phase: bool) -> None:
    """With its answer so far its pool of 20 blocks cannot take it, computed whole; its prompt alone it can."""
    ask = {"prompt": [[None, 64]], "output_tokens": 400}
    trace = read_trace(written(tmp_path, *({"time_ms": n * 10, **ask} for n in range(4))))
    settings = ReplaySettings(
        shape="gpt-oss-like", tiers=(Memory("device", blocks=(48, 20)),), token_budget=None, max_chunk=None,
        two_phase=two_phase, pace=QUICK,
    )  # fmt: skip
    _, result = ran(trace, settings)
    assert result.requests == 4 and result.restarts > 0 and result.generated_tokens == 1600


def test_hits_by_group_count_a_preempted_request_once(tmp_path: Path) -> None:
    """Nobody shares anything: what the resumed ones find of their own is no hit."""
    player, result = ran(preempting(tmp_path), ReplaySettings(tiers=(Memory("device", blocks=(48,)),), pace=QUICK))
    assert result.preemptions > 0 and player.cache.inner.stats().reused > 0
    assert result.hit_rate_by_group == {"full": 0.0} and result.tokens_saved == 0


@pytest.mark.filterwarnings("ignore::quire.ConfigWarning")
def test_hits_by_group_are_those_of_the_series(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, *some_asks(np.random.default_rng(3), 40, 15)))
    settings = ReplaySettings(shape="gemma-3-like", tiers=(Memory("device", blocks=(60,)),), pace=QUICK)
    player, result = ran(trace, settings)
    rows = np.array(player.tally.series._rows["admit"])[:, 2 + 1 :]
    assert result.preemptions > 0 and len(rows) == result.requests
    for nth, rate in enumerate(result.hit_rate_by_group.values()):
        assert rate == rows[:, 2 * nth].sum() / rows[:, 2 * nth + 1].sum() > 0


def test_requests_that_were_refused_are_no_reason_for_a_better_hit_rate(tmp_path: Path) -> None:
    """The long prompts do not fit into the smaller memory: by the requests that ran it looks better."""
    short = [{"time_ms": 1000 * n, "prompt": [["a", 64]], "output_tokens": 1} for n in range(3)]
    long = [{"time_ms": 9000 + 1000 * n, "prompt": [[None, 640]], "output_tokens": 1} for n in range(3)]
    trace = read_trace(written(tmp_path, *short, *long))
    small, large = (ran(trace, ReplaySettings(tiers=(Memory("device", blocks=(n,)),)))[1] for n in (20, 400))
    assert small.refused == 3 and large.refused == 0 and small.hit_rate > 3 * large.hit_rate
    assert small.hit_rate_of_trace == large.hit_rate_of_trace == large.hit_rate == 2 * 63 / (3 * 64 + 3 * 640)
    told = story.outcome(small.to_json())
    assert told[1].startswith("6.0 % of the trace's prompt tokens") and "count as missed" in told[1]
    assert "of the prompt tokens" in story.outcome(large.to_json())[1]
    names = [name for name, _ in story.facts(small.to_json())]
    assert names.index("hit rate, all prompt tokens of the trace") < names.index("hit rate, requests that ran")
    seen = check_alone(page.render(small.to_json()))
    assert seen.words[""].index("6.0 %") < seen.words[""].index("65.6 %")
    screen.show(small.to_json())


def test_a_trace_begins_with_its_first_request(tmp_path: Path) -> None:
    """Times since the epoch, and the tail of a longer trace, give what the same requests at 0 give."""
    gaps = [0, 130, 131.5, 900, 2400]
    results = []
    for begin in (0, 3_600_000, 1_763_200_000_123):
        trace = read_trace(written(tmp_path, *({**GOOD, "timestamp": begin + gap} for gap in gaps)))
        assert ReplaySettings().times(trace) == pytest.approx([gap / 1000 for gap in gaps], abs=1e-6)
        assert ReplaySettings(speed=2.0).times(trace)[-1] == pytest.approx(1.2, abs=1e-6)
        results.append(play(trace, ReplaySettings()).model)
    assert results[0] == results[1] == results[2] and results[0]["seconds"] < 3


def test_poisson_arrivals_have_the_mean_gap_of_the_trace(tmp_path: Path) -> None:
    lines = [{**GOOD, "timestamp": 10_000_000 + 40 * n} for n in range(4001)]
    times = ReplaySettings(arrivals="poisson").times(read_trace(written(tmp_path, *lines)))
    assert times[0] == 0 and times[-1] / 4000 == pytest.approx(0.04, rel=0.05)
    assert ReplaySettings(arrivals="poisson").times(read_trace(written(tmp_path, GOOD))) == [0.0]


def test_moves_take_time_while_only_decoding(tmp_path: Path) -> None:
    """A long answer pushes 18 pages of 2 MB down; over a link of 1 MB a second that is what takes the time."""
    asks = ({"time_ms": 0, "prompt": [["a", 320]], "output_tokens": 1},
            {"time_ms": 100, "prompt": [["b", 16]], "output_tokens": 300})  # fmt: skip
    trace = read_trace(written(tmp_path, *asks))
    settings = ReplaySettings(tiers=(Memory("device", blocks=(22,)), Memory("host", blocks=(40,))))
    fast, slow = (play(trace, replace(settings, pace=Pace(links=(link,)))) for link in (50e9, 1e6))
    assert fast.offloaded_bytes == slow.offloaded_bytes == 18 * 16 * 131_072
    assert slow.model["seconds"] > slow.offloaded_bytes / 1e6 > 10 * fast.model["seconds"]
    pace = Pace(1000, decode_ms=10, decode_ms_per_sequence=0, links=(100.0,))
    assert pace.decode(4, 2, [0, 20], [0, 0]) == pytest.approx(0.2 + 0.04)
    assert pace.decode(4, 2, [0, 0], [0, 20]) == pytest.approx(0.2)


def test_with_default_settings_the_two_ways_make_no_difference() -> None:
    """As docs/replay.md says first: one or two requests in a step leave nobody to be pushed out."""
    trace = read_trace("sample", limit=150)
    two, one = (play(trace, ReplaySettings(two_phase=way)).to_json() for way in (True, False))
    assert one["broken_promises"] == 0 and one["tokens_computed"] == two["tokens_computed"]
    assert story.gained(two, one) == "No difference."
    other = {**one, "broken_promises": 1, "worst_overshoot_tokens": 7}
    said = "Two-phase admission broke no promise, one at a time broke 1 promise (worst by 7 tokens). "
    assert story.gained(two, other) == f"{said}Two-phase computed as many prompt tokens."
    assert "worst by 0" not in story.gained(two, {**one, "tokens_computed": one["tokens_computed"] + 1})


def test_what_is_gained_is_what_was_not_computed() -> None:
    """Also where preemption made up for a better hit rate, or for more than it."""
    one = {"tokens_saved": 100, "tokens_computed": 900, "broken_promises": 3, "worst_overshoot_tokens": 5}
    two = {"tokens_saved": 150, "tokens_computed": 950, "broken_promises": 0, "worst_overshoot_tokens": 0}
    assert story.gained(two, one).endswith("Two-phase computed 50 more prompt tokens.")
    assert story.gained({**two, "tokens_computed": 850}, one).endswith("computed 50 fewer prompt tokens.")


def test_the_result_is_plain_json() -> None:
    result = play(read_trace("sample", limit=3), ReplaySettings()).to_json()
    assert json.loads(json.dumps(result)) == result and result["hit_rate_of_trace"] == result["hit_rate"]
