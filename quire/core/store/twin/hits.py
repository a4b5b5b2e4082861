"""Hits: what the tree has for a chain, per group; and the claims that keep it there.

Owns the walk and the holds of phase 1. Moves nothing, allocates nothing, changes no order; knows nothing of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.store.twin.chain import Chain, IntArray
from quire.core.store.twin.page import Page
from quire.core.store.twin.pool import Pool
from quire.core.store.twin.tree import Node, partial_candidate

ALL = -1
SourceState = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
STALE = "the tree has changed since this hit was found: walk again"


@dataclass(frozen=True, slots=True)
class Reach:
    """Which blocks a group needs to resume: the last `tail` (-1: all) and the first `sink`."""

    tail: int
    sink: int

    def needed(self, blocks: int) -> list[int]:
        """Blocks needed at a boundary, ascending."""
        first = 0 if self.tail == ALL else max(0, blocks - self.tail)
        return [*range(min(self.sink, first)), *range(first, blocks)]


class Hit:
    """Leading blocks found, and perhaps a block that shares some tokens of the next one."""

    __slots__ = (
        "_blocks", "_claimed", "_matched", "_size", "held", "nodes", "reaches", "row", "source_node", "source_pages",
    )  # fmt: skip

    def __init__(self, reaches: Sequence[Reach], nodes: list[Node], blocks: int, block_size: int) -> None:
        self.reaches = reaches
        self.nodes = nodes  # as far as the walk went
        self.source_node: Node | None = None
        self.held: list[list[Page]] = []  # claimed pages per group, in the order of the needed blocks
        self.source_pages: list[Page] = []  # claimed pages of the source, one per group
        self.row = -1  # seated, not yet settled
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

    def needed(self, group: int) -> list[int]:
        return self.reaches[group].needed(self._blocks)

    def tiers(self, group: int) -> IntArray:
        """Hottest tier now of each needed full block, -1 where none is needed."""
        found = np.full(self._blocks, -1, np.int32)
        for block in self.needed(group):
            page = self.nodes[block].pages[group]
            if page is not None:
                found[block] = page.hottest
        return found

    def num_cold(self, group: int) -> int:
        """Needed pages without a device copy now."""
        return int((self.tiers(group) > 0).sum())

    def set_source(self, node: Node, matched: int) -> None:
        self.source_node, self._matched = node, matched

    def mark(self, claimed: bool) -> None:
        self._claimed = claimed

    def pages(self, group: int) -> list[Page]:
        """The pages of the needed blocks; an error when the tree has changed since the walk."""
        found = [self.nodes[block].pages[group] for block in self.needed(group)]
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
    parent, blocks = root, 0
    while (len(nodes) + 1) * size <= usable:
        child = parent.children.get(chain.block(len(nodes)))
        if child is None:
            break
        nodes.append(child)
        _advance(reaches, nodes, runs, leads)
        if _is_good(reaches, len(nodes), runs, leads):
            blocks = len(nodes)
        if any(reach.tail == ALL and run < len(nodes) for reach, run in zip(reaches, runs, strict=True)):
            break  # no later boundary can be good
        parent = child
    hit = Hit(reaches, nodes, blocks, size)
    query = chain.span(blocks * size, min((blocks + 1) * size, usable))
    if policy and query:
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


def claim(pools: Sequence[Pool], hit: Hit) -> None:
    """Keep every page the hit needs from being evicted."""
    if hit.claimed or hit.row >= 0:
        raise ValueError("this hit is claimed already")
    held = [hit.pages(pool.group) for pool in pools]
    hit.source_pages = hit.pages_of_source()
    hit.held = held
    for pool, page in claimed_pages(pools, hit):
        pool.claim(page)
    hit.mark(True)


def unclaim(pools: Sequence[Pool], hit: Hit) -> None:
    """Give a claim back: as if it had never been."""
    if not hit.claimed:
        raise ValueError("this hit is not claimed")
    for pool, page in claimed_pages(pools, hit):
        pool.unclaim(page)
    hit.held, hit.source_pages = [], []
    hit.mark(False)


def claimed_pages(pools: Sequence[Pool], hit: Hit) -> list[tuple[Pool, Page]]:
    """Every page the claim is on, with its pool."""
    full = [(pool, page) for pool, pages in zip(pools, hit.held, strict=True) for page in pages]
    return full + [(pools[group], page) for group, page in enumerate(hit.source_pages)]


def source_state(hit: Hit) -> SourceState:
    """Of the source now: is a leaf; and per group: its page is held, its claims, its hottest tier."""
    node = hit.source_node
    if node is None:
        return 0, (), (), ()
    pages = [page for page in node.pages if page is not None]
    held, claims = (int(page.holders > 0) for page in pages), (page.claims for page in pages)
    return int(not node.children), tuple(held), tuple(claims), tuple(page.hottest for page in pages)
