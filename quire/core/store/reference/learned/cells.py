"""What the adaptive order knows of one group: its clock, the counts it learns from, the order it has learned, ghosts.

Owns the counts by cell: hits (blocks that an admission found, or found to be gone) and lost (ghosts that fell out
unused). Knows nothing of lists, nor of the tree.
"""

from collections.abc import Iterable

import numpy as np

from quire.core.store.interface import Int64Array
from quire.core.store.reference.keys.chain import decode
from quire.core.store.reference.learned.ages import age_bin, cell_number, class_of, told_class
from quire.core.store.reference.learned.ghosts import Ghost, Ghosts, Key, rest_of
from quire.core.store.reference.learned.rival import Rival
from quire.core.store.reference.tree.node import Node, Page
from quire.core.store.reuse import (
    AGING,
    EVICTED,
    MAX_CENSUS,
    MAX_USES,
    NUM_AGES,
    NUM_CELLS,
    NUM_REUSE_CLASSES,
    ONCE,
)  # fmt: skip


class Cells:
    """What the order of one pool has learned."""

    __slots__ = (
        "_aging_after", "_due_after", "aged", "asked", "falls", "fresh", "ghosts", "hits", "inserted", "lost", "made",
        "met", "met_class", "now", "recency", "rival",
    )  # fmt: skip

    def __init__(self, num_slots: int, ghosts: int, num_pages: int) -> None:
        self.now = 0  # the latest time given to the store; it never goes back
        self.asked = -1  # when the last admission was: each is later than the one before, whatever the clock says
        self.aged = 0  # when pages last went on to their next bins: they are listed by their ages then
        self.made = 0  # pages made since
        self.fresh = ONCE  # class of the pages that are being made: that of the row they are for
        self.hits = np.zeros((NUM_REUSE_CLASSES, NUM_AGES), np.int64)
        self.lost = np.zeros((NUM_REUSE_CLASSES, NUM_AGES), np.int64)
        self.inserted = 0  # pages that took a place in the tree since the order was learned
        self._due_after = (num_slots + 1) // 2
        self._aging_after = -(-num_slots // AGING)
        self.ghosts = Ghosts(ghosts * num_slots)
        self.rival = Rival(num_pages)
        self.falls = 0  # how often it fell back to age alone since an order was learned
        self.recency = True  # all pages are listed as if of one class: so the oldest go first
        self.met_class = ONCE  # of the ghost that was met last
        self.met: dict[int, int] = {}  # columns of the row in hand whose blocks were there before -> uses with this one

    @property
    def is_due(self) -> bool:
        """Whether there is enough new to learn from."""
        return self.inserted >= self._due_after

    def next_admission(self) -> None:
        """An admission is at least a tick later than the one before: on a clock that stands, ages count admissions."""
        self.now = self.asked = max(self.now, self.asked + 1)

    def cell(self, page: Page) -> int:
        """The cell a page belongs to now."""
        return cell_number(page.reuse, age_bin(self.now - page.used))

    def tell(self, page: Page, back: int) -> bool:
        """A hint says when it comes back (0: unknown); whether that changes its class."""
        before, page.reuse = page.reuse, told_class(back, page.uses, page.reuse)
        return page.reuse != before

    def begin(self, page: Page, uses: int = 1) -> None:
        """A page is made; `uses`: those of its block, this one included."""
        page.uses, page.reuse, page.used = uses, class_of(uses, self.fresh), self.now

    def use(self, page: Page) -> None:
        """An admission found the page."""
        if page.watched and page.node is not None:
            self.rival.find_watched(key_of(page, page.node))
        self.hits[page.reuse, age_bin(self.now - page.used)] += 1
        self.begin(page, min(page.uses + 1, MAX_USES))

    def meet(self, column: int, key: Key) -> bool:
        """An admission will make a page for a column: whether its block was there before; noted if so."""
        ghost = self.ghosts.take_ghost(key)
        if ghost is not None:
            self.rival.miss_watched(key)
        if ghost is None:
            return False
        self.hits[ghost.reuse, age_bin(self.now - ghost.used)] += 1
        self.met[column] = min(ghost.uses + 1, MAX_USES)
        self.met_class = ghost.reuse
        return True

    def begin_watch(self, page: Page, node: Node) -> None:
        """A page has come to the node of a full block; from now on it is watched, or not."""
        if self.rival.chooses(decode(node.identity)[0]):
            page.watched = self.rival.come_watched(key_of(page, node))

    def end_watch(self, page: Page) -> None:
        """A page leaves its node."""
        self.rival.watched -= page.watched
        page.watched = False

    def remember(self, page: Page, key: Key, admission: int, why: int = EVICTED) -> None:
        """A page is gone permanently."""
        ghost = Ghost(key, page.used, rest_of(page.used, self.now), why, page.uses, page.reuse, admission)
        old = self.ghosts.add(ghost)
        if old is not None:
            self.lost[old.reuse, age_bin(self.now - old.used)] += 1

    def is_aging(self) -> bool:
        """Whether pages shall move to their next bins: often enough to matter for evictions, whatever the time."""
        if self.made < self._aging_after:
            return False
        self.made, self.aged = 0, self.now
        return True

    def take_counts(self, pages: Iterable[Page]) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """Hits and lost since the last call, and how many pages and ghosts there are, by cell; then the rival's:
        gained and missed since the last call, pages watched."""
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
        rival = np.array([self.rival.gained, self.rival.missed, self.rival.watched], np.int64)
        taken = self.hits.copy(), self.lost.copy(), census.reshape(self.hits.shape), rival
        self.hits[:], self.lost[:], self.inserted = 0, 0, 0
        self.rival.gained = self.rival.missed = 0
        return taken


def key_of(page: Page, node: Node) -> Key:
    """The key by which its block is known once the page is gone."""
    return (node.root.hash, node.key, page.group)


def stride(number: int) -> int:
    """The stride at which a census samples so many."""
    return -(-number // MAX_CENSUS) or 1
