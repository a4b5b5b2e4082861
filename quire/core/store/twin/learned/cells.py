"""What the adaptive order knows of one group: its clock, the counts it learns from, the order it has learned, ghosts.

Owns the counts by cell: hits (blocks that an admission found, or found to be gone) and lost (ghosts that fell out
unused). Knows nothing of lists, nor of the tree.
"""

from collections.abc import Iterable

import numpy as np

from quire.core.store.interface import Int64Array
from quire.core.store.reuse import (
    AGING_TICKS,
    EVICTED,
    MAX_CENSUS,
    MAX_USES,
    NUM_AGES,
    NUM_CELLS,
    NUM_REUSE_CLASSES,
    ONCE,
)  # fmt: skip
from quire.core.store.twin.learned.ages import age_bin, cell_number, class_of
from quire.core.store.twin.learned.ghosts import Ghost, Ghosts, Key, rest_of
from quire.core.store.twin.tree.node import Page


class Cells:
    """What the order of one pool has learned."""

    __slots__ = ("_due_after", "aged", "fresh", "ghosts", "hits", "inserted", "lost", "met", "now")

    def __init__(self, num_slots: int, ghosts: int) -> None:
        self.now = 0  # the last time the store was told
        self.aged = 0  # when pages last went on to their next bins
        self.fresh = ONCE  # class of the pages that are being made: that of the row they are for
        self.hits = np.zeros((NUM_REUSE_CLASSES, NUM_AGES), np.int64)
        self.lost = np.zeros((NUM_REUSE_CLASSES, NUM_AGES), np.int64)
        self.inserted = 0  # pages that took a place in the tree since the order was learned
        self._due_after = (num_slots + 1) // 2
        self.ghosts = Ghosts(ghosts * num_slots)
        self.met: dict[int, int] = {}  # columns of the row in hand whose blocks were there before -> uses with this one

    @property
    def is_due(self) -> bool:
        """Whether there is enough new to learn from."""
        return self.inserted >= self._due_after

    def cell(self, page: Page) -> int:
        """The cell a page belongs to now."""
        return cell_number(page.reuse, age_bin(self.now - page.used))

    def begin(self, page: Page, uses: int = 1) -> None:
        """A page is made; its block is used for the so-manieth time."""
        page.uses, page.reuse, page.used = uses, class_of(uses, self.fresh), self.now

    def use(self, page: Page) -> None:
        """An admission found the page."""
        self.hits[page.reuse, age_bin(self.now - page.used)] += 1
        self.begin(page, min(page.uses + 1, MAX_USES))

    def meet(self, column: int, key: Key) -> bool:
        """An admission will make a page for a column: whether its block was there before; noted if so."""
        ghost = self.ghosts.take_ghost(key)
        if ghost is None:
            return False
        self.hits[ghost.reuse, age_bin(self.now - ghost.used)] += 1
        self.met[column] = min(ghost.uses + 1, MAX_USES)
        return True

    def remember(self, page: Page, key: Key, admission: int, why: int = EVICTED) -> None:
        """A page is gone for good."""
        ghost = Ghost(key, page.used, rest_of(page.used, self.now), why, page.uses, page.reuse, admission)
        old = self.ghosts.add(ghost)
        if old is not None:
            self.lost[old.reuse, age_bin(self.now - old.used)] += 1

    def is_aging(self, now: int) -> bool:
        """Whether pages shall go on to their bins."""
        if 0 <= now - self.aged < AGING_TICKS:
            return False
        self.aged = now
        return True

    def take_counts(self, pages: Iterable[Page]) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Hits and lost since the last call, and how many pages and ghosts there are, by cell."""
        census = np.zeros(NUM_CELLS, np.int64)
        resident = list(pages)
        step = stride(len(resident))
        for page in resident[::step]:
            if page.node is not None:
                census[self.cell(page)] += step
        step = stride(self.ghosts.room)
        for ghost in self.ghosts.places[::step]:
            if ghost is not None:
                census[cell_number(ghost.reuse, age_bin(self.now - ghost.used))] += step
        taken = self.hits.copy(), self.lost.copy(), census.reshape(self.hits.shape)
        self.hits[:], self.lost[:], self.inserted = 0, 0, 0
        return taken


def stride(number: int) -> int:
    """Every how-manieth of so many a census looks at."""
    return -(-number // MAX_CENSUS) or 1
