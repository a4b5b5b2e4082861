"""Pipeline stages: a model in three parts, each with its own layers' KV; a step is in one of them at a time.

stage 0   step 1   step 2   step 3   ...        chunk 2 of a prompt is handed out while chunk 1 is in stage 1, and
stage 1            step 1   step 2   ...        chunk 3 while chunk 1 is in stage 2: none of them is committed
stage 2                     step 1   ...        when step 1 has left stage 2 it is committed
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire import Cache, LaunchedStep, LayerGroup, Request, Sequence, check
from quire.core.records.request import Int32
from quire.core.store import StoreName
from tests.core.conftest import seq
from tests.core.sequences.test_in_flight import edges, found, hybrid, ints

STAGES, BLOCK = 3, 4


@dataclass
class Work:
    """A step on its way: where the tokens of its rows lie, as the tables said when it was launched."""

    step: LaunchedStep
    tables: Int32
    stage: int = 0


@dataclass
class Pipeline:
    """The device. A stage writes its own KV of a token, and reads that of the tokens before, by their slots."""

    cache: Cache
    texts: dict[int, list[int]]  # by row
    window: int = 1000  # tokens that are read
    flying: deque[Work] = field(default_factory=deque)
    kv: NDArray[np.int64] = field(init=False)  # [stage, slot, place in the block]

    def __post_init__(self) -> None:
        slots = self.cache.config.slots_of(0, 0)
        self.kv = np.full((STAGES, slots, BLOCK), -1, np.int64)

    def launch(self) -> None:
        """What was handed out enters the first stage; what is in others goes on by one."""
        self.flying.append(Work(self.cache.launch(), self.cache.table().copy()))
        for work in reversed(self.flying):
            self._compute(work)
            work.stage += 1
        assert [work.stage for work in self.flying] == list(range(len(self.flying), 0, -1))

    def _compute(self, work: Work) -> None:
        step = work.step
        for row, start, end in zip(step.rows.tolist(), step.starts.tolist(), step.ends.tolist(), strict=True):
            memory = self.kv[work.stage]
            first = max(0, start - self.window + 1)
            where = [(int(work.tables[row, at // BLOCK]), at % BLOCK) for at in range(first, end)]
            assert all(slot >= 0 for slot, _ in where)
            text, old = self.texts[row][first:end], start - first
            assert [int(memory[place]) for place in where[:old]] == text[:old], "what this stage wrote before"
            for place, token in zip(where[old:], text[old:], strict=True):
                memory[place] = token

    def land(self, tokens: Int32 | None = None) -> None:
        """The oldest step has left the last stage."""
        work = self.flying.popleft()
        assert work.stage == STAGES
        self.cache.commit(work.step, tokens=tokens)
        check(self.cache)


def next_part(cache: Cache, one: Sequence) -> None:
    cache.add_sequence_batch([], max_chunk=8, continuing=[one])


def begun(cache: Cache, length: int, window: int = 1000) -> tuple[Pipeline, Sequence]:
    """A prompt of three chunks, each in a stage of its own."""
    (one,) = cache.add_sequence_batch([Request("a", seq(0, length))], max_chunk=8).sequences
    pipeline = Pipeline(cache, {one.row: seq(0, length + 8).tolist()}, window)
    pipeline.launch()
    while one.ran < min(length, 8 * STAGES):
        next_part(cache, one)
        check(cache)
        pipeline.launch()
    return pipeline, one


def test_a_chunk_is_handed_out_while_others_are_in_later_stages(store: StoreName) -> None:
    cache = hybrid(store, (LayerGroup("all"),), (16,))
    pipeline, one = begun(cache, 29)
    assert [(work.step.starts.tolist(), work.stage) for work in pipeline.flying] == [([0], 3), ([8], 2), ([16], 1)]
    assert edges(one) == (0, 29, 24, 32) and found(cache, seq(0, 29)) == 0
    pipeline.land()
    assert one.computed == 8 == found(cache, seq(0, 29))
    next_part(cache, one)  # 24 to 29: the prompt's last chunk
    pipeline.launch()
    pipeline.land()
    for nth in range(5):  # each answers with what the one three steps before has made
        assert cache.grow(one) is not None
        pipeline.launch()
        pipeline.land(ints(28 + nth) if nth else None)  # the prompt's third chunk makes none
    assert one.length > 29 and one.ran == 34 and len(pipeline.flying) == 2


def test_slots_of_a_window_and_of_who_has_ended_stay_until_the_last_stage(store: StoreName) -> None:
    """Pages that have left the window are read by later stages until the commit, and then are another sequence's."""
    cache = hybrid(store, (LayerGroup("near", window=6),), (11,), max_chunk=8)
    pipeline, one = begun(cache, 24, window=6)
    mine = one.slots().tolist()
    assert len(mine) == 6 and -1 not in mine, "nothing has left: no step is committed"
    cache.release(one, store=False)
    (two,) = cache.add_sequence_batch([Request("b", seq(500, 28))], max_chunk=8).sequences
    pipeline.texts[two.row] = seq(500, 28).tolist()
    assert two.row != one.row
    for _ in range(STAGES):
        first = max(0, int(pipeline.flying[0].step.starts[0]) - 5) // BLOCK
        assert not {*mine[first:]} & {*two.slots().tolist()}, "later stages read and write them"
        pipeline.land()
        pipeline.launch()
        next_part(cache, two)
    assert two.ran == 28 and {*mine} & {*two.slots().tolist()}, "the last step that had them is committed"


def test_a_failure_in_the_second_stage_takes_back_that_chunk_and_those_behind_it(store: StoreName) -> None:
    cache = hybrid(store, (LayerGroup("all"),), (16,))
    pipeline, one = begun(cache, 29)
    (setback,) = cache.fail(pipeline.flying[1].step)
    check(cache)
    assert (setback.holder, setback.old_start, setback.start, setback.lost) == (one, 24, 8, False)
    while len(pipeline.flying) > 1:
        pipeline.flying.pop()
    pipeline.land()
    assert one.computed == 8 == one.ran
    for _ in range(3):
        next_part(cache, one)
        pipeline.launch()
    assert one.ran == 29 and [work.stage for work in pipeline.flying] == [3, 2, 1]
    pipeline.land()
    assert found(cache, seq(0, 29)) == 16
