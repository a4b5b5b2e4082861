"""Steps in flight: an engine with `overlap` prepares a step before it has read the one before, and answers the same.

Whole random worlds of it are in `tests.engine.test_exact`. Here is one of each that can go wrong: what a token that
comes a step late ends, and what is taken away while a step computes it.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.engine.loop.engine_thread import Loop  # noqa: E402
from quire.engine.model.attention import AttentionStep  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.engine.step.draft import lookup  # noqa: E402
from quire.engine.step.read_logits import UnreadTokens  # noqa: E402
from quire.engine.step.runs.branch import Run  # noqa: E402
from quire.engine.step.runs.step_work import Turn  # noqa: E402

from ...effort import slow  # noqa: E402
from .. import families  # noqa: E402
from ..memory.test_connector import Shelf, taught  # noqa: E402
from ..steps import (  # noqa: E402
    assert_begun,
    assert_clean,
    assert_exact,
    finish,
    model_of,
    open_engine,
    place_of,
    places_of,
    plain,
    reference_of,
    step,
    tokens_of,
    words,
)
from .test_engine import poisoned  # noqa: E402

NAMES = families.NAMES


def open_ahead(name: str, pages: int = 60, **settings: Any) -> Engine:
    return open_engine(name, (pages,) * len(model_of(name).shapes), overlap=True, **settings)


def answer_of(name: str, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    (whole,) = reference_of(name).answers(list(prompt), plain(count))
    return tuple(whole)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_takes_its_input_from_the_one_before_it(name: str) -> None:
    """Greedy and by chance, whole answers and several of one prompt: a token is read when the next is computed."""
    engine = open_ahead(name)
    runs = [engine.submit(words(0, 20), plain(8)), engine.submit(words(60, 9), plain(8, temperature=0.8, top_p=0.9))]
    runs.append(engine.submit(words(90, 12), plain(5, n=2, temperature=0.9, logprobs=2)))
    step(engine)
    assert tokens_of(runs[0]) == [[]] and len(engine.in_flight) == 1 and places_of(engine, runs[0]) == {"ready"}
    step(engine)
    assert len(tokens_of(runs[0])[0]) == 1 and runs[0].branches[0].ahead == 1
    finish(engine)
    assert engine.in_flight.counts.num_ahead >= 12 and not engine.in_flight.counts.num_dropped
    assert [len(answer.logprobs) for answer in runs[2].answers] == [5, 5]
    assert_exact(name, runs)
    engine.close()


def test_no_step_computes_behind_the_last_token_that_an_answer_may_have() -> None:
    engine = open_ahead("llama")
    runs = [engine.submit(words(0, 10), plain(1)), engine.submit(words(30, 10), plain(4))]
    finish(engine)
    assert engine.stats.num_tokens == 10 + 10 + 3 and not engine.in_flight.counts.num_dropped
    assert_exact("llama", runs)


@pytest.mark.parametrize("name", NAMES)
def test_a_stop_token_that_is_read_one_step_late(name: str) -> None:
    """The next token is being computed by then: it is dropped, and its pages go back. What is kept can be reused."""
    engine = open_ahead(name)
    prompt = words(0, 24)
    whole = answer_of(name, prompt, 9)
    stop = next(token for place, token in enumerate(whole) if place > 2 and token not in whole[:place])
    run, other = engine.submit(prompt, plain(20, stop_ids=(stop,))), engine.submit(words(70, 11), plain(12))
    finish(engine)
    assert run.answers[0].finish == "stop" and run.answers[0].tokens == list(whole[: whole.index(stop) + 1])
    assert engine.in_flight.counts.num_dropped == 1
    again = engine.submit((*prompt, *run.answers[0].tokens, *words(5, 3)), plain(3))
    finish(engine)
    assert again.reused >= 24
    assert_exact(name, [other, again])


@pytest.mark.parametrize("name", NAMES)
def test_cancelled_while_a_step_computes_it(name: str) -> None:
    """It ends at once; its pages stay until that step is read, and are free then."""
    engine = open_ahead(name)
    run, other = engine.submit(words(0, 20), plain(12)), engine.submit(words(70, 11), plain(12))
    long = engine.submit(words(120, 100), plain(2))
    for _ in range(3):
        step(engine)
    assert long.branches and len(engine.in_flight) == 1 and engine.in_flight.has(run.branches[0])
    before = engine.cache.num_free(0)
    assert engine.cancel(run) and engine.cache.num_free(0) == before
    assert engine.cancel(long)
    step(engine)
    assert engine.cache.num_free(0) > before and engine.in_flight.counts.num_dropped == 2
    finish(engine)
    assert_begun(name, run)
    assert_exact(name, [other])


def preempting(overlap: bool) -> Engine:
    """Two answers that grow until there is room for one."""
    engine = open_engine("llama", 9, overlap=overlap)
    runs = [engine.submit(words(40 * nth, 24), plain(24)) for nth in range(2)]
    finish(engine)
    assert_exact("llama", runs)
    return engine


def test_a_branch_is_preempted_only_when_its_pages_come_back_at_once() -> None:
    """So no more of them are preempted than without overlap, where every step is read."""
    ahead, plainly = preempting(True), preempting(False)
    assert ahead.in_flight.counts.num_ahead and ahead.in_flight.counts.num_drains
    assert ahead.scheduler.num_preemptions == plainly.scheduler.num_preemptions > 0


class Fault(Exception):
    """A device that has failed."""


def fail_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next forward of the model raises, in the middle."""
    failed: list[bool] = []
    attend = AttentionStep.attend

    def raising(self: AttentionStep, layer: int, *given: Any) -> Any:
        if layer == max(self.places) and not failed:
            failed.append(True)
            raise Fault
        return attend(self, layer, *given)

    monkeypatch.setattr(AttentionStep, "attend", raising)


def fill(engine: Engine) -> list[Run]:
    """Answers of every kind, and a prompt in several parts."""
    samplings = [plain(9), plain(7, n=2, temperature=0.7), plain(6, beams=2), plain(8, presence_penalty=0.5)]
    if not engine.model.recurrent:
        samplings.append(plain(9, drafts=3))
    runs = [engine.submit(words(31 * nth, 6) * 3, sampling) for nth, sampling in enumerate(samplings)]
    return [*runs, engine.submit(words(150, 90), plain(4))]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("name", "when"),
    [*(("llama", when) for when in (0, 1, 4)), *((name, 1) for name in NAMES[1:]), ("qwen3_next", 4),
     slow("gemma3", 0), slow("gemma3", 4), slow("qwen3_next", 0)],
)  # fmt: skip
def test_a_step_that_raises_is_taken_back(name: str, when: int, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it counts, and the next step computes it again."""
    engine = open_engine(name, (60,) * len(model_of(name).shapes), overlap=overlap, max_num_tokens=48)
    runs = fill(engine)
    for _ in range(when):
        step(engine)
    fail_once(engine, monkeypatch)
    with pytest.raises(Fault):
        engine.step()
    finish(engine)
    assert_exact(name, runs)


@pytest.mark.parametrize("overlap", [False, True])
def test_drafts_of_a_step_that_raises(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken back with it: its sequence has the tokens that its answer has."""
    engine = open_engine("llama", 60, overlap=overlap)
    runs = [engine.submit(words(0, 4) * 6, plain(60, drafts=4)), engine.submit(words(60, 12), plain(60))]
    (branch,) = runs[0].branches
    while place_of(engine, branch) != "ready" or not len(lookup(branch.tokens, 4, 2)):
        step(engine)
    fail_once(engine, monkeypatch)
    with pytest.raises(Fault):
        engine.step()
    assert branch.sequence is not None and branch.sequence.length == branch.length and not len(branch.drafts)
    finish(engine)
    assert engine.scheduler.num_drafts and engine.advance.num_accepted
    assert_exact("llama", runs)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_whose_tokens_cannot_be_read_takes_the_next_with_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device reports late that a step has failed: the one behind it has computed from nothing."""
    engine = open_ahead(name, max_num_tokens=48)
    runs = fill(engine)
    for _ in range(4):
        step(engine)
    read, failed = UnreadTokens.read, list[UnreadTokens]()

    def raising(self: UnreadTokens, wanted: Any) -> Any:
        if not failed:
            failed.append(self)
            raise Fault
        return read(self, wanted)

    monkeypatch.setattr(UnreadTokens, "read", raising)
    with pytest.raises(Fault):
        while True:
            engine.step()
    assert len(engine.in_flight) == 0 and not engine.cache.open_steps()
    finish(engine)
    assert_exact(name, runs)


def test_logits_that_are_not_numbers_are_read_late_too() -> None:
    """They end a block. The step behind them computes some token, and nothing of either is kept."""
    for start in range(0, 200, 20):
        prompt = words(start, 20)
        whole = answer_of("llama", prompt, 4)
        if whole[3] not in {*prompt, *whole[:3], *words(230, 11)}:
            break
    engine = open_engine(poisoned("llama", whole[3]), 60, overlap=True)
    bad, good = engine.submit(prompt, plain(20)), engine.submit(words(230, 11), plain(3))
    finish(engine)
    assert bad.error is not None and "NaN" in bad.error and tokens_of(bad) == [list(whole)]
    assert engine.in_flight.counts.num_dropped == 1
    poison = (*words(120, 20), whole[3], *words(140, 9))  # and in a prompt
    engine.submit(poison, plain(5))
    finish(engine)
    again = [engine.submit((*prompt, *whole, *words(0, 3)), plain(1)), engine.submit((*poison, 100), plain(1))]
    finish(engine)
    assert [run.reused for run in again] == [0, 0]
    assert_exact("llama", [good])


@pytest.mark.parametrize("name", NAMES)
def test_the_next_part_of_a_prompt_is_launched_before_the_last_is_committed(name: str) -> None:
    engine = open_ahead(name, max_chunk=16)
    run = engine.submit(words(0, 70), plain(3))
    step(engine)
    step(engine)
    (branch,) = run.branches
    assert branch.sequence is not None and (branch.sequence.computed, branch.sequence.ran) == (16, 32)
    finish(engine)
    assert_exact(name, [run])


def test_a_prompt_waits_for_the_prefix_that_a_step_in_flight_computes() -> None:
    engine = open_ahead("llama", share_pending=False)
    first = engine.submit(words(0, 41), plain(6))
    step(engine)
    second = engine.submit(words(0, 45), plain(4))
    finish(engine)
    assert (first.reused, second.reused) == (0, 40) and engine.scheduler.num_waits == 1
    assert_exact("llama", [first, second])


def test_what_the_host_must_read_first_sits_out_a_step() -> None:
    """Others go on meanwhile; where most of them must, the engine reads before it decides."""
    engine = open_ahead("llama")
    plain_ones = [engine.submit(words(20 * nth, 12), plain(12)) for nth in range(3)]
    ruled = engine.submit(words(90, 12), plain(6, repetition_penalty=1.3))
    step(engine)
    assert places_of(engine, ruled) == {"unread"}
    step(engine)
    assert places_of(engine, ruled) == {"ready"} and len(tokens_of(ruled)[0]) == 1
    finish(engine)
    counts = engine.in_flight.counts
    assert counts.num_waits >= 5 and counts.num_ahead >= 20
    assert_exact("llama", [*plain_ones, ruled])
    alone = engine.submit(words(130, 12), plain(6, repetition_penalty=1.3))
    before = counts.num_steps
    finish(engine)
    assert counts.num_steps == before
    assert_exact("llama", [alone])


@pytest.mark.parametrize("name", NAMES)
def test_a_lost_page_under_a_step_in_flight(name: str) -> None:
    """What that step makes of its sequence counts nothing; it waits for new pages and goes on with the same answer."""
    engine = open_ahead(name, max_num_tokens=48)
    runs = fill(engine)
    for _ in range(4):
        step(engine)
    branch = next(one for one in engine.scheduler.ready if one.ahead and one.sequence is not None)
    assert branch.sequence is not None
    lost = engine.cache.lose(0, [int(branch.sequence.slots(0)[0])])
    if lost.plan is not None:
        engine.plans.carry(lost.plan)
    engine.set_back(lost.setbacks, Turn(in_flight=True))
    assert branch.sequence is None and not branch.ahead
    finish(engine)
    assert engine.in_flight.counts.num_dropped
    assert_exact(name, runs)


def test_a_connector_is_not_asked_for_what_follows_a_part_in_flight() -> None:
    known = taught("llama", words(0, 24), words(60, 24))
    late = {key: pages for key, pages in known.items() if len(key[1]) > 16 * 4 or key[1][0] == words(60, 1)[0]}
    shelf = Shelf(late)  # of the first prompt only its third block
    engine = shelf.open("llama", 60, overlap=True, max_chunk=16)
    runs = [engine.submit(words(start, 60), plain(3)) for start in (0, 60)]
    finish(engine)
    assert engine.in_flight.counts.num_steps and engine.connector_side.last_error is None
    assert runs[0].reused == 0 and runs[1].reused >= 16
    assert_exact("llama", runs)


def test_nothing_is_in_flight_for_calls_between_two_steps() -> None:
    with Loop(open_ahead("llama")) as loop:
        streams = [loop.submit(words(30 * nth, 12), plain(40)) for nth in range(2)]
        assert loop.call(lambda engine: (len(engine.in_flight), len(engine.cache.open_steps()))) == (0, 0)
        runs = [stream.wait() for stream in streams]
        assert loop.call(lambda engine: engine.in_flight.counts.num_ahead)
    assert_exact("llama", runs)


def test_an_engine_is_closed_with_a_step_in_flight() -> None:
    engine = open_ahead("llama")
    run = engine.submit(words(0, 20), plain(8))
    step(engine)
    step(engine)
    assert len(engine.in_flight) == 1
    for one in list(engine.runs.values()):
        engine.cancel(one)
    assert engine.step() is None
    assert_clean(engine)
    engine.submit(words(0, 20), Sampling(max_tokens=3))
    engine.step()
    engine.close()
    assert not engine.cache.open_steps() and engine.cache.num_sequences == 0 and run.done
