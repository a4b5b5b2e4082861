"""Chunks: the columns that a part of a prompt needs, filled when that part is about to be computed.

Owns what is asked for one group, the retention of blocks, and the filling of holes. A later chunk may use what its row
was promised. Knows nothing of hits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quire.core.store.twin.evict import new_page
from quire.core.store.twin.page import DEFAULT_PRIORITY, NEVER
from quire.core.store.twin.parts import NO_ROOM, Parts
from quire.core.store.twin.pool import MISSED, Pool
from quire.core.store.twin.promise import count_own, promise

Priorities = npt.NDArray[np.int16]
Durations = npt.NDArray[np.int64]


class Ask(NamedTuple):
    """What a row shall have of one group."""

    first: int  # columns from here
    stop: int  # to here shall have pages
    peak: int  # own pages promised until the prompt is finished; 0: no promise
    spare: int  # pages kept aside for forks


@dataclass(frozen=True, slots=True)
class Retention:
    """Priority and duration asked per block; -1, or beyond the arrays: nothing is asked."""

    priorities: Priorities | None
    durations: Durations | None

    def asked(self, block: int) -> tuple[int, int] | None:
        if self.priorities is None or block >= len(self.priorities) or self.priorities[block] < 0:
            return None
        return int(self.priorities[block]), NEVER if self.durations is None else int(self.durations[block])

    def of_new(self, block: int) -> tuple[int, int]:
        """Of a page made for a block."""
        return self.asked(block) or (DEFAULT_PRIORITY, NEVER)

    def check(self, blocks: int) -> None:
        for given in (self.priorities, self.durations):
            if given is not None and len(given) < blocks:
                raise ValueError(f"retention of {len(given)} blocks given, {blocks} asked")


def check_asks(parts: Parts, asks: Sequence[Ask], retention: Retention) -> None:
    columns = parts.table.columns
    if len(asks) != len(parts.pools):
        raise ValueError(f"{len(asks)} asks given for {len(parts.pools)} groups")
    for ask in asks:
        if not 0 <= ask.first <= ask.stop <= columns:
            raise ValueError(f"columns [{ask.first}, {ask.stop}) asked of a row that has {columns}")
        if min(ask.peak, ask.spare) < 0:
            raise ValueError(f"{ask.peak} pages promised and {ask.spare} to spare, none can be below 0")
    retention.check(max(ask.stop for ask in asks))


def extend(parts: Parts, number: int, asks: Sequence[Ask], retention: Retention) -> int:
    """Give a row the columns of its next chunk; pages taken, -1 without room."""
    row, table = parts.table.row(number), parts.table
    check_asks(parts, asks, retention)
    for pool, stake, ask in zip(parts.pools, row.stakes, asks, strict=True):
        holes = table.pages_in(pool.group, number, range(ask.first, ask.stop)).count(None)
        if pool.lacks(holes, stake.reserve):
            return NO_ROOM
    taken = 0
    for pool, stake, ask in zip(parts.pools, row.stakes, asks, strict=True):
        before, capacity = pool.counters.copy(), table.capacity[pool.group]
        taken += fill(parts, pool, number, range(ask.first, ask.stop), retention)
        capacity[number] = max(int(capacity[number]), ask.stop)
        promise(pool, stake, ask.peak)
        table.row_counters[pool.group][number] += pool.counters - before
    return taken


def check_end(parts: Parts, number: int, end: int) -> None:
    table = parts.table
    length = len(table.row(number).chain)
    if not int(table.computed[number]) <= end <= length:
        raise ValueError(f"row {number} has {length} tokens, it cannot be handed out up to {end}")


def hand_out(parts: Parts, number: int, end: int) -> None:
    """The tokens before `end` are being computed."""
    check_end(parts, number, end)
    parts.table.handed[number] = end


def fill(parts: Parts, pool: Pool, number: int, columns: Iterable[int], retention: Retention) -> int:
    """New pages for columns without one; how many."""
    table, stake = parts.table, parts.table.row(number).stakes[pool.group]
    holes = [column for column in columns if table.page(pool.group, number, column) is None]
    for column in holes:
        table.put(pool.group, number, column, new_page(pool, *retention.of_new(column)))
        pool.count(MISSED)
        count_own(pool, stake, 1)
    return len(holes)
