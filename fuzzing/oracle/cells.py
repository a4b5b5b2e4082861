"""The adaptive order of one pool by definition: classes, ages, ghosts, which page is covered. No list is kept.

The learning step itself is the cache's: what it is given is counted here, page by page.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from math import log2
from typing import NamedTuple

import numpy as np

from fuzzing.oracle.page import Page
from fuzzing.world.plain import TICKS, Block, Path
from quire.core.state.learner import Learner
from quire.core.store.reuse import FIRST_RANK

CLASSES, AGES, NEVER = 7, 160, 6
ONCE, CONTINUED, FEW, MANY = range(4)
EVICTED, SPOILT = 1, 2
MOST_USES = 255
WATCHED = 1024  # slots by which the order is judged
FIRST, LAST = 0x9E3779B1, 0x85EBCA77
EDGES = [round(2 ** (edge / 3)) for edge in range(AGES - 1)]


def age_of(ticks: int) -> int:
    """Three ages to the octave, from a tick on."""
    return bisect_right(EDGES, ticks)


def turns_of(rank: list[int]) -> list[int]:
    """Where each cell stands in an order."""
    turns = [0] * len(rank)
    for turn, cell in enumerate(rank):
        turns[cell] = turn
    return turns


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

    def __init__(self, num_slots: int, ghosts: int, num_pages: int) -> None:
        self.num_slots, self.num_pages = num_slots, num_pages  # without the slow tier; in all tiers
        self.now = 0  # as the cache was last told
        self.asked = -1  # when somebody was last admitted
        self.aged = 0  # when all were last looked at for their ages
        self.made = 0  # pages made since
        self.fresh = ONCE  # class of pages made now
        self.ring: list[Ghost | None] = [None] * (ghosts * num_slots)
        self.turn = 0
        self.hits = [0] * (CLASSES * AGES)
        self.lost = [0] * (CLASSES * AGES)
        self.inserted = 0
        self.rank = list(FIRST_RANK)
        self.turns = turns_of(self.rank)
        self.doubles_at = 0  # the position of a token that costs twice the first; 0: all cost the same
        self.reach: list[int] = []  # by group: tokens that one reads, itself included, at most
        self.block_size = 1
        self.learner = Learner()
        self.recency = True  # all are listed as of one class, but for what never comes back
        self.met_class = ONCE  # of the ghost that was met last
        self.rival: dict[tuple[Path, int], None] = {}  # blocks that LRU would have, the oldest first
        self.watched = 0  # pages of full blocks in the tree; in a large pool those of some blocks
        self.gained = self.missed = 0
        self.reached: Counter[str] = Counter()  # how often what happened

    def cell(self, reuse: int, used: int) -> int:
        """Class and age as one number."""
        return reuse * AGES + age_of(self.now - used)

    def listed(self, page: Page) -> int:
        """The cell in which it waits when it is listed now."""
        age = max(0, age_of(self.aged - page.used) - self.younger(page))
        return (0 if self.recency and page.reuse != NEVER else page.reuse) * AGES + age

    def younger(self, page: Page) -> int:
        """Ages that it counts as younger: three to the octave, of the fourth root of what its first token costs."""
        if not self.doubles_at or page.path is None:
            return 0
        position = min((len(page.path) - 2) * self.block_size, self.reach[page.group] - 1)
        younger = min(15, int(0.75 * log2(1 + position / self.doubles_at) + 0.5))
        self.reached["dear page listed"] += younger > 0
        return younger

    def watch(self, page: Page, path: Path) -> None:
        """A page of a full block has come into the tree."""
        if self.watched < min(self.num_pages, 2 * WATCHED) and self.is_chosen(path):
            self.watched, page.watched = self.watched + 1, True
            self.renew((path, page.group))

    def is_chosen(self, path: Path) -> bool:
        """Whether pages of a block are watched, by its first token and its last: one in two, four, ... of them, so
        that it is not more than so many of all slots."""
        one_in = 1
        while self.num_pages // one_in > WATCHED:
            one_in *= 2
        block: Block = path[-1]
        return (block[0][0] * FIRST + block[-1][0] * LAST) % 2**32 < 2**32 // one_in

    def unwatch(self, page: Page) -> None:
        """It leaves the tree."""
        self.watched -= page.watched
        page.watched = False

    def leave(self, page: Page, admission: int, why: int) -> None:
        """It leaves the tree; with a reason it is remembered."""
        if why:
            self.bury(page, admission, why)
        self.unwatch(page)

    def renew(self, block: tuple[Path, int]) -> bool:
        """A block is used, for LRU; whether it would have had it."""
        known = block in self.rival
        self.rival.pop(block, None)
        self.rival[block] = None
        while len(self.rival) > max(0, self.watched):
            del self.rival[next(iter(self.rival))]
        return known

    def admit(self) -> None:
        """Somebody is admitted, later than whoever was before."""
        self.now = self.asked = max(self.now, self.asked + 1)

    def is_aging(self) -> bool:
        """Whether it is time to look for pages that have become older: a 32nd of the slots has been filled."""
        aging = self.num_slots <= 32 * self.made
        if aging:
            self.made, self.aged = 0, self.now
        return aging

    def turn_of(self, cell: int) -> int:
        """Where a cell stands in the order that was learned; pages that are passed (-1) come before all."""
        return -1 if cell < 0 else self.turns[cell]

    def begin(self, page: Page, uses: int = 1) -> None:
        """A page is made, or used again."""
        page.uses, page.used = min(uses, MOST_USES), self.now
        page.reuse = self.fresh if uses == 1 else FEW if uses <= 3 else MANY

    def use(self, page: Page) -> None:
        """An admission uses a page."""
        if page.watched and page.path is not None:
            gained = not self.renew((page.path, page.group))
            self.gained += gained
            self.reached["LRU would not have had it"] += gained
        self.hits[self.cell(page.reuse, page.used)] += 1
        self.begin(page, page.uses + 1)

    def meet(self, path: Path, group: int) -> int:
        """An admission asks for a block that is not there: how often it was used with this time, 0 if unknown."""
        ghost = self.newest(path, group)
        if ghost is None:
            return 0
        self.ring = [None if one and (one.path, one.group) == (path, group) else one for one in self.ring]
        self.reached["ghost met"] += 1
        if (path, group) in self.rival:
            self.missed += 1
            self.reached["LRU would have had it"] += 1
            del self.rival[path, group]
            self.rival[path, group] = None
        self.hits[self.cell(ghost.reuse, ghost.used)] += 1
        self.met_class = ghost.reuse
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
        rest = (max(0, self.now - page.used) * 8 // TICKS + 1) // 2  # the nearest
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
        hits, lost, known_now = (np.array(some).reshape(CLASSES, AGES) for some in (self.hits, self.lost, census))
        rival = np.array([self.gained, self.missed, self.watched])
        order, self.recency = self.learner.order(hits, lost, known_now, rival)
        self.rank, self.gained, self.missed = order.tolist(), 0, 0
        self.turns = turns_of(self.rank)
        self.reached["order by age alone"] += self.recency
        self.reached["order learned"] += 1
        self.hits, self.lost, self.inserted = [0] * (CLASSES * AGES), [0] * (CLASSES * AGES), 0
