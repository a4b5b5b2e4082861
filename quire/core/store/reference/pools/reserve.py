"""What a row has of one group, what it asks for, and its reserve.

Pages that a row may still ask for before its prompt is finished count as taken already. Owns the reserve that follows
from what a row has: the pages of its own that it may have at once (`peak`) less those it has. A page that leaves the
row is room for all and reserved again at once, so the sum stays. Owns the records of what is asked, and their checks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.core.store.interface import Int16Array, Int64Array
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.tree.node import DEFAULT_PRIORITY, NEVER, Page
from quire.core.store.reuse import ONCE


class Stake:
    """What a row has of one group besides its columns."""

    __slots__ = ("base", "current", "followed", "fresh", "front", "kept", "own", "peak", "shown", "written")

    def __init__(self, front: int, base: int) -> None:
        self.front = front  # first column that has not left
        self.shown = base  # columns before it have been offered to the tree
        self.base = base  # columns from here on are the row's own
        self.own = 0  # pages had in them
        self.kept = 0  # own pages that holds keep when they leave: as many more are reserved
        self.peak = 0  # own pages it may have at once; 0: nothing is reserved
        self.written = 0  # of a state group: what is in columns before it, a step of the prompt has written itself
        self.fresh = ONCE  # class of its new pages in the adaptive order
        self.followed = False  # a hint said that the last known page of its prompt comes back; of the adaptive order
        self.current: Page | None = None  # of a state group: the state after the last token

    @property
    def reserve(self) -> int:
        """Pages still to come."""
        return max(0, self.peak - self.own) if self.peak > 0 else 0


def count_own(pool: Pool, stake: Stake, change: int) -> None:
    """The row has so many more pages of its own."""
    before = stake.reserve
    stake.own += change
    pool.room.reserved += stake.reserve - before


def set_peak(pool: Pool, stake: Stake, peak: int) -> None:
    """The row may have so many pages of its own at once; 0 ends the reserve."""
    before = stake.reserve
    stake.kept = stake.kept if peak else 0
    stake.peak = peak + stake.kept
    pool.room.reserved += stake.reserve - before


def keep_more(pool: Pool, stake: Stake, pages: int) -> None:
    """So many of its own pages will not be room again when they leave."""
    before = stake.reserve
    stake.kept += pages
    stake.peak += pages
    pool.room.reserved += stake.reserve - before


class Ask(NamedTuple):
    """What a row shall have of one group."""

    first: int  # columns from here
    stop: int  # to here shall have pages
    peak: int  # own pages it may have at once until the prompt is finished; 0: none are reserved
    spare: int  # pages kept aside for forks


@dataclass(frozen=True, slots=True)
class Retention:
    """Priority and duration asked per block; -1, or beyond the arrays: nothing is asked."""

    priorities: Int16Array | None
    durations: Int64Array | None

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


def check_asks(asks: Sequence[Ask], retention: Retention, num_groups: int, columns: int) -> None:
    if len(asks) != num_groups:
        raise ValueError(f"{len(asks)} asks given for {num_groups} groups")
    for ask in asks:
        if not 0 <= ask.first <= ask.stop <= columns:
            raise ValueError(f"columns [{ask.first}, {ask.stop}) asked of a row that has {columns}")
        if min(ask.peak, ask.spare) < 0:
            raise ValueError(f"{ask.peak} pages reserved and {ask.spare} to spare, none can be below 0")
    retention.check(max(ask.stop for ask in asks))
