"""Claims, which keep what a hit needs from being evicted, and pending blocks that a hit may end with.

Owns the holds of phase 1. Pending blocks are whole blocks of a prompt that steps in flight compute for another row,
behind what the tree has: the hit names the row that has most of them, and its claim keeps their pages by number. Moves
nothing, allocates nothing, changes no order; knows nothing of what rows get, nor of steps.
"""

from collections.abc import Sequence

from quire.core.store.interface import Need, SourceState
from quire.core.store.reference.hits.walk import Edge
from quire.core.store.reference.hits.walk_result import NOBODY, Hit
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.state import Row, State
from quire.core.store.reference.tree.node import Node, Page


def claim(pools: Sequence[Pool], hit: Hit, needs: Sequence[Need] | None = None, stays: bool = False) -> None:
    """Keep pages from being evicted: those that `blocks` needs, or those of `needs` that the walk found.

    With `stays` their copies below the device stay where they are, too: they are read there.
    """
    if hit.claimed or hit.row >= 0:
        raise ValueError("this hit is claimed already")
    if needs is not None and (hit.source_node is not None or len(needs) != len(pools)):
        raise ValueError(f"needs are one per group ({len(pools)}), of a hit without a partial block")
    held = [hit.pages_for(pool.group, needs) for pool in pools]
    hit.source_pages = hit.pages_of_source()
    hit.pages_held = held
    for pool, page in claimed_pages(pools, hit):
        pool.claim_page(page)
        if stays:
            pool.keep_page(page)
    hit.stays = stays
    hit.mark(True, None if needs is None else tuple(needs))


def unclaim(pools: Sequence[Pool], hit: Hit) -> None:
    """Give a claim back, as if it had never been made."""
    if not hit.claimed:
        raise ValueError("this hit is not claimed")
    for pool, page in claimed_pages(pools, hit):
        if hit.stays:
            pool.unkeep_page(page)
        pool.unclaim_page(page)
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
    pages = hit.source_pages or [page for page in node.pages if page is not None]
    held, claims = (int(page.holders > 0) for page in pages), (page.claims for page in pages)
    is_leaf = node.alive and not node.children and not any(page.stays for page in pages)  # else it is not taken over
    return int(is_leaf), tuple(held), tuple(claims), tuple(page.hottest for page in pages)


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
