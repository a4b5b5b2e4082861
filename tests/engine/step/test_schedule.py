"""Who computes when: always forward, nothing twice that can be had by waiting a step; with FCFS the oldest first."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError  # noqa: E402
from quire.core.records.groups import Lengths  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.step.runs.branch import Branch, Run  # noqa: E402

from ...effort import cases, slow  # noqa: E402
from .. import families  # noqa: E402
from ..steps import (  # noqa: E402
    assert_clean,
    assert_exact,
    finish,
    holders,
    model_of,
    open_engine,
    place_of,
    places_of,
    plain,
    step,
    words,
)

NAMES = families.NAMES
TIGHT: dict[str, Any] = {"block_size": 4, "max_num_tokens": 24, "max_sequences": 6, "max_length": 64}
TIGHT["snapshot_every"] = 8
LOCKS = [*((name, 4) for name in NAMES), ("llama", 6), *(slow(name, 6) for name in NAMES if name != "llama")]
FCFS: dict[str, Any] = {"wait_for_reuse": False, "scheduling": "fcfs"}


def least_pages(name: str, block: int, longest: int, chunk: int, beams: int = 1) -> tuple[int, ...]:
    """Pages per group without which no request of that length is taken, however it is cut into prompt and answer."""
    groups = model_of(name).groups(block, TIGHT["snapshot_every"])
    cuts = range(1, longest)
    return tuple(max(group.most(Lengths(cut, cut, longest), beams, block, chunk) for cut in cuts) for group in groups)


class Watch:
    """Steps of an engine with plain runs only, and what must be true of each of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.num_steps = self.num_preempted = self.num_back = 0
        self.lost: set[Branch] = set()  # preempted, and not back yet

    def step(self) -> bool:
        """False at the end."""
        engine = self.engine
        before, preempted = holders(engine), {run: run.num_preemptions for run in engine.runs.values()}
        oldest = min(engine.runs.values(), key=lambda run: run.arrival, default=None)
        done = 0 if oldest is None else oldest.computed
        report = step(engine)
        if report is None:
            return False
        self.num_steps += 1
        after = holders(engine)
        self._oldest_came_first(before, after)
        self._youngest_went_first(before, after, [run for run, was in preempted.items() if run.num_preemptions > was])
        if not engine.config.wait_for_reuse:
            assert oldest is not None and oldest.computed > done, f"{oldest} stands still"
        if report.num_admitted and before and after and not engine.config.wait_for_reuse:
            self._newcomers_left_room(before, after)
        return True

    def _oldest_came_first(self, before: list[Branch], after: list[Branch]) -> None:
        new = [branch for branch in after if branch not in before]
        self.num_back += len(self.lost.intersection(new))
        self.lost.difference_update(new)
        waiting = self.engine.scheduler.waiting
        if new and waiting and not self.engine.config.wait_for_reuse:
            assert max(one.age for one in new) < min(one.age for one in waiting), "somebody older still waits"

    def _youngest_went_first(self, before: list[Branch], after: list[Branch], runs: list[Run]) -> None:
        out = [branch for branch in before if branch.run in runs]
        stayed = [branch for branch in before if branch in after and branch not in out]
        self.num_preempted += len(out)
        self.lost.update(branch for branch in out if branch not in after)
        if out and stayed:
            assert min(one.age for one in out) > max(one.age for one in stayed), "somebody younger kept its pages"

    def _newcomers_left_room(self, before: list[Branch], after: list[Branch]) -> None:
        running = [branch for branch in before if branch in after]
        cache = self.engine.cache
        groups = [group for group, layer in enumerate(cache.config.groups) if not layer.current]
        assert min(cache.num_free(group) for group in groups) >= len(running)

    def finish(self, most: int) -> None:
        """To the end, in at most so many steps."""
        while self.step():
            assert self.num_steps <= most, f"{list(self.engine.runs.values())}"
        assert_clean(self.engine)


# -- order -------------------------------------------------------------------------------------------------------------


def test_first_come_first_served() -> None:
    """A step has tokens for one prompt: they start in the order they came, long and short."""
    engine = open_engine("llama", 100, max_num_tokens=40, **FCFS)
    lengths = [30, 9, 38, 20, 38, 5, 31]
    runs = [engine.submit(words(31 * nth, length), plain(6)) for nth, length in enumerate(lengths)]
    began: list[Run] = []
    watch = Watch(engine)
    while watch.step():
        began += [run for run in runs if run.computed and run not in began]
    assert began == runs
    assert_exact("llama", runs)
    engine.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_long_prompt_among_many_short_ones(name: str) -> None:
    """Two short ones come with every step, more than the engine can take: the long one has its turn all the same."""
    engine = open_engine(name, 80, max_num_tokens=32, max_chunk=16, max_waiting=10_000, **FCFS)
    dice, short = random.Random(1), list[Run]()

    def more() -> None:
        short.extend(engine.submit(words(dice.randrange(200), dice.randint(6, 12)), plain(4)) for _ in range(2))

    for _ in range(4):
        more()
        step(engine)
    long = engine.submit(words(0, 150), plain(8))
    watch = Watch(engine)
    while not long.done:
        more()
        assert watch.step() and watch.num_steps < 60
    assert len(engine.scheduler.waiting) > 8, "the engine was not full"
    for run in list(engine.runs.values()):
        engine.cancel(run)
    finish(engine)
    assert_exact(name, [long, *(run for run in short[:6])])
    engine.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(cases(2, 3)))
@pytest.mark.parametrize("name", NAMES)
def test_always_forward(name: str, seed: int) -> None:
    """Random small pools: the oldest run gets on with every step, the youngest gives way, newcomers leave room."""
    dice = random.Random(seed)
    longest, chunk = 32, dice.choice([8, 16, 24])
    pages = tuple(least + dice.randint(0, 4) for least in least_pages(name, 4, longest, chunk))
    host = dice.choice([0, 0, 12])
    engine = open_engine(name, pages, host, **TIGHT | FCFS | {"max_chunk": chunk})
    watch, runs = Watch(engine), []
    for _ in range(6):
        length = dice.randint(2, longest - 2)
        drafts = 0 if engine.model.recurrent else dice.choice([0, 3])
        sampling = plain(dice.randint(1, longest - length), drafts=drafts)
        runs.append(engine.submit((words(dice.randrange(30), 5) * 8)[:length], sampling))
        for _ in range(dice.randint(0, 4)):
            watch.step()
    most = sum(2 + len(run.prompt) // 4 + run.sampling.max_tokens for run in runs)
    watch.finish(most)
    assert_exact(name, runs)
    engine.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_preempted_run_comes_back_first(name: str) -> None:
    """It waits where its arrival puts it: before all that came later, however long they have waited."""
    pages = tuple(max(14, least) for least in least_pages(name, 4, 40, 24))
    pages = (*pages[:-1], 4) if model_of(name).recurrent else pages
    engine = open_engine(name, pages, **TIGHT | FCFS)
    runs = [engine.submit(words(23 * nth, 9), plain(30)) for nth in range(3)]
    runs += [engine.submit(words(23 * nth, 4), plain(3)) for nth in range(3, 8)]
    watch = Watch(engine)
    watch.finish(400)
    assert watch.num_preempted and watch.num_back, "nobody was preempted"
    ends = [run.times.finished for run in runs[:3]]
    assert ends == sorted(ends)
    assert_exact(name, runs)
    engine.close()


def test_rows_are_handed_out_in_order() -> None:
    engine = open_engine("llama", 40, max_sequences=2, wait_for_reuse=False)
    runs = [engine.submit(words(23 * nth, 9), plain(3 + nth % 4, n=1 + nth % 3)) for nth in range(9)]
    while step(engine) is not None:
        assert engine.cache.num_sequences <= 2
    began = sorted(runs, key=lambda run: run.times.first_token)
    assert began == runs
    assert_exact("llama", runs)
    engine.close()


# -- drafts ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_guesses_give_way_without_growing_twice() -> None:
    """Drafts find no room beside a branch without any: everybody still grows by the one token it computes."""
    given_up = 0
    for seed in range(2, cases(5, 9)):
        dice = random.Random(seed)
        pages = dice.randint(6, 10)
        engine = open_engine("llama", pages, block_size=4, max_length=4 * pages)
        prompts = [(words(dice.randrange(200), 3) * 4)[: dice.randint(3, 10)] for _ in range(4)]
        runs = [engine.submit(prompt, plain(12, drafts=dice.choice([0, 4]))) for prompt in prompts]
        finish(engine, 200)
        given_up += engine.scheduler.num_preemptions
        assert_exact("llama", runs)
        again = [engine.submit((*run.prompt.tolist(), *run.answers[0].tokens)[:-1], plain(2)) for run in runs]
        finish(engine, 200)
        assert_exact("llama", again)
        engine.close()
    assert given_up


def test_guesses_leave_a_block_for_prompts() -> None:
    """However many drafts are asked for, whoever waits goes on, and the budget holds."""
    engine = open_engine("llama", 60, max_num_tokens=24, max_sequences=4, block_size=8)
    guessing = [engine.submit(words(3, 3) * 8, plain(60, drafts=40)) for _ in range(3)]
    for _ in range(6):
        step(engine)
    late = engine.submit(words(100, 40), plain(4))
    steps = 0
    while not late.done:
        assert step(engine) is not None
        steps += 1
    assert steps <= 40 // 8 + 1 + 4 and engine.stats.most_tokens == 24
    finish(engine)
    assert_exact("llama", [late, *guessing])
    assert engine.advance.num_accepted
    engine.close()


# -- what was taken is served ------------------------------------------------------------------------------------------


POOLS = [
    ("llama", (6,), 1),
    ("llama", (6,), 2),
    ("gemma3", (40, 6), 2),
    ("qwen3_next", (6, 6), 2),
    slow("gemma3", (40, 6), 1),
]
POOLS += [slow("qwen3_next", (6, 6), 1), slow("gemma3", (40, 7), 1), slow("gemma3", (40, 7), 2)]


@pytest.mark.parametrize(("name", "pages", "n"), POOLS)
def test_a_run_that_was_taken_is_never_refused(name: str, pages: tuple[int, ...], n: int) -> None:
    """Whatever the pool: refused at once, or served to the end, also when it has to come back with a long answer."""
    engine = open_engine(name, pages, max_length=128)
    runs = []
    for start in (0, 20, 40):
        try:
            runs.append(engine.submit(words(start, 8), plain(32, n=n)))
        except InputError as refused:
            assert "are there" in str(refused)
    finish(engine, 500)
    assert_exact(name, runs)
    assert not runs or any(run.num_preemptions for run in runs), "nobody had to come back"
    engine.close()


# -- waiting for reuse -------------------------------------------------------------------------------------------------

LENGTH, ANSWER = 60, 4
SHARED = LENGTH // 8 * 8  # whole blocks
CHUNKS = [None, 16, pytest.param(24, marks=pytest.mark.slow)]


def computed(name: str, prompts: list[tuple[int, ...]], **settings: Any) -> tuple[list[Run], Engine]:
    """Runs that came together, at their end."""
    engine = open_engine(name, 100, **{"max_num_tokens": 128} | settings)
    runs = [engine.submit(prompt, plain(ANSWER)) for prompt in prompts]
    finish(engine)
    assert_exact(name, runs)
    engine.close()
    return runs, engine


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", NAMES)
def test_equal_prompts_are_computed_once(name: str, chunk: int | None) -> None:
    """Three equal prompts come together: the second and third wait for the first, and compute only their last block."""
    runs, engine = computed(name, [words(0, LENGTH)] * 3, max_chunk=chunk, share_pending=False)
    if name == "gemma3" and chunk is not None:
        return  # pages of a window are findable when the prompt is computed: nobody waits for a part of it
    assert runs[0].computed == LENGTH + ANSWER - 1
    for run in runs[1:]:
        assert run.reused == SHARED and run.computed == LENGTH - SHARED + ANSWER - 1
    assert engine.scheduler.num_waits >= 2


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", NAMES)
def test_waiting_can_be_switched_off(name: str, chunk: int | None) -> None:
    off = {"wait_for_reuse": False, "share_pending": False}
    runs, engine = computed(name, [words(0, LENGTH)] * 2, max_chunk=chunk, **off)
    assert [run.computed for run in runs] == [LENGTH + ANSWER - 1] * 2 and engine.scheduler.num_waits == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_common_beginning_is_computed_once(name: str) -> None:
    """40 tokens in common, then each its own: those 40 are computed once; with states, up to the last snapshot by the
    second, which keeps one where it parts: the third waits for that.
    """
    common = words(0, 40)
    runs, _ = computed(name, [(*common, *words(start, 20)) for start in (60, 100, 140)])
    assert [run.reused for run in runs] == [0, 32 if name == "qwen3_next" else 40, 40]


@pytest.mark.parametrize("name", NAMES)
def test_only_a_common_beginning_makes_one_wait(name: str) -> None:
    """Equal second blocks behind other first ones, and other tokens altogether: all are admitted at once."""
    end = words(0, 40)
    engine = open_engine(name, 100, max_num_tokens=200)
    for start in (60, 80, 100):
        engine.submit((*words(start, 8), *end), plain(2))
    report = step(engine)
    assert report is not None and report.num_admitted == 3 and engine.scheduler.num_waits == 0
    finish(engine)
    engine.close()


def test_without_reuse_nobody_waits() -> None:
    runs, engine = computed("llama", [words(0, LENGTH)] * 2, reuse=False)
    assert engine.scheduler.num_waits == 0 and runs[1].reused == 0


@pytest.mark.parametrize("name", NAMES)
def test_who_waits_goes_on_when_the_other_is_gone(name: str) -> None:
    """The one it waits for is cancelled in the middle of its prompt: it computes the rest itself."""
    engine = open_engine(name, 100, max_chunk=16)
    first, second = (engine.submit(words(0, LENGTH), plain(ANSWER)) for _ in range(2))
    for _ in range(2):
        step(engine)
    engine.cancel(first)
    finish(engine)
    assert_exact(name, [second])
    engine.close()


# -- beams -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_beams_preempted_in_part(name: str) -> None:
    """Some beams of a search lose their pages while others have delivered: the search goes on where it was."""
    pages = {"llama": 20, "gemma3": (20, 20), "qwen3_next": (20, 9)}[name]
    engine = open_engine(name, pages, **TIGHT)
    runs = [engine.submit(words(30 * nth, 9), plain(14)) for nth in range(3)]
    runs += [engine.submit(words(120, 9), plain(12, beams=beams)) for beams in (4, 3)]
    mixed = 0
    for _ in range(400):
        if step(engine) is None:
            break
        mixed += sum(len(places_of(engine, run)) > 1 for run in runs if run.sampling.beams > 1)
    assert_clean(engine)
    assert mixed > 3 and any(run.num_preemptions for run in runs if run.sampling.beams > 1)
    assert_exact(name, runs)
    engine.close()


@pytest.mark.parametrize(("name", "rows"), LOCKS)
def test_beam_searches_do_not_lock_each_other(name: str, rows: int) -> None:
    """Three searches, each of which could take all rows or all pages for itself."""
    pages = least_pages(name, 4, 20, 24, beams=4)
    engine = open_engine(name, pages, **TIGHT | {"max_sequences": rows})
    runs = [engine.submit(words(30 * nth, 7 + nth), plain(8, beams=4, n=2)) for nth in range(3)]
    gave_way = 0
    for _ in range(200):
        if step(engine) is None:
            break
        gave_way += any("elsewhere" in places_of(engine, run) for run in runs if not run.done)
    assert_clean(engine)
    assert_exact(name, runs)
    assert gave_way or rows > 4 or name == "qwen3_next", "no beam gave way to another search after it had delivered"
    engine.close()


def test_answers_wait_for_rows_and_pages() -> None:
    """More answers than rows: those without a place wait, find the prompt in the cache, and are exact."""
    engine = open_engine("llama", 8, block_size=4, max_sequences=3, max_length=32)
    run = engine.submit(words(0, 13), plain(6, n=7, temperature=1.0, seed=5))
    waited = 0
    while step(engine) is not None:
        waited += any(place_of(engine, branch) == "waiting" for branch in run.branches)
    assert waited and engine.forks.num_copies
    assert_exact("llama", [run])
    engine.close()
