"""SlotsToErase: slots whose bytes are to be overwritten. Owns the list; knows no order and no log.

forgotten   their pages were forgotten: their blocks leave the log too
stray       a page was written there that the cache no longer has: it was forgotten on its way down
"""

from __future__ import annotations

import errno
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from quire.core.records.lasting import LastingChanges, LastingPages
from quire.tiers.base import TierError
from quire.tiers.disk.pages.slots import Unanswered
from quire.tiers.disk.pages.tier import DiskTier
from quire.tiers.disk.ranks.ranked_tier import RankedTier

Slot = tuple[int, int]  # first group of the pool, slot
Column = NDArray[np.int32]


class SlotsToErase:
    """The list. Only `begin` is called on other threads than the keeper's."""

    def __init__(self, first_of: tuple[int, ...]) -> None:
        self._first_of = first_of
        self._lock = Lock()  # guards the one below
        self._forgetting = 0  # scopes that are being forgotten
        self.forgotten: set[Slot] = set()
        self._stray: set[Slot] = set()

    def begin(self) -> None:
        """A scope is being forgotten: slots that are freed from now on may be its own."""
        with self._lock:
            self._forgetting += 1

    def end(self) -> None:
        """All slots that it freed have been reported."""
        with self._lock:
            self._forgetting -= 1

    def freed(self, changes: LastingChanges) -> None:
        """Slots have become free. Called after these changes were taken: a caller that forgets has begun before."""
        with self._lock:
            if not self._forgetting:
                return
        self.forgotten |= self._slots(changes.freed_group, changes.freed_slot) - self._stored(changes)

    def written(self, group: Column, slot: Column, changes: LastingChanges) -> None:
        """Pages were written there; those that the cache did not keep are to be overwritten."""
        self._stray |= self._slots(group, slot) - self._stored(changes)

    def pages(self) -> LastingPages:
        """The forgotten slots."""
        group, slot = np.array(sorted(self.forgotten), np.int32).reshape(-1, 2).T
        return LastingPages(group, slot, np.empty(0, np.int64))

    def erase_stray(self, tier: DiskTier | RankedTier) -> None:
        """Overwrite stray slots; OSError: not all of them."""
        _erase(tier, self._stray)
        self._stray = set()

    def erase_forgotten(self, tier: DiskTier | RankedTier) -> None:
        """Overwrite forgotten slots; they stay on the list until they have left the log too."""
        _erase(tier, self.forgotten)

    def _stored(self, changes: LastingChanges) -> set[Slot]:
        """Slots that have a page again, perhaps of another group."""
        return self._slots(changes.pages.group, changes.pages.slot)

    def _slots(self, group: Column, slot: Column) -> set[Slot]:
        pairs = zip(group.tolist(), slot.tolist(), strict=True)
        return {(self._first_of[number], place) for number, place in pairs}


def _erase(tier: DiskTier | RankedTier, slots: set[Slot]) -> None:
    for group in sorted({group for group, _ in slots}):
        try:
            tier.erase(group, sorted(slot for where, slot in slots if where == group))
        except TierError as bad:
            if all(isinstance(why, Unanswered) for why in bad.failed.values()):
                raise TimeoutError(str(bad)) from bad
            raise OSError(errno.EIO, str(bad)) from bad
