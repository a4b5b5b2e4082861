"""The records of a dump: both stores fill the same fields with the same numbers, so that two dumps can be compared.

Owns the layout. Nodes are numbered root by root (by event hash), parents before children, siblings in token order.
Records name a node by its one number, so nothing in a dump grows with a node's depth.
"""

from __future__ import annotations

from typing import NamedTuple

from quire.core.store.reuse import NUM_AGES, NUM_CELLS

NONE = -1  # no node, no page, no slot, no duration
LOST = -2  # a node that no root leads to

# Classes of an order: empty slots, shadows, then idle pages by priority: for each, the passed pages, then the others.
# In the adaptive order covered pages come last. The others are in the cells of their priority, behind a list of its
# passed pages.
EMPTY, SHADOW, FIRST_PRIORITY, COVERED, FIRST_CELL = 0, 1, 2, 204, 205
LISTS = 1 + NUM_CELLS  # of a priority

Words = tuple[int, int, int]  # what a token carries besides its id


class DumpedNode(NamedTuple):
    """A block under its parent, or a root."""

    parent: int  # number of its parent; NONE: a root
    root: int  # event hash of its root
    size: int  # tokens; 0: a root
    tokens: tuple[int, ...]
    words: tuple[Words, ...]  # of every token; empty when all are plain
    pages: tuple[int, ...]  # per group
    children: int
    tips: int
    asked: bool  # a prompt ended there while the text was known to go on
    kind: int  # of the resume point that was guessed or named there; 0: none


class DumpedPage(NamedTuple):
    """A page that is in use."""

    node: int  # NONE: it is open
    holders: int
    claims: int
    slots: tuple[int, ...]  # per tier
    priority: int
    duration: int
    expiry: int
    stays: int  # who needs its colder copies to stay where they are
    copying: bool  # a background copy of it is being made
    unwanted: bool  # a hint said that it never comes back; of an order without classes


class DumpedReuse(NamedTuple):
    """What the adaptive order knows of a page."""

    uses: int
    reuse: int  # class
    used: int


class DumpedGhost(NamedTuple):
    """A page that is gone; its key is private and means nothing in another store."""

    used: int
    rest: int
    why: int
    uses: int
    reuse: int
    admission: int


class DumpedCells(NamedTuple):
    """What the adaptive order knows of a group."""

    pages: dict[int, DumpedReuse]
    ghosts: list[DumpedGhost | None]  # by place in the ring
    hits: list[int]  # by cell, since they were last taken
    lost: list[int]
    inserted: int
    made: int
    rank: list[int]  # cells, first to be evicted first
    recency: bool  # pages are ranked by age alone
    rival: tuple[int, int, int, int]  # gained and missed since they were last taken; pages watched; pages of LRU
    clock: tuple[int, int, int]  # the latest time given, of the last admission, of the last aging of pages

    def place_of(self, listed: int) -> tuple[int, int]:
        """Priority and reuse class of a page that is listed in this class of an order; -1: it is passed."""
        priority, cell = divmod(listed - FIRST_CELL, LISTS)
        return priority, (cell - 1) // NUM_AGES


class DumpedGroup(NamedTuple):
    """Pages and slots of one layer group."""

    pages: dict[int, DumpedPage]
    orders: list[dict[int, list[int]]]  # per tier: class -> its slots, first to be taken first
    free_pages: list[int]  # the last is the next to be handed out
    available: int
    counters: list[int]
    cells: DumpedCells | None  # of the adaptive order

    def plain_class(self, listed: int) -> int:
        """The class by priority alone: it ignores the cell, and whether the page is passed."""
        if listed in (EMPTY, SHADOW, COVERED):
            return listed
        return FIRST_PRIORITY + ((listed - FIRST_PRIORITY) // 2 if listed < COVERED else (listed - FIRST_CELL) // LISTS)

    def is_passed(self, listed: int) -> bool:
        """Whether the pages of a class are passed."""
        if listed < COVERED:
            return listed >= FIRST_PRIORITY and (listed - FIRST_PRIORITY) % 2 == 0
        return listed > COVERED and (listed - FIRST_CELL) % LISTS == 0


class DumpedRow(NamedTuple):
    """A live row; lists are per group."""

    length: int
    computed: int
    committed: int  # blocks
    tokens: list[int]
    tip: int  # node; NONE: it commits nothing any more
    keep: bool
    twins: int
    spares: list[list[int]]
    priority: int
    duration: int
    fronts: list[int]
    showns: list[int]
    bases: list[int]
    owns: list[int]
    peaks: list[int]
    currents: list[int]
    ahead: bool
    handed: int
    reached: int
    launched: int
    prompt: int
    fresh: list[int]  # class of its new pages, in the adaptive order
    followed: list[bool]  # a hint said that the last known page of its prompt comes back
    written: list[int]  # columns before these hold what a step has written itself


class DumpedKinds(NamedTuple):
    """What the kinds of resume points have cost and gained, by kind."""

    cost: list[int]  # pages
    gain: list[int]  # blocks
    kept: list[bool]


class Dump(NamedTuple):
    """Everything of one store."""

    nodes: list[DumpedNode]  # by number
    groups: list[DumpedGroup]
    rows: dict[int, DumpedRow]
    kinds: DumpedKinds | None  # of resume points, where pages are ranked by them

    def way_to(self, number: int) -> list[DumpedNode]:
        """The path from a root to a node, both included; as long as the node is deep."""
        way: list[DumpedNode] = []
        while number >= 0:
            way.append(self.nodes[number])
            number = self.nodes[number].parent
        return way[::-1]

    def text_to(self, number: int) -> tuple[int, ...]:
        """The tokens from the first one to the end of a node."""
        return tuple(token for node in self.way_to(number) for token in node.tokens)


class PageInfo(NamedTuple):
    """One page now; `node` is the store's own number, which means nothing in another store."""

    node: int
    holders: int
    claims: int
    priority: int
    duration: int
    expiry: int
    group: int  # whose page it is: groups may share a pool
    stamp: int


def hottest(page: DumpedPage) -> int:
    """The first tier that has a copy."""
    return next(tier for tier, slot in enumerate(page.slots) if slot >= 0)
