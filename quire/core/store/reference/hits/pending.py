"""Pending blocks: whole blocks of a prompt that steps in flight compute for another row, behind what the tree has.

Owns which row has most of them. A hit that ends with them names that row, and its claim keeps their pages by number.
Changes nothing but the hit; knows nothing of steps.
"""

from quire.core.store.reference.hits.walk import Edge
from quire.core.store.reference.hits.walk_result import NOBODY, Hit
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.pools.state import Row, State
from quire.core.store.reference.tree.node import Node


def find_pending(state: State, hit: Hit, chain: Chain, root: Node | None, usable: int) -> int:
    """Lengthen a fresh hit by the blocks that one row's steps in flight compute; the row, -1: none. Not with states."""
    if root is None or any(group.current for group in state.groups):
        return NOBODY
    best, owner = hit.blocks, NOBODY
    for number, row in enumerate(state.table.rows):
        if row is None or state.table.launched[number] <= state.table.computed[number]:
            continue
        end = pending_end(state, hit, chain, root, number, usable)
        if end > best:
            best, owner = end, number
    if owner != NOBODY:
        columns = range(hit.blocks, best)
        pages = [state.table.pages_in(pool.group, owner, columns) for pool in state.pools]
        hit.add_pending(owner, state.table.row(owner), pages)
    return owner


def pending_end(state: State, hit: Hit, chain: Chain, root: Node, number: int, usable: int) -> int:
    """How many blocks there are with those that a row in flight computes, where every group could resume."""
    table, row = state.table, state.table.row(number)
    size, done = table.block_size, int(table.committed[number])
    if not is_on_path(row, hit, root, done):
        return hit.blocks
    edge = Edge(state.groups)
    for block in range(min(int(table.launched[number]), row.prompt, usable, len(chain)) // size):
        if block >= done and chain.block(block) != row.chain.block(block):
            break
        had = block < hit.blocks
        edge.advance([had or table.page(pool.group, number, block) is not None for pool in state.pools])
    return max(hit.blocks, edge.blocks)


def is_on_path(row: Row, hit: Hit, root: Node, done: int) -> bool:
    """Whether what a row has committed, and will go on from in the tree, is a part of the hit."""
    if not row.commits or done > hit.blocks:
        return False
    return row.tip is (hit.nodes[done - 1] if done else root)


def num_landed(state: State, hit: Hit) -> int:
    """Blocks of a hit that are computed by now."""
    number = hit.owner
    if number == NOBODY or state.table.rows[number] is not hit.owner_row:
        return hit.blocks  # its row has ended, which no row does while a step in flight has it
    return max(hit.walked, min(hit.blocks, int(state.table.computed[number]) // state.rules.block_size))


def is_still_there(state: State, hit: Hit) -> bool:
    """Whether the row still has the pages of the pending blocks that were found."""
    number = hit.owner
    if number == NOBODY:
        return True
    if state.table.rows[number] is not hit.owner_row:
        return False
    columns = range(hit.walked, hit.blocks)
    now = [state.table.pages_in(pool.group, number, columns) for pool in state.pools]
    return now == hit.pending
