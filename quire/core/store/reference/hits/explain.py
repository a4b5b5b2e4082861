"""Why the blocks behind a hit are missing: one cause for each, and the group that lacks it.

Owns the causes and their order. Reads the tree, ghosts and rows; changes nothing, and knows nothing of tokens outside
whole blocks: the layer above accounts for those.

    walked  blocks that are in the tree, with pages or without
    known   those, and behind them what is remembered of them
    shared  blocks that a running row has too, and has not made findable yet
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from quire.core.store.causes import (
    EVICTED,
    FAILED,
    FORGOTTEN,
    MOST_UNKNOWN,
    NEW,
    SHORT,
    SLOW,
    SNAPSHOT,
    UNDER_WAY,
    WINDOW,
)
from quire.core.store.reference.hits.partial import nearest_common
from quire.core.store.reference.hits.walk_result import Hit
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.learned.ages import hint_in
from quire.core.store.reference.learned.ghosts import Ghost, gone_at
from quire.core.store.reference.pools.group import ALL, Group
from quire.core.store.reference.pools.listing import is_near
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node
from quire.core.store.reuse import SPOILT

NOBODY = -1


class Cause(NamedTuple):
    """Why a block is missing."""

    code: int
    group: int = NOBODY
    gone: int = 0
    admission: int = 0
    hint: int = 0


class Look:
    """A prompt along the tree, and what is remembered behind it."""

    __slots__ = ("chain", "known", "nodes", "root", "row", "scope", "shared", "size", "state", "usable", "whole")

    def __init__(self, state: State, chain: Chain, root: Node | None, scope: int, usable: int) -> None:
        self.state, self.chain, self.root = state, chain, root
        self.scope = scope if root is None else root.hash
        self.size = state.rules.block_size
        self.usable = min(usable, len(chain))
        self.whole = self.usable // self.size
        self.nodes: list[Node] = []
        self.known = 0
        self.row, self.shared = NOBODY, 0

    def ghost(self, group: int, block: int) -> Ghost | None:
        ghosts = self.state.pools[group].ghosts
        return None if ghosts is None else ghosts.find_ghost((self.scope, self.chain.key(block), group))

    def is_remembered(self, block: int) -> bool:
        return any(self.ghost(pool.group, block) is not None for pool in self.state.pools)

    def has_page(self, group: int, block: int) -> bool:
        return block < len(self.nodes) and is_near(self.nodes[block].pages[group], self.state.rules.slow)

    def is_slow(self, group: int, block: int) -> bool:
        """Whether there is a page, in the slow tier only."""
        return (
            block < len(self.nodes) and self.nodes[block].pages[group] is not None and not self.has_page(group, block)
        )

    def offered(self, group: int) -> int:
        """Blocks of the row in question that the tree has been offered."""
        return offered(self.state, self.row, group)


def explain(state: State, hit: Hit, chain: Chain, root: Node | None, scope: int, usable: int) -> int:
    """Note in a hit why the blocks behind it are missing; the row that computes them. `scope` names one without
    root."""
    look = Look(state, chain, root, scope, usable)
    walk_on(look, hit.nodes)
    recall(look)
    find_row(look, hit.blocks)
    causes: list[Cause] = []
    for group, first, stop in segments(look, hit.blocks):
        explain_part = snapshots_missed if state.groups[group].current else pages_missed
        causes += explain_part(look, group, first, stop)
    runs = runs_of_causes(look, hit, causes)
    hit.told = np.array(runs, np.int64).tobytes(), tokens_by_tier(state, hit)
    return look.row


def walk_on(look: Look, nodes: Sequence[Node]) -> None:
    """All blocks of the prompt that are in the tree, beyond where the walk for the hit ended."""
    look.nodes = list(nodes)
    node = look.nodes[-1] if look.nodes else look.root
    while node is not None and len(look.nodes) < look.whole:
        node = node.children.get(look.chain.block(len(look.nodes)))
        if node is not None:
            look.nodes.append(node)


def recall(look: Look) -> None:
    """How much of the prompt was there once, as far as is remembered."""
    look.known, unknown = len(look.nodes), 0
    most = look.whole if any(group.current for group in look.state.groups) else MOST_UNKNOWN
    for block in range(look.known, look.whole):
        unknown = 0 if look.is_remembered(block) else unknown + 1
        if unknown == 0:
            look.known = block + 1
        elif unknown == most:
            return


def find_row(look: Look, blocks: int) -> None:
    """The running row that has most of the prompt behind the hit and will make it findable; the first of equals."""
    look.shared = blocks
    for number, row in enumerate(look.state.table.rows):
        if row is None or not row.commits or row.tip is None or row.tip.root is not look.root:
            continue
        shared = common_blocks(row.chain, look.chain, look.whole)
        least = min(offered(look.state, number, group) for group in range(len(look.state.groups)))
        if shared > look.shared and least < shared:
            look.row, look.shared = number, shared


def offered(state: State, number: int, group: int) -> int:
    """Blocks of a row that the tree has been offered."""
    row = state.table.row(number)
    return int(state.table.committed[number]) if state.groups[group].current else row.stakes[group].shown


def common_blocks(one: Chain, other: Chain, most: int) -> int:
    """Leading whole blocks that two chains share."""
    count = min(most, len(one) // one.block_size)
    return next((block for block in range(count) if one.block(block) != other.block(block)), count)


def segments(look: Look, blocks: int) -> list[tuple[int, int, int]]:
    """Blame groups for missing blocks: first the group whose own resume point is lowest, then others for the rest."""
    bound, found = look.whole, list[tuple[int, int, int]]()
    while bound > blocks:
        points = [max(blocks, resume_point(look, group, bound)) for group in range(len(look.state.groups))]
        lowest = min(points)
        found.append((points.index(lowest), lowest, bound))
        bound = lowest
    return found[::-1]


def resume_point(look: Look, group: int, bound: int) -> int:
    """The last block edge up to `bound` at which a group could resume by itself."""
    edge = min(bound, len(look.nodes))
    while edge:
        hole = last_hole(look, look.state.groups[group], group, edge)
        if hole < 0:
            break
        edge = hole  # those between need it too
    return edge


def last_hole(look: Look, rule: Group, group: int, edge: int) -> int:
    """The last missing block of those that a group needs at an edge, or -1."""
    return next((block for block in reversed(rule.needed(edge)) if not look.has_page(group, block)), -1)


def pages_missed(look: Look, group: int, first: int, stop: int) -> list[Cause]:
    """Of a group that reads pages: the last missing block of those that resuming right behind a block would need."""
    rule, walked = look.state.groups[group], len(look.nodes)
    holes = [last_hole(look, rule, group, block + 1) if block < walked else block for block in range(first, stop)]
    return [page_missed(look, group, hole) for hole in holes]


def page_missed(look: Look, group: int, block: int) -> Cause:
    """Why a group has no page of a block."""
    if look.row != NOBODY and look.offered(group) <= block < look.shared:
        return Cause(UNDER_WAY, group)
    if look.is_slow(group, block):
        return Cause(SLOW, group)
    ghost = look.ghost(group, block) if block < look.known else None
    if ghost is not None:
        return ghost_cause(ghost, group)
    if block < look.known:
        return Cause(FORGOTTEN if look.state.groups[group].tail == ALL else WINDOW, group)
    return Cause(NEW)


def ghost_cause(ghost: Ghost, group: int) -> Cause:
    code = FAILED if ghost.why == SPOILT else EVICTED
    return Cause(code, group, gone_at(ghost), ghost.admission, hint_in(ghost.reuse))


def snapshots_missed(look: Look, group: int, first: int, stop: int) -> list[Cause]:
    """For a state group: the next snapshot that was there, or will be; one snapshot saves all blocks before it."""
    causes: list[Cause] = []
    ahead: Cause | None = None
    for block in range(stop - 1, first - 1, -1):
        ghost = look.ghost(group, block) if block < look.known else None
        if has_open_page(look, group, block):
            ahead = Cause(UNDER_WAY, group)
        elif look.is_slow(group, block):
            ahead = Cause(SLOW, group)
        elif ghost is not None:
            ahead = ghost_cause(ghost, group)
        causes.append(ahead or (Cause(SNAPSHOT, group) if block < look.known else Cause(NEW)))
    return causes[::-1]


def has_open_page(look: Look, group: int, block: int) -> bool:
    """Whether the row in question will take a snapshot at the end of a block."""
    if look.row == NOBODY or not look.offered(group) <= block < look.shared:
        return False
    return look.state.table.page(group, look.row, block) is not None


def runs_of_causes(look: Look, hit: Hit, causes: list[Cause]) -> list[tuple[int, ...]]:
    """Blocks of one cause in a row as one run of tokens; the first begins where the hit ends."""
    runs: list[tuple[int, ...]] = []
    start = hit.start
    for block, cause in enumerate(causes, hit.blocks):
        last, stop = block + 1 == hit.blocks + len(causes), (block + 1) * look.size
        if cause.code == NEW and (block == hit.blocks or causes[block - hit.blocks - 1].code != NEW):
            parted = max(start, parting(look, block))
            if parted > start:
                runs.append((SHORT, start, parted, NOBODY, 0, 0, 0))
            start = parted
        if last or causes[block - hit.blocks + 1] != cause:
            runs.append((cause.code, start, stop, *cause[1:]))
            start = stop
    return runs


def parting(look: Look, block: int) -> int:
    """Where the first new block parts from what is in the tree."""
    first = block * look.size
    if block > len(look.nodes) or look.root is None:
        return first
    node = look.nodes[-1] if look.nodes else look.root
    return first + nearest_common(node, look.chain.span(first, first + look.size))


def tokens_by_tier(state: State, hit: Hit) -> bytes:
    """By group and tier: tokens of the pages that resuming at the hit's end reads; a snapshot stands for all."""
    size, found = state.rules.block_size, np.zeros((len(state.groups), len(state.pools[0].orders)), np.int64)
    for place, group in enumerate(state.groups):
        source = None if hit.source_node is None else hit.source_node.pages[place]
        if source is not None:
            found[place, source.hottest] += hit.start if group.current else hit.matched
        for block in hit.blocks_for(place, None):
            page = hit.page_of(place, block)
            if page is not None:
                found[place, page.hottest] += hit.blocks * size if group.current else size
    return found.tobytes()
