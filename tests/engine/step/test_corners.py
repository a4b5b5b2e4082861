"""Corners where two rules meet: a fresh prompt in a used slot, two ends in one run of drafts, beams that make room."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.engine.step.runs.branch import Run  # noqa: E402

from ..steps import assert_exact, finish, open_engine, place_of, places_of, plain, step, tokens_of, words  # noqa: E402

# -- states ------------------------------------------------------------------------------------------------------------


def test_a_prompt_of_one_token_in_a_used_state_slot() -> None:
    """It looks like a decoded token, but begins from nothing: what the slot's last owner left must not be read."""
    with open_engine("qwen3_next", (24, 2), reuse=False) as engine:
        (group,) = (nth for nth, one in enumerate(engine.cache.config.groups) if one.current)
        used: set[int] = set()
        runs: list[Run] = []
        for prompt in (words(0, 12), words(30, 12), words(50, 1), words(90, 1)):
            runs.append(engine.submit(prompt, plain(5)))
            step(engine)
            (branch,) = runs[-1].branches
            assert branch.sequence is not None
            slot = int(engine.cache.state_table(group)[branch.sequence.row])
            assert len(prompt) > 1 or slot in used, "nobody has used this slot"
            used.add(slot)
            finish(engine)
        assert_exact("qwen3_next", runs)


def test_prompts_of_one_token_beside_decoding_ones() -> None:
    """In one step with tokens that do go on from a state."""
    with open_engine("qwen3_next", (24, 20), reuse=False) as engine:
        finished = [engine.submit(words(40 * nth, 9), plain(2)) for nth in range(4)]
        finish(engine)  # their slots are used, and free
        long = engine.submit(words(0, 20), plain(12))
        step(engine)
        short = [engine.submit(words(start, 1), plain(4)) for start in (50, 90, 130)]
        report = step(engine)
        assert report is not None and report.num_branches == report.num_tokens == 4
        finish(engine)
        assert_exact("qwen3_next", [*finished, long, *short])


# -- two ends in one run of drafts -------------------------------------------------------------------------------------


class StopsAt:
    """A listener to which the text reaches a stop string with the given token of the answer."""

    def __init__(self, place: int) -> None:
        self.place, self.heard = place, 0

    def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
        self.heard += len(tokens)
        return self.heard >= self.place

    def over(self, run: Run) -> None:
        pass


def answered(engine: Engine, prompt: tuple[int, ...], sampling: Sampling, place: int) -> tuple[object, bool]:
    """Tokens and finish; whether the last step had accepted drafts up to `max_tokens`, beyond the stop."""
    run = engine.submit(prompt, sampling, listener=StopsAt(place))
    before = last = 0
    while not run.done:
        before, last = engine.advance.num_accepted, len(run.answers[0].tokens)
        assert engine.step() is not None
    accepted = engine.advance.num_accepted - before
    return (tokens_of(run), run.answers[0].finish), place < last + accepted + 1 == sampling.max_tokens


def test_a_stop_string_and_max_tokens_in_one_run_of_drafts() -> None:
    """Whichever comes first ends the answer, as it does without drafts; with the same token it is the length."""
    prompt = words(42, 8) * 4
    both = 0
    with open_engine("llama", 60) as engine:
        whole = engine.submit(prompt, plain(32))
        finish(engine)
        for most in range(24, 32, 2):
            for place in (most - 3, most - 1, most):
                found, met = answered(engine, prompt, plain(most, drafts=6), place)
                finish_of = "stop" if place < most else "length"
                assert found == ([whole.answers[0].tokens[:place]], finish_of), (most, place)
                both += met
        assert_exact("llama", [whole])
    assert both > 3, "no run of accepted drafts held both ends"


# -- beams -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_dead_beams_make_room_for_forks(name: str) -> None:
    """As many rows as beams: each fork takes the row that a dead beam has just left, and none has to compute again."""
    with open_engine(name, 40, max_sequences=4) as engine:
        run = engine.submit(words(0, 12), plain(16, beams=4))
        while step(engine) is not None:
            assert run.done or len(run.branches) == 1 or engine.cache.num_sequences == 4
        assert engine.forks.num_forks > 3 and engine.forks.num_copies == 0
        assert run.computed == 12 + 15 * 4  # every beam's tokens once
        assert_exact(name, [run])


def held_with_newcomer(pages: int) -> tuple[int, int, bool]:
    """A beam waits for its mate, which computes its prompt again, part by part: a newcomer comes.

    Free pages before, and after that step; whether the newcomer came in.
    """
    sizes = {"block_size": 4, "max_num_tokens": 24, "max_chunk": 4, "max_length": 64}
    with open_engine("llama", pages, reuse=False, wait_for_reuse=False, scheduling="fcfs", **sizes) as engine:
        search = engine.submit(words(0, 12), plain(6, beams=2))
        while len(search.branches) < 2:
            step(engine)
        engine.scheduler.queues.preempt(search.branches[1])  # as if pages had been short
        step(engine)
        assert places_of(engine, search) == {"held", "prompts"}
        newcomer = engine.submit(words(100, 4), plain(2))
        before = engine.cache.num_free(0)
        step(engine)
        assert places_of(engine, search) == {"held", "prompts"}
        after, came = engine.cache.num_free(0), place_of(engine, newcomer.branches[0]) != "waiting"
        finish(engine)
        assert_exact("llama", [search, newcomer])
        return before, after, came


def test_newcomers_leave_a_page_for_beams_that_wait() -> None:
    """One for the beam that is held, one for the one under way: a newcomer that would take either waits."""
    found = [held_with_newcomer(pages) for pages in range(9, 14)]
    (need,) = {before - after for before, after, came in found if came}
    assert need > 0
    for before, after, came in found:
        assert came == (before - need >= 2), found
        assert came or before == after
    assert {before - need for before, _, _ in found} >= {1, 2}, "never just too few, and just enough"
