"""StepSlots: the device slots that a step reads and writes. Owns which moves it must wait for. Knows no plans and waits
for nothing.

    a row    |p p p p p p|w w|. . . .     p: pages it reads, w: it writes, .: of its later steps
    waits    for what comes into p and w, and for what is copied out of w; an offload out of p or . may take its time
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.core.admission.batch import Snapshot
from quire.core.cache import Cache
from quire.core.records.plan import Kind, MoveColumn, Moves
from quire.core.records.request import Int32
from quire.engine.step.runs.step_work import Turn

Numbers = NDArray[np.int64]


class StepSlots:
    """Of rows that compute from `starts` up to `ends`, which is as far as they read, and of states they write."""

    def __init__(
        self, cache: Cache, rows: Int32, starts: Numbers, ends: Numbers, snapshots: Sequence[Snapshot] = ()
    ) -> None:
        config, size = cache.config, cache.config.block_size
        self._pool_of = np.array(config.pool_of, np.int64)
        slots = [0] * config.num_pools
        for group, pool in enumerate(config.pool_of):
            slots[pool] = config.slots_of(0, group)
        self._first = np.cumsum([0, *slots[:-1]])
        self._read, self._written = np.zeros((2, sum(slots)), bool)
        first, last = starts // size, (ends + size - 1) // size
        for group, layer in enumerate(config.groups):
            if layer.current:
                self._mark(self._written, group, cache.state_table(group)[rows])
                continue
            if layer.cross:
                self._mark(self._read, group, cache.table(group)[rows])
                continue
            table = cache.table(group)[rows, : int(last.max(initial=0))]
            block = np.arange(table.shape[1])
            below = block < last[:, None]
            self._mark(self._read, group, table[below])
            self._mark(self._written, group, table[below & (block >= first[:, None])])
        for one in snapshots:
            self._mark(self._written, one.group, np.array([one.slot]))

    def _mark(self, where: NDArray[np.bool_], group: int, slots: NDArray[np.integer]) -> None:
        where[self._first[self._pool_of[group]] + slots[slots >= 0]] = True

    def awaited(self, moves: Moves) -> list[int]:
        """Moves that the step must wait for: those that fill a slot it touches, or read one that it writes."""
        wide = moves.astype(np.int64)
        base = self._first[self._pool_of[wide[:, MoveColumn.GROUP]]]
        filled = (wide[:, MoveColumn.DST_TIER] == 0) & self._touched(base + wide[:, MoveColumn.DST_SLOT])
        source = base + wide[:, MoveColumn.SRC_SLOT]
        swaps, here = wide[:, MoveColumn.KIND] == Kind.EXCHANGE, wide[:, MoveColumn.SRC_TIER] == 0
        read = here & np.where(swaps, self._touched(source), self._at(self._written, source))
        places: list[int] = np.flatnonzero(filled | read).tolist()
        return places

    def _touched(self, places: Numbers) -> NDArray[np.bool_]:
        return self._at(self._read, places) | self._at(self._written, places)

    def _at(self, marks: NDArray[np.bool_], places: Numbers) -> NDArray[np.bool_]:
        """Slots of colder tiers may lie behind the last: what is said of those counts nothing."""
        found: NDArray[np.bool_] = marks[np.minimum(places, len(marks) - 1)]
        return found


def slots_of(cache: Cache, turn: Turn, plain: Int32) -> StepSlots:
    """Of a step as it was decided, of which these are the plain rows."""
    works = [(work, work.branch.sequence) for work in turn.works.values() if work.branch.sequence is not None]
    ran = cache.progress().ran[plain].astype(np.int64)
    starts = np.concatenate([ran - 1, np.array([work.span.start for work, _ in works], np.int64)])
    ends = np.concatenate([ran, np.array([work.span.end for work, _ in works], np.int64)])
    rows = np.concatenate([plain, np.array([sequence.row for _, sequence in works], np.int32)])
    return StepSlots(cache, rows, starts, ends, [one for work, _ in works for one in work.snapshots])
