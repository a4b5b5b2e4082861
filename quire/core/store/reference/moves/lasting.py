"""What changed in the slow tier, as arrays: slots whose page went, new pages, and the blocks that they need.

Owns the numbers of blocks: one for a block's life, never reused. Knows nothing of who keeps them.
"""

import numpy as np

from quire.core.store.interface import Changes
from quire.core.store.reference.keys.chain import decode
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node


def take_changes(state: State) -> Changes:
    """Everything since the last call; parents before children."""
    freed: list[tuple[int, int]] = []
    pages: list[tuple[int, int, int]] = []
    fresh: list[Node] = []
    for room in state.rooms:
        for slot in room.notes.take_changed() if room.notes is not None else ():
            assert room.notes is not None
            if slot in room.notes.told:
                freed.append((room.notes.told.pop(slot), slot))
            owner = room.orders[state.rules.slow].owner[slot]
            if owner is not None and owner.node is not None:
                room.notes.told[slot] = owner.group
                number_blocks(state, owner.node, fresh)
                pages.append((owner.group, slot, owner.node.lasting))
    return _arrays(freed, fresh, pages)


def number_blocks(state: State, node: Node, fresh: list[Node]) -> None:
    """Numbers for a block and those above it that have none yet; they join `fresh`."""
    way: list[Node] = []
    while node.parent is not None and not node.lasting:
        way.append(node)
        node = node.parent
    for block in reversed(way):
        state.tree.numbered += 1
        block.lasting = state.tree.numbered
        fresh.append(block)


def _arrays(freed: list[tuple[int, int]], fresh: list[Node], pages: list[tuple[int, int, int]]) -> Changes:
    roots: dict[int, int] = {}
    parents: list[int] = []
    for node in fresh:
        above = node.parent
        assert above is not None
        parents.append(above.lasting if above.parent is not None else -1 - roots.setdefault(above.number, len(roots)))
    texts = [decode(node.identity) for node in fresh]
    tokens = np.concatenate([np.empty(0, np.int32), *(text[0] for text in texts)])
    words = np.concatenate([np.empty((0, 3), np.uint64), *(text[1] for text in texts)])
    word_at = np.flatnonzero(words.any(axis=1)).astype(np.int64)
    return (
        np.array(freed, np.int32).reshape(-1, 2),
        np.array([(node.lasting, parent) for node, parent in zip(fresh, parents, strict=True)], np.int64).reshape(
            -1, 2
        ),
        np.cumsum([0, *(node.size for node in fresh)], dtype=np.int64),
        tokens.astype(np.int32),
        words[word_at],
        word_at,
        list(roots),
        np.array(pages, np.int64).reshape(-1, 3),
    )
