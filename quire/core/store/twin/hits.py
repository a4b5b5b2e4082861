"""Hits: what the tree has for a chain, per group; and the claims that keep it there.

Owns the walk and the holds of phase 1. Moves nothing, allocates nothing, changes no order; knows nothing of rows.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.core.store.twin.chain import Chain, IntArray
from quire.core.store.twin.page import Page
from quire.core.store.twin.pool import Pool
from quire.core.store.twin.reach import ALL, Reach
from quire.core.store.twin.tree import Node, partial_candidate

BoolArray = npt.NDArray[np.bool_]
Need = tuple[int, int, int]  # of one group: blocks before `sink`, and those from `first` to `stop`
SourceState = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
STALE = "the tree has changed since this hit was found: walk again"


class Hit:
    """Leading blocks found, and perhaps a block that shares some tokens of the next one."""

    __slots__ = (
        "_blocks", "_claimed", "_matched", "_needs", "_present", "_size",
        "nodes", "pages_held", "reaches", "row", "source_node", "source_pages",
    )  # fmt: skip

    def __init__(self, reaches: Sequence[Reach], nodes: list[Node], blocks: int, block_size: int) -> None:
        self.reaches = reaches
        self.nodes = nodes  # as far as the walk went
        self.source_node: Node | None = None
        self.pages_held: list[list[Page]] = []  # claimed pages per group, in the order of the held blocks
        self.source_pages: list[Page] = []  # claimed pages of the source, one per group
        self.row = -1  # seated, not yet settled
        self._present = [[page is not None for page in node.pages] for node in nodes]  # nodes change, this stays
        self._needs: Sequence[Need] | None = None  # what the claim is on, if not what `blocks` needs
        self._size = block_size
        self._blocks = blocks
        self._matched = 0
        self._claimed = False

    @property
    def blocks(self) -> int:
        """Full blocks that can be reused."""
        return self._blocks

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
        return len(self.nodes)

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
        """Which walked blocks had a page of the group at the time of the walk."""
        return np.array([found[group] for found in self._present], np.bool_)

    def held(self, group: int) -> IntArray:
        """Blocks the claim is on, ascending; without a claim those it would be on."""
        return np.array(self.held_blocks(group), np.int32)

    def held_blocks(self, group: int) -> list[int]:
        return self.blocks_for(group, self._needs)

    def blocks_for(self, group: int, needs: Sequence[Need] | None) -> list[int]:
        """Blocks a claim with these needs is on: those found, and of a group that needs all only its leading ones."""
        if needs is None:
            return self.reaches[group].needed(self._blocks)
        sink, first, stop = needs[group]
        limit, present = len(self.nodes), self.present(group)
        if self.reaches[group].tail == ALL and not present.all():
            limit = int(present.argmin())
        wanted = (*range(min(sink, limit)), *range(max(first, sink, 0), min(stop, limit)))
        return [block for block in wanted if present[block]]

    def front(self, group: int) -> int:
        """First column that has not left the row this hit will become."""
        reach = self.reaches[group]
        if self._needs is None or not reach.is_bounded or reach.current:
            return reach.front(self._blocks)
        sink, first, _ = self._needs[group]
        return max(sink, first)

    def tiers(self, group: int) -> IntArray:
        """Hottest tier now of each held block, -1 where none is held."""
        found = np.full(self._blocks if self._needs is None else len(self.nodes), -1, np.int32)
        for block in self.held_blocks(group):
            page = self.nodes[block].pages[group]
            if page is not None:
                found[block] = page.hottest
        return found

    def num_cold(self, group: int) -> int:
        """Held pages that must come to the device; a snapshot is copied from where it is."""
        return 0 if self.reaches[group].current else int((self.tiers(group) > 0).sum())

    def set_source(self, node: Node, matched: int) -> None:
        self.source_node, self._matched = node, matched

    def mark(self, claimed: bool, needs: Sequence[Need] | None) -> None:
        self._claimed, self._needs = claimed, needs

    def seated(self, row: int) -> None:
        """The claim has become holds of a row; what it was on is told until the row is settled."""
        self.pages_held, self.row, self._claimed = [], row, False

    def settled(self) -> None:
        self.source_pages, self.row, self._needs = [], -1, None

    def pages(self, group: int, needs: Sequence[Need] | None) -> list[Page]:
        """The pages a claim would be on; an error when the tree has changed since the walk."""
        found = [self.nodes[block].pages[group] for block in self.blocks_for(group, needs)]
        if not all(node.alive for node in self.nodes[: self._blocks]) or None in found:
            raise ValueError(STALE)
        return [page for page in found if page is not None]

    def pages_of_source(self) -> list[Page]:
        """The source's page of every group, nothing without a source; the same error."""
        node = self.source_node
        if node is None:
            return []
        if not (node.alive and node.has_all_pages()):
            raise ValueError(STALE)
        return [page for page in node.pages if page is not None]


def walk(reaches: Sequence[Reach], chain: Chain, root: Node | None, usable: int, policy: int) -> Hit:
    """Look up a chain; tokens from `usable` on are not looked at. Policy 0: full blocks, 1: idle leaves too, 2: any."""
    size = chain.block_size
    usable = min(usable, len(chain))
    if root is None:
        return Hit(reaches, [], 0, size)
    nodes: list[Node] = []
    runs, leads = [0] * len(reaches), [0] * len(reaches)
    all_full = all(reach.tail == ALL for reach in reaches)
    parent, blocks = root, 0
    while (len(nodes) + 1) * size <= usable:
        child = parent.children.get(chain.block(len(nodes)))
        if child is None:
            break
        nodes.append(child)
        _advance(reaches, nodes, runs, leads)
        if _is_good(reaches, len(nodes), runs, leads):
            blocks = len(nodes)
        if all_full and max(runs) < len(nodes):
            break  # nothing beyond is of use to any group
        parent = child
    hit = Hit(reaches, nodes, blocks, size)
    query = chain.span(blocks * size, min((blocks + 1) * size, usable))
    if policy and query and not any(reach.current for reach in reaches):  # a state has no partial blocks
        source, matched = partial_candidate(nodes[blocks - 1] if blocks else root, query, policy)
        if source is not None:
            hit.set_source(source, matched)
    return hit


def _advance(reaches: Sequence[Reach], nodes: list[Node], runs: list[int], leads: list[int]) -> None:
    """Count the newest node: pages in a row up to here, and leading pages up to the sink."""
    for group, reach in enumerate(reaches):
        if nodes[-1].pages[group] is None:
            runs[group] = 0
            continue
        runs[group] += 1
        if leads[group] == len(nodes) - 1 and leads[group] < reach.sink:
            leads[group] += 1


def _is_good(reaches: Sequence[Reach], blocks: int, runs: list[int], leads: list[int]) -> bool:
    """Every group could resume after this many blocks."""
    for reach, run, lead in zip(reaches, runs, leads, strict=True):
        tail = blocks if reach.tail == ALL else min(blocks, reach.tail)
        if run < tail or lead < min(blocks, reach.sink):
            return False
    return True


def claim(pools: Sequence[Pool], hit: Hit, needs: Sequence[Need] | None = None) -> None:
    """Keep pages from being evicted: those that `blocks` needs, or what was found of `needs`."""
    if hit.claimed or hit.row >= 0:
        raise ValueError("this hit is claimed already")
    if needs is not None and (hit.source_node is not None or len(needs) != len(pools)):
        raise ValueError(f"needs are one per group ({len(pools)}), of a hit without a partial block")
    held = [hit.pages(pool.group, needs) for pool in pools]
    hit.source_pages = hit.pages_of_source()
    hit.pages_held = held
    for pool, page in claimed_pages(pools, hit):
        pool.claim(page)
    hit.mark(True, None if needs is None else tuple(needs))


def unclaim(pools: Sequence[Pool], hit: Hit) -> None:
    """Give a claim back: as if it had never been."""
    if not hit.claimed:
        raise ValueError("this hit is not claimed")
    for pool, page in claimed_pages(pools, hit):
        pool.unclaim(page)
    hit.pages_held, hit.source_pages = [], []
    hit.mark(False, None)


def claimed_pages(pools: Sequence[Pool], hit: Hit) -> list[tuple[Pool, Page]]:
    """Every page the claim is on, with its pool."""
    full = [(pool, page) for pool, pages in zip(pools, hit.pages_held, strict=True) for page in pages]
    return full + [(pools[group], page) for group, page in enumerate(hit.source_pages)]


def source_state(hit: Hit) -> SourceState:
    """Of the source now: is a leaf; and per group: its page is held, its claims, its hottest tier."""
    node = hit.source_node
    if node is None:
        return 0, (), (), ()
    pages = [page for page in node.pages if page is not None]
    held, claims = (int(page.holders > 0) for page in pages), (page.claims for page in pages)
    return int(not node.children), tuple(held), tuple(claims), tuple(page.hottest for page in pages)
