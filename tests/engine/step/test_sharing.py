"""Sharing: a prompt uses whole blocks that a step is still computing for another, and waits only for what comes behind.

Whole random worlds of it are in `tests.engine.test_exact`; here is one of each case, and what goes wrong meanwhile.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import Span  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.setup.submission import TokenPrompt  # noqa: E402
from quire.engine.step.runs.branch import Run  # noqa: E402
from quire.engine.step.runs.step_work import Turn, Work  # noqa: E402

from ..memory.test_connector import Shelf  # noqa: E402
from ..runner.test_engine import POISON, poisoned  # noqa: E402
from ..runner.test_steps_in_flight import Fault, fail_once  # noqa: E402
from ..steps import assert_exact, finish, model_of, open_engine, plain, step, words  # noqa: E402

SHARERS = ("llama", "gemma3")
LENGTH, ANSWER = 60, 4
SHARED = LENGTH // 8 * 8  # whole blocks
ALL = LENGTH + ANSWER - 1


def together(name: str, count: int, **settings: Any) -> tuple[Engine, list[Run], int]:
    """Equal prompts that came together, at their end; and how many steps they took."""
    engine = open_engine(name, 100, **{"max_num_tokens": 200} | settings)
    runs = [engine.submit(words(0, LENGTH), plain(ANSWER)) for _ in range(count)]
    steps = finish(engine)
    assert_exact(name, runs)
    engine.close()
    return engine, runs, steps


def pending(engine: Engine) -> int:
    return engine.cache.stats().reused_pending


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", SHARERS)
def test_equal_prompts_of_one_step_compute_the_common_blocks_once(name: str, overlap: bool) -> None:
    engine, runs, steps = together(name, 3, overlap=overlap)
    assert [run.computed for run in runs] == [ALL, ALL - SHARED, ALL - SHARED]
    assert [run.reused for run in runs] == [0, SHARED, SHARED] and engine.scheduler.num_waits == 0
    alone, same, more = together(name, 3, overlap=overlap, share_pending=False)
    assert [run.computed for run in same] == [run.computed for run in runs] and alone.scheduler.num_waits
    assert steps < more and pending(engine) and not pending(alone)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [16, 24])
def test_who_gains_behind_this_step_waits(chunk: int, overlap: bool) -> None:
    """A prompt in parts: nobody computes beside it what its next part brings."""
    engine, runs, steps = together("llama", 3, max_chunk=chunk, overlap=overlap)
    assert [run.computed for run in runs] == [ALL, ALL - SHARED, ALL - SHARED] and engine.scheduler.num_waits
    _, _, more = together("llama", 3, max_chunk=chunk, overlap=overlap, share_pending=False)
    assert steps <= more - overlap, "what is in flight need not be committed"


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", SHARERS)
def test_a_part_of_a_prompt_under_way_is_used_by_its_step(name: str, overlap: bool) -> None:
    """Its last part is computed beside the tokens of its own that each newcomer has."""
    engine = open_engine(name, 100, max_num_tokens=200, max_chunk=40, overlap=overlap)
    runs = [engine.submit(words(0, LENGTH), plain(ANSWER))]
    step(engine)
    runs += [engine.submit((*words(0, LENGTH), *words(90 + nth, nth)), plain(ANSWER)) for nth in range(2)]
    report = step(engine)
    assert report is not None and (report.num_admitted, engine.scheduler.num_waits) == (2, 0)
    assert report.num_tokens == LENGTH - 40 + 2 * (LENGTH - SHARED) + 1
    finish(engine)
    assert [run.reused for run in runs] == [0, SHARED, SHARED] and pending(engine)
    assert_exact(name, runs)


def test_who_has_its_turn_before_a_prompt_under_way_counts_on_nothing_of_it() -> None:
    """Two of an urgent tenant go first; what the other is left with is not known before, so the second one waits."""
    engine = open_engine("llama", 100, max_num_tokens=32, max_chunk=24, granted={"urgent": -1})
    slow = engine.submit(words(0, LENGTH), plain(ANSWER))
    step(engine)
    urgent = [
        engine.submit(words(start, length), plain(ANSWER), tenant="urgent") for start, length in ((150, 20), (0, 49))
    ]
    report = step(engine)
    assert report is not None and (report.num_admitted, engine.scheduler.num_waits) == (1, 1)
    finish(engine)
    assert urgent[1].reused == 48
    assert_exact("llama", [slow, *urgent])


def test_who_is_shared_with_in_a_step_does_not_give_way_in_it() -> None:
    """Its pages cannot go before the step is launched: the cache would refuse it. In the next step it may."""
    engine = open_engine("llama", 100, max_num_tokens=200, max_chunk=24)
    greedy = [engine.submit(words(60 * nth, LENGTH), plain(ANSWER), tenant="greedy") for nth in range(2)]
    step(engine)
    small = engine.submit(words(0, LENGTH), plain(ANSWER), tenant="small")
    scheduler, turn = engine.scheduler, Turn()
    turn.works = {branch: Work(branch, Span(24, 48), 0) for branch in scheduler.prompts}
    for shares, gave_way in ((True, 0), (False, 1)):
        turn.shares = shares
        assert scheduler._incoming._free_seat(turn, scheduler.waiting[-1]) is bool(gave_way)
        assert scheduler.num_preemptions == gave_way
    finish(engine)
    assert_exact("llama", [*greedy, small])


@pytest.mark.parametrize("overlap", [False, True])
def test_a_part_that_raises_sets_back_who_uses_it(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine("llama", 100, max_num_tokens=200, max_chunk=40, overlap=overlap)
    runs = [engine.submit(words(0, LENGTH), plain(ANSWER))]
    step(engine)
    runs += [engine.submit(words(0, LENGTH), plain(ANSWER)) for _ in range(2)]
    fail_once(engine, monkeypatch)
    with pytest.raises(Fault):
        engine.step()
    finish(engine)
    assert pending(engine)
    assert_exact("llama", runs)


def test_where_nobody_may_wait_nothing_is_shared() -> None:
    """Not all that a step computes can be shared: some would have to wait."""
    engine, runs, _ = together("llama", 2, wait_for_reuse=False)
    assert [run.computed for run in runs] == [ALL, ALL] and not engine.cache.config.share_pending


def test_prompts_with_uncut_tokens_are_waited_for() -> None:
    """Of one a step may compute a single token, up to such tokens."""
    engine = open_engine("llama", 100)
    prompt = TokenPrompt(words(0, LENGTH), [Span(20, 30)])
    runs = [engine.submit(prompt, plain(ANSWER)) for _ in range(2)]
    finish(engine)
    assert engine.scheduler.num_waits and not pending(engine) and runs[1].reused == SHARED
    assert_exact("llama", runs)


def test_only_what_a_step_reaches_is_shared() -> None:
    """Of 40 tokens in common the first part of the other computes 24: it waits for the rest, others do not."""
    engine = open_engine("llama", 100, max_num_tokens=200, max_chunk=24)
    prompts = [words(0, 60), (*words(0, 40), *words(90, 9)), (*words(0, 24), *words(120, 9))]
    runs = [engine.submit(prompt, plain(ANSWER)) for prompt in prompts]
    report = step(engine)
    assert report is not None and (report.num_admitted, report.num_tokens) == (2, 24 + 9)
    finish(engine)
    assert [run.reused for run in runs] == [0, 40, 24]
    assert_exact("llama", runs)


@pytest.mark.parametrize(("length", "admitted"), [(16, 1), (17, 2)])
def test_a_step_of_single_tokens_shares_nothing(length: int, admitted: int) -> None:
    """Kernels of such a step write and read pages in one launch. With one token more it is a step of prompts."""
    engine = open_engine("llama", 100)
    before = engine.submit((*words(0, 15), *words(200, 5)), plain(1))
    finish(engine)
    runs = [engine.submit(words(0, length), plain(ANSWER)), engine.submit(words(0, 17), plain(ANSWER))]
    report = step(engine)
    assert report is not None and report.num_admitted == admitted and runs[0].reused == 15
    finish(engine)
    assert (runs[1].reused, engine.scheduler.num_waits) == (16, 2 - admitted)
    assert_exact("llama", [before, *runs])


@pytest.mark.parametrize("name", SHARERS)
def test_what_a_step_in_flight_computes_is_used_by_the_next(name: str) -> None:
    engine = open_engine(name, 100, overlap=True)
    first = engine.submit(words(0, 41), plain(6))
    step(engine)
    second = engine.submit(words(0, 45), plain(4))
    report = step(engine)
    assert report is not None and report.num_admitted == 1 and second.reused == 40
    finish(engine)
    assert pending(engine) and engine.scheduler.num_waits == 0
    assert_exact(name, [first, second])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", SHARERS)
def test_sharers_of_a_step_that_raises_compute_for_themselves(
    name: str, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(name, 100, overlap=overlap, max_num_tokens=200)
    runs = [engine.submit(words(0, 41 + nth), plain(6)) for nth in range(3)]
    fail_once(engine, monkeypatch)
    with pytest.raises(Fault):
        engine.step()
    finish(engine)
    assert pending(engine)
    assert_exact(name, runs)


@pytest.mark.parametrize("overlap", [False, True])
def test_sharers_of_a_prompt_with_broken_logits_go_on(overlap: bool) -> None:
    """What it has computed is not stored, and they do not read it; nor do they fail with it."""
    engine = open_engine(poisoned("llama"), 100, overlap=overlap, max_num_tokens=200)
    bad = engine.submit((*words(0, 24), POISON), plain(5))
    good = [engine.submit((*words(0, 24), *words(90 + nth, 9)), plain(5)) for nth in range(2)]
    finish(engine)
    assert bad.error is not None and "NaN" in bad.error and pending(engine)
    assert_exact("llama", good)


def test_who_shares_with_one_that_is_cancelled_goes_on() -> None:
    engine = open_engine("llama", 100, overlap=True, max_num_tokens=200)
    first, second = (engine.submit(words(0, LENGTH), plain(ANSWER)) for _ in range(2))
    step(engine)
    assert engine.cancel(first)
    finish(engine)
    assert second.reused == SHARED
    assert_exact("llama", [second])


def test_where_nothing_can_be_shared_they_wait() -> None:
    """States are one sequence's own, and what a connector brings no step computes."""
    for name, settings in (("qwen3_next", {}), ("llama", {"connector": Shelf()})):
        engine = open_engine(name, (100,) * len(model_of(name).shapes), max_num_tokens=200, **settings)
        assert not engine.cache.config.share_pending
        runs = [engine.submit(words(0, 41), plain(3)) for _ in range(2)]
        finish(engine)
        assert engine.scheduler.num_waits == 1
        assert_exact(name, runs)
        engine.close()
