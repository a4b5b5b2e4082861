"""What a dump says, record by record: the same fields and numbers from both stores, so that two dumps can be compared.

Owns the layout. Nodes are numbered, roots by event hash, each with all that is below it, parents first and siblings in
token order: one number per node, and nothing in a dump grows with a node's depth.
"""

from __future__ import annotations

from typing import NamedTuple

NONE = -1  # no node, no page, no slot, no duration
LOST = -2  # a node that no root leads to

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


class DumpedPage(NamedTuple):
    """A page that is in use."""

    node: int  # NONE: it is open
    holders: int
    claims: int
    slots: tuple[int, ...]  # per tier
    priority: int
    duration: int
    expiry: int


class DumpedGroup(NamedTuple):
    """Pages and slots of one layer group."""

    pages: dict[int, DumpedPage]
    orders: list[dict[int, list[int]]]  # per tier: class -> its slots, first to be taken first
    free_pages: list[int]  # the last is the next to be handed out
    available: int
    counters: list[int]


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


class Dump(NamedTuple):
    """Everything of one store."""

    nodes: list[DumpedNode]  # by number
    groups: list[DumpedGroup]
    rows: dict[int, DumpedRow]

    def way_to(self, number: int) -> list[DumpedNode]:
        """The nodes from a root to one, both included; as long as it is deep."""
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
    stamp: int
