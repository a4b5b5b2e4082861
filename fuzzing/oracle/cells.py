"""The adaptive order of one pool by definition: classes, ages, ghosts, which page is covered. No list is kept.

The learning step itself is the cache's: what it is given is counted here, page by page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fuzzing.oracle.page import Page
from fuzzing.world.plain import TICKS, Path
from quire.core.state.learner import Learner
from quire.core.store.reuse import FIRST_RANK

CLASSES, AGES = 4, 40
ONCE, CONTINUED, FEW, MANY = range(4)
EVICTED, SPOILT = 1, 2
MOST_USES = 255


class Ghost(NamedTuple):
    """A page that is gone."""

    path: Path
    group: int
    used: int
    rest: int  # quarters of a second
    why: int
    uses: int
    reuse: int
    admission: int


class Cells:
    """What is remembered of one pool."""

    def __init__(self, num_slots: int, ghosts: int) -> None:
        self.num_slots = num_slots
        self.now = 0  # as the cache was last told
        self.aged = 0
        self.fresh = ONCE  # class of pages made now
        self.ring: list[Ghost | None] = [None] * (ghosts * num_slots)
        self.turn = 0
        self.hits = [0] * (CLASSES * AGES)
        self.lost = [0] * (CLASSES * AGES)
        self.inserted = 0
        self.rank = list(FIRST_RANK)
        self.learner = Learner()
        self.reached: Counter[str] = Counter()  # how often what happened

    def cell(self, reuse: int, used: int) -> int:
        """Class and age as one number: three ages to the octave, from a second on."""
        age, edge = self.now - used, 0
        while edge < AGES - 1 and age >= round(TICKS * 2 ** (edge / 3)):
            edge += 1
        return reuse * AGES + edge

    def turn_of(self, cell: int) -> int:
        """Where a cell stands in the order that was learned; pages that are passed (-1) come before all."""
        return -1 if cell < 0 else self.rank.index(cell)

    def begin(self, page: Page, uses: int = 1) -> None:
        """A page is made, or used again."""
        page.uses, page.used = min(uses, MOST_USES), self.now
        page.reuse = self.fresh if uses == 1 else FEW if uses <= 3 else MANY

    def use(self, page: Page) -> None:
        """An admission uses a page."""
        self.hits[self.cell(page.reuse, page.used)] += 1
        self.begin(page, page.uses + 1)

    def meet(self, path: Path, group: int) -> int:
        """An admission asks for a block that is not there: how often it was used with this time, 0 if unknown."""
        ghost = self.newest(path, group)
        if ghost is None:
            return 0
        self.ring = [None if one and (one.path, one.group) == (path, group) else one for one in self.ring]
        self.reached["ghost met"] += 1
        self.hits[self.cell(ghost.reuse, ghost.used)] += 1
        return min(ghost.uses + 1, MOST_USES)

    def newest(self, path: Path, group: int) -> Ghost | None:
        """What is known of the last time that a block's page went."""
        in_turn = self.ring[self.turn :] + self.ring[: self.turn]
        found = (ghost for ghost in reversed(in_turn) if ghost and (ghost.path, ghost.group) == (path, group))
        return next(found, None)

    def bury(self, page: Page, admission: int, why: int) -> None:
        """A page is gone; the oldest ghost makes room for its own."""
        if not self.ring or page.path is None:
            return
        old = self.ring[self.turn]
        if old is not None:
            self.reached["ghost lost"] += 1
            self.lost[self.cell(old.reuse, old.used)] += 1
        rest = max(0, self.now - page.used) * 4 // TICKS
        self.ring[self.turn] = Ghost(page.path, page.group, page.used, rest, why, page.uses, page.reuse, admission)
        self.turn = (self.turn + 1) % len(self.ring)

    def used_often(self, pages: list[Page], uses: int) -> list[Page]:
        """Those of some pages that were used so often."""
        found = [page for page in pages if page.uses >= uses]
        self.reached["used too seldom to be copied"] += len(pages) - len(found)
        return found

    def forget(self) -> None:
        """All ghosts go."""
        self.ring, self.turn = [None] * len(self.ring), 0

    def learn(self, pages: Iterable[Page]) -> None:
        """A new order, when half as many pages as there are slots have come into the tree."""
        if 2 * self.inserted < self.num_slots:
            return
        census = [0] * (CLASSES * AGES)
        known = [(page.reuse, page.used) for page in pages if page.path is not None]
        for reuse, used in known + [(ghost.reuse, ghost.used) for ghost in self.ring if ghost]:
            census[self.cell(reuse, used)] += 1
        counts = [np.array(numbers).reshape(CLASSES, AGES) for numbers in (self.hits, self.lost, census)]
        self.rank = self.learner.order(*counts).tolist()
        self.reached["order learned"] += 1
        self.hits, self.lost, self.inserted = [0] * (CLASSES * AGES), [0] * (CLASSES * AGES), 0
