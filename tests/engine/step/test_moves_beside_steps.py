"""A step waits for the pages it reads and for those it overwrites, and for no other move, beside a host tier that is
slow, stops or fails."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.core.records.plan import Kind  # noqa: E402
from quire.engine import Loop  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.step.runs.branch import Run  # noqa: E402
from quire.engine.step.step_slots import StepSlots  # noqa: E402
from quire.tiers import Bytes  # noqa: E402

from ...tiers.stand_ins import FlakyTier, plan_of  # noqa: E402
from ...waits import PATIENCE, until  # noqa: E402
from ..steps import assert_exact, finish, plain, step, words  # noqa: E402
from ..threads import Crew  # noqa: E402
from .test_setbacks import DEVICE, PROMPT, Chance, ask, flaky, open_flaky, push_down, talk  # noqa: E402

MORE = {"gemma3": (12, 13)}  # device pages: its beams need them in small steps
LOOK = 0.05  # seconds in which a step that does not wait would run


@pytest.fixture(autouse=True)
def pages_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.tiers.move_queue.PIECE_BYTES", 1)


@contextmanager
def forwards(engine: Engine) -> Iterator[Event]:
    """Set by every run of the model."""
    ran = Event()
    hook = engine.model.module.register_forward_pre_hook(lambda *_: ran.set())
    try:
        yield ran
    finally:
        hook.remove()


class Slow(FlakyTier):
    """Each page takes its time: until the model runs, which it should not, or so many seconds."""

    ran: Event | None = None
    seconds = LOOK
    reads, writes = True, True
    overtaken = 0  # pages that the model did not wait for

    def _rest(self, wanted: bool) -> None:
        if wanted and self.ran is not None:
            self.ran.clear()
            self.overtaken += self.ran.wait(self.seconds)

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        self._rest(self.reads)
        super().read(group, slots, out)

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        self._rest(self.writes)
        super().write(group, slots, data)


class Stuck(FlakyTier):
    """Writes no more than so many pages before the gate is opened."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.gate, self.most, self.late = Event(), 1000, False
        self.breaks = False  # those behind the gate fail

    def open_behind(self, run: Run) -> None:
        """The gate, when it is done."""
        until(lambda: run.done)
        self.gate.set()

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        self.most -= len(slots)
        if self.most < 0 and not self.late:
            self.late = not self.gate.wait(PATIENCE / 8)
        if self.most < 0:
            self.full |= {(0, slot) for slot in slots if self.breaks}
        super().write(group, slots, data)


def test_a_step_does_not_wait_for_offloads_that_it_does_not_touch() -> None:
    """A prompt of ten blocks takes the slots of ten pages that go down; its first step writes two of them."""
    tier = flaky("llama", Stuck)
    engine = open_flaky("llama", tier, max_num_tokens=16)
    first = ask(engine, words(0, 70))
    push_down(engine)
    tier.most = 2
    run = engine.submit(words(30, 79), first.sampling)
    report = step(engine)
    assert report is not None and report.num_tokens == 16
    until(lambda: tier.most < 0, "the third page")
    assert len(engine.plans) == 1 and not tier.gate.is_set(), "the others are still to be written"
    (branch,) = run.branches
    assert branch.sequence is not None and branch.sequence.ran == 16
    tier.gate.set()
    finish(engine)
    assert not len(engine.plans) and not tier.late
    assert_exact("llama", [first, run, ask(engine, words(0, 70)), ask(engine, words(100, 70))])
    engine.close()


def test_an_offload_that_fails_beside_a_step_costs_its_page_and_nothing_else() -> None:
    tier = flaky("llama", Stuck)
    engine = open_flaky("llama", tier, max_num_tokens=16)
    push_down(engine)
    tier.most, tier.breaks = 2, True
    run = engine.submit(words(30, 79), plain(4))
    step(engine)
    assert len(engine.plans) == 1 and not engine.pages.mover.stats().num_failed
    tier.gate.set()
    finish(engine)
    num_failed = engine.pages.mover.stats().num_failed
    tier.breaks, tier.full = False, set()
    assert num_failed >= 8 and not tier.late
    assert_exact("llama", [run, ask(engine, words(100, 70)), ask(engine, words(170, 70))])
    assert engine.pages.mover.stats().num_failed == num_failed, "a page is found that was never written"
    engine.close()


def test_who_acts_between_two_steps_finds_every_page_where_the_cache_says() -> None:
    tier = flaky("llama", Stuck)
    engine = open_flaky("llama", tier, max_num_tokens=16)
    first = ask(engine, words(0, 70))
    push_down(engine)
    tier.most, tier.breaks = 2, True
    run = engine.submit(words(30, 79), first.sampling)
    step(engine)
    until(lambda: tier.most < 0, "the third page")
    assert len(engine.plans) == 1
    with Loop(engine) as loop, Crew() as crew:
        found = crew.start(loop.call, lambda engine: len(engine.cache.open_plans()))
        tier.gate.set()
        assert found.result() == 0 and not tier.late
        until(lambda: run.done)
        assert_exact("llama", [first, run])


def test_no_plan_is_open_when_the_last_run_has_ended() -> None:
    """It ends with the read of a step in flight; moves for one that was cancelled are on their way still."""
    tier = flaky("llama", Stuck)
    engine = open_flaky("llama", tier, max_num_tokens=16, overlap=True)
    push_down(engine)
    run = engine.submit(words(0, 9), plain(6))
    step(engine)
    tier.most = 2
    engine.submit(words(30, 70), plain(4))
    step(engine)
    until(lambda: tier.most < 0, "the third page")
    engine.cancel(next(one for one in engine.runs.values() if one is not run))
    with Crew() as crew:
        crew.start(tier.open_behind, run)
        finish(engine)
    assert run.done and not tier.late and not len(engine.plans) and not engine.cache.open_plans()
    assert_exact("llama", [run])
    engine.close()


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_next"])
def test_a_step_waits_for_every_page_that_it_reads(name: str) -> None:
    tier = flaky(name, Slow)
    engine = open_flaky(name, tier)
    first = ask(engine, PROMPT)
    push_down(engine)
    with forwards(engine) as tier.ran:
        tier.writes = False
        again = ask(engine, PROMPT)
    tier.ran = None
    assert not tier.overtaken and again.reused >= 40 and "read" in [call for call, _ in tier.calls]
    assert_exact(name, [first, again])
    engine.close()


def test_a_step_waits_for_what_it_overwrites() -> None:
    """Every page of a prompt that comes in pushes one down, and the step writes them all."""
    tier = flaky("llama", Slow)
    engine = open_flaky("llama", tier, max_num_tokens=96)
    first = ask(engine, words(0, 50))
    push_down(engine)
    with forwards(engine) as tier.ran:
        tier.seconds = LOOK / 4
        run = engine.submit(words(30, 79), first.sampling)
        step(engine)
    tier.ran = None
    assert not tier.overtaken
    finish(engine)
    assert_exact("llama", [first, run, ask(engine, words(170, 70))])
    engine.close()


class SlowAndFlaky(Chance):
    """Pages that take a while, more or less, and fail by chance."""

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        self._take_time()
        super().read(group, slots, out)

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        self._take_time()
        super().write(group, slots, data)

    def _take_time(self) -> None:
        Event().wait(random.Random(self.num_failed).random() * 0.004)


@pytest.mark.parametrize(("name", "chance"), [("llama", 0.0), ("llama", 0.1), ("gemma3", 0.1), ("qwen3_next", 0.0)])
def test_talks_over_slow_memory(name: str, chance: float) -> None:
    """Some steps run while pages are under way, and every answer is exact."""
    tier = flaky(name, SlowAndFlaky, seed=2, reads=chance, writes=chance)
    engine = open_flaky(name, tier, MORE.get(name), max_num_tokens=24, overlap=True)
    beside: list[int] = []
    hook = engine.model.module.register_forward_pre_hook(lambda *_: beside.append(len(engine.plans)))
    assert_exact(name, talk(engine, 3))
    hook.remove()
    assert any(beside), "no step ran beside a move"
    assert engine.cache.stats().offloaded and bool(engine.pages.mover.stats().num_failed) == bool(chance)
    engine.close()


def test_which_moves_a_step_waits_for() -> None:
    """A row reads blocks 0 to 2, writes 2 and 3, and has pages behind that."""
    engine = open_flaky("llama", flaky("llama"))
    engine.submit(words(0, 45), plain(9))
    step(engine)
    row = np.array([0], np.int32)
    table = engine.cache.table(0)[0]
    other = next(slot for slot in range(DEVICE["llama"][0]) if slot not in table)
    slots = StepSlots(engine.cache, row, np.array([20]), np.array([30]))
    read, late = int(table[0]), int(table[5])
    written = [int(table[2]), int(table[3])]
    moves = plan_of(
        0,
        *((Kind.OFFLOAD, 0, (0, slot), (1, 50), 8) for slot in (read, *written, late, other)),
        *((Kind.ONBOARD, 0, (1, slot), (0, slot), 8) for slot in (read, *written, late, other)),
        *((Kind.EXCHANGE, 0, (0, slot), (1, 3), 8) for slot in (read, written[0], other)),
        *((Kind.EXCHANGE, 0, (1, 3), (0, slot), 8) for slot in (read, written[0], other)),
        (Kind.COPY, 0, (0, read), (0, other), 8),
        (Kind.COPY, 0, (0, other), (0, read), 8),
        (Kind.OFFLOAD, 0, (1, 59), (1, written[0]), 8),
    ).moves
    assert slots.awaited(moves) == [1, 2, 5, 6, 7, 10, 11, 13, 14, 17]
    finish(engine)
    engine.close()
