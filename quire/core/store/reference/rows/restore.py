"""Restore: blocks and their pages in the slow tier, as an earlier process had them, into an empty store.

Owns that all of it is taken or nothing. The layer above has checked slots, sizes and the order of parents; a block that
stands twice under its parent is detected here. Knows nothing of files.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from quire.core.store.interface import Int32Array, Int64Array, UInt64Array
from quire.core.store.reference.keys.chain import encode
from quire.core.store.reference.moves.attach import attach
from quire.core.store.reference.moves.events import log_restored
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import DEFAULT_PRIORITY, NEVER, Node


class Restored(NamedTuple):
    """Blocks that come back."""

    blocks: Int64Array  # rows of (number, place of the parent or -1 - root), parents first
    tokens: Int32Array  # all blocks are full
    words: UInt64Array  # of the tokens at `word_at`
    word_at: Int64Array


def restore_blocks(state: State, roots: Sequence[int], given: Restored) -> list[Node]:
    """Nodes of the blocks."""
    size = state.rules.block_size
    extras = np.zeros((len(given.tokens), 3), np.uint64)
    extras[given.word_at] = given.words
    nodes: list[Node] = []
    for place, (number, parent) in enumerate(given.blocks.tolist()):
        above = state.tree.root(roots[-1 - parent]) if parent < 0 else nodes[parent]
        text = slice(place * size, (place + 1) * size)
        before = state.tree.num_nodes
        node = state.tree.child(above, encode(given.tokens[text], extras[text]))
        if state.tree.num_nodes == before:
            drop_bare(state, nodes)
            raise ValueError(f"block {number} stands twice under its parent")
        node.lasting = number
        state.tree.numbered = max(state.tree.numbered, number)
        nodes.append(node)
    return nodes


def drop_bare(state: State, nodes: Sequence[Node]) -> None:
    """Blocks that lead to no page go, the last first."""
    for node in reversed(nodes):
        state.tree.prune(node)


def restore_pages(state: State, nodes: Sequence[Node], pages: Int32Array, now: int) -> None:
    """Pages, rows of (group, slot, place of the block), become idle in the slow tier, in this order."""
    state.tell_time(now)
    slow = state.rules.slow
    made = []
    for group, slot, place in pages.tolist():
        pool = state.pools[group]
        pool.unlist_slot(slow, slot)
        page = pool.open_page(slot, DEFAULT_PRIORITY, NEVER, slow)
        attach(pool, page, nodes[place], state.rules.block_size)
        made.append((pool, page))
        if pool.notes is not None:
            pool.notes.told[slot] = group
    for pool, page in made:
        pool.let_go(page, now)
    for room in state.rooms:
        if room.notes is not None:
            room.notes.take_changed()  # who restores knows
    drop_bare(state, nodes)
    log_restored(state, len(made))
