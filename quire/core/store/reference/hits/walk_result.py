"""Hits: what a walk found for a chain, per group, and which of its blocks a claim is on.

Owns the record and the questions about it. Knows nothing of how blocks are found, nor of what a claim does.
"""

from collections.abc import Sequence

import numpy as np

from quire.core.store.interface import BoolArray, Explained, Int32Array, Need
from quire.core.store.reference.pools.group import ALL, Group
from quire.core.store.reference.pools.listing import is_near
from quire.core.store.reference.pools.state import Row
from quire.core.store.reference.tree.node import Node, Page

NOBODY = -1
STALE = "the tree has changed since this hit was found: walk again"


class Hit:
    """Leading blocks found, and perhaps a block that shares some tokens of the next one."""

    __slots__ = (
        "_blocks", "_claimed", "_coming", "_first", "_matched", "_needs", "_present", "_size", "_slow",
        "frozen", "groups", "nodes", "owner", "owner_row", "pages_held", "parts", "pending", "row", "source_node",
        "source_pages", "stays", "told", "walked",
    )  # fmt: skip

    def __init__(self, groups: Sequence[Group], nodes: list[Node], blocks: int, size: int, first: int = 0) -> None:
        self.groups = groups
        self.nodes = nodes  # as far as the walk went
        self.source_node: Node | None = None
        self.pages_held: list[list[Page]] = []  # claimed pages per group, in the order of the held blocks
        self.source_pages: list[Page] = []  # claimed pages of the source, one per group
        self.row = -1  # seated, not yet settled
        self.parts = bool(nodes and nodes[-1].children)  # texts went on behind the last block when it was walked
        self._present: list[list[bool]] = []  # nodes change, this stays
        self._needs: Sequence[Need] | None = None  # what the claim is on, if not what `blocks` needs
        self._size = size
        self._first = first  # blocks before it are held elsewhere: they are not asked for
        self._blocks = blocks
        self._matched = 0
        self._claimed = False
        self._slow = -1
        self._coming = blocks
        self.frozen = False  # its claim would outlive its blocks
        self.stays = False  # its claim keeps pages where they are
        self.told: Explained = b"", b""  # why there is no more: runs of causes, tokens by group and tier
        self.owner = NOBODY  # the row whose steps in flight compute the last of the blocks, and what it was then
        self.owner_row: Row | None = None
        self.walked = blocks  # with pending blocks: those before them, which are in the tree
        self.pending: list[list[Page | None]] = []  # their pages, per group

    @property
    def blocks(self) -> int:
        """Full blocks that can be reused."""
        return self._blocks

    def explained(self) -> Explained:
        """What `explain` noted."""
        return self.told

    @property
    def coming(self) -> int:
        """Full blocks that could be reused if pages that are only in the slow tier had been brought up."""
        return self._coming

    def set_coming(self, slow: int, blocks: int) -> None:
        self._slow, self._coming = slow, blocks
        self._present = [[is_near(page, slow) for page in node.pages] for node in self.nodes]

    def reach(self, group: int) -> tuple[Int32Array, Int32Array]:
        """Page and hottest tier now of each block that resuming at `coming` reads."""
        blocks = [block for block in self.groups[group].needed(self._coming) if block >= self._first]
        pages = [page for block in blocks if (page := self.page_of(group, block)) is not None]
        numbers, tiers = [page.number for page in pages], [page.hottest for page in pages]
        return np.array(numbers, np.int32), np.array(tiers, np.int32)

    @property
    def matched(self) -> int:
        """Tokens of the next block that can be reused."""
        return self._matched

    @property
    def start(self) -> int:
        """First token to compute."""
        return self._blocks * self._size + self._matched

    @property
    def source(self) -> int:
        """Node that has the matched tokens, or -1."""
        return -1 if self.source_node is None else self.source_node.number

    @property
    def num_nodes(self) -> int:
        return max(len(self.nodes), self._blocks)

    @property
    def claimed(self) -> bool:
        return self._claimed

    def node(self, block: int) -> int:
        """Node of a block of the walk, -1 out of range."""
        return self.nodes[block].number if 0 <= block < len(self.nodes) else -1

    @property
    def has_needs(self) -> bool:
        """Whether the claim is on other blocks than `blocks` needs."""
        return self._needs is not None

    def present(self, group: int) -> BoolArray:
        """Which walked blocks had a page of the group, outside the slow tier, at the time of the walk."""
        return np.array([found[group] for found in self._present], np.bool_)

    def held(self, group: int) -> Int32Array:
        """Blocks the claim is on, ascending; without a claim those it would be on."""
        return np.array(self.held_blocks(group), np.int32)

    def held_blocks(self, group: int) -> list[int]:
        return self.blocks_for(group, self._needs)

    def end_of(self, group: int) -> int:
        """The block after the last one held: a claim with needs may hold blocks beyond the hit's."""
        return max(self.held_blocks(group), default=-1) + 1

    def blocks_for(self, group: int, needs: Sequence[Need] | None) -> list[int]:
        """Blocks a claim with these needs is on: those the walk found; of a group that needs all, only leading ones."""
        if needs is None and self.groups[group].current and self.source_node is not None:
            return []  # the source has the state
        if needs is None:
            return [block for block in self.groups[group].needed(self._blocks) if block >= self._first]
        sink, first, stop = needs[group]
        limit, present = len(self.nodes), self.present(group)
        if self.groups[group].tail == ALL and not present.all():
            limit = int(present.argmin())
        wanted = (*range(min(sink, limit)), *range(max(first, sink, 0), min(stop, limit)))
        return [block for block in wanted if present[block]]

    def front(self, group: int) -> int:
        """First column that has not left the row this hit will become."""
        rule = self.groups[group]
        if self._needs is None or not rule.is_bounded or rule.current:
            return rule.front(self._blocks)
        sink, first, _ = self._needs[group]
        return max(sink, first)

    def tiers(self, group: int) -> Int32Array:
        """Hottest tier now of each held block, -1 where none is held."""
        found = np.full(self._blocks if self._needs is None else len(self.nodes), -1, np.int32)
        for block, page in zip(self.held_blocks(group), self._pages_now(group), strict=True):
            if page is not None:
                found[block] = page.hottest
        return found

    def _pages_now(self, group: int) -> Sequence[Page | None]:
        """The pages of the held blocks; those of a claim stay its own, whatever becomes of the tree."""
        if self._claimed:
            return self.pages_held[group]
        return [self.page_of(group, block) for block in self.held_blocks(group)]

    def page_of(self, group: int, block: int) -> Page | None:
        """The page of a block: of its node now, or the one that is being computed."""
        if self.pending and self.walked <= block < self._blocks:
            return self.pending[group][block - self.walked]
        return self.nodes[block].pages[group]

    def pages(self, group: int) -> Int32Array:
        """Page of each held block, in the order of `held`, -1 where it is gone."""
        return np.array([-1 if page is None else page.number for page in self._pages_now(group)], np.int32)

    def places(self, group: int) -> tuple[Int32Array, Int32Array]:
        """Tier and slot of each of those now."""
        found = [
            (-1, -1) if page is None else (page.hottest, page.slots[page.hottest]) for page in self._pages_now(group)
        ]
        tiers, slots = np.array(found, np.int32).reshape(-1, 2).T
        return tiers.copy(), slots.copy()

    def sources(self) -> tuple[int, ...]:
        """Page of the source per group; nothing without a source, or without a claim."""
        return tuple(page.number for page in self.source_pages)

    def num_cold(self, group: int) -> int:
        """Held pages that must come to the device; a snapshot is copied from where it is."""
        return 0 if self.groups[group].current else int((self.tiers(group) > 0).sum())

    def set_source(self, blocks: int, node: Node, matched: int) -> None:
        self._blocks, self.source_node, self._matched = blocks, node, matched
        self._coming = max(self._coming, blocks)

    def add_pending(self, owner: int, row: Row, pages: list[list[Page | None]]) -> None:
        """Its last blocks are those that a row in flight computes; a claim keeps their pages by number."""
        self.owner, self.owner_row, self.pending, self.walked = owner, row, pages, self._blocks
        self._blocks += len(pages[0])
        self._coming = max(self._coming, self._blocks)
        self.source_node, self._matched = None, 0
        nothing = [False] * len(pages)
        known = [*self._present, *(nothing for _ in range(self._blocks - len(self._present)))]
        for block in range(self.walked, self._blocks):
            there = [some[block - self.walked] is not None for some in pages]
            known[block] = [old or new for old, new in zip(known[block], there, strict=True)]
        self._present = [there if block < self._blocks else nothing for block, there in enumerate(known)]

    def mark(self, claimed: bool, needs: Sequence[Need] | None) -> None:
        self._claimed, self._needs, self.frozen = claimed, needs, self.owner != NOBODY

    def seated(self, row: int) -> None:
        """The claim has become holds of a row; what it was on can be asked until the row is settled."""
        self.pages_held, self.row, self._claimed = [], row, False

    def settled(self) -> None:
        self.source_pages, self.row, self._needs = [], -1, None

    def pages_for(self, group: int, needs: Sequence[Need] | None) -> list[Page]:
        """The pages a claim would be on; an error when the tree has changed since the walk."""
        found = [self.page_of(group, block) for block in self.blocks_for(group, needs)]
        in_tree = self.walked if self.pending else self._blocks
        if not all(node.alive for node in self.nodes[:in_tree]) or not all(is_near(p, self._slow) for p in found):
            raise ValueError(STALE)
        return [page for page in found if page is not None]

    def pages_of_source(self) -> list[Page]:
        """The source's page of every group, nothing without a source; the same error."""
        node = self.source_node
        if node is None:
            return []
        if not (node.alive and all(is_near(page, self._slow) for page in node.pages)):
            raise ValueError(STALE)
        return [page for page in node.pages if page is not None]
