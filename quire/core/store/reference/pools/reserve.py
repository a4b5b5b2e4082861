"""Reserve: pages that a row may still ask for before its prompt is finished count as taken already.

Owns what a row has of one group, and the reserve that follows from it: the pages of its own that it may have at once
(`peak`) less those it has. A page that leaves the row is room for all and reserved again at once, so the sum stays.
"""

from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.tree.node import Page
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
