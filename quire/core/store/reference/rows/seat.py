"""Seat: a claimed hit becomes holds of a row.

Between seat and settle every request of a batch holds its pages, so no settle can evict what another was promised.
Knows nothing of what the row gets besides.
"""

from collections.abc import Sequence

import numpy as np

from quire.core.store.interface import Int32Array
from quire.core.store.reference.hits.walk_result import NOBODY, Hit
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.reserve import Stake, keep_more
from quire.core.store.reference.pools.state import Row, State
from quire.core.store.reference.tree.node import Node, Page
from quire.core.store.reference.tree.resume_points import ask_again
from quire.core.store.reference.tree.tree import extend_path

NO_ROOT = -1


def seat(state: State, hit: Hit, number: int, row: Row) -> None:
    """A claimed hit becomes the holds of a new row; the claim on a partial source stays until settle."""
    table = state.table
    for pool, pages in zip(state.pools, hit.pages_held, strict=True):
        for block, page in zip(hit.held_blocks(pool.group), pages, strict=True):
            promiser = promiser_of(state, pool, block, page)
            if promiser is not None:
                keep_more(pool, promiser, 1)
            pool.hold_page(page)
            pool.unclaim_page(page)
            table.set_column(pool.group, number, block, page)
        table.capacity[pool.group][number] = max(hit.blocks, hit.end_of(pool.group))
        if not hit.has_needs:
            own_alone(state, pool, row.stakes[pool.group], hit.held_blocks(pool.group), pages)
    landed = num_landed(state, hit)
    if landed < hit.blocks:  # the rest is computed with the row that it shares them with
        table.occupy(number, row, landed * table.block_size, landed)
        table.launched[number] = hit.start
        table.handed[number] = hit.start
    else:
        table.occupy(number, row, hit.start, hit.blocks)
    columns = range(hit.walked if hit.pending else hit.blocks, landed)  # pending once, and computed by now
    behind = [page for pool in state.pools for page in table.pages_in(pool.group, number, columns)]
    row.twins = sum(page is not None and page.is_open for page in behind)  # other pages came before them
    if row.commits and state.rules.asks and landed == row.edge > 0:
        assert row.tip is not None and state.kinds is not None
        ask_again(state.kinds, state.rules.block_size, row.tip)
    hit.seated(number)


def own_alone(state: State, pool: Pool, stake: Stake, blocks: Sequence[int], pages: Sequence[Page]) -> None:
    """The last pages of a window's hit that the row alone has are its own: they make room when they leave it."""
    group = state.groups[pool.group]
    if not group.is_bounded or group.current:
        return
    for block, page in zip(reversed(blocks), reversed(pages), strict=True):
        if block < group.sink or page.holders != 1 or page.claims:
            break
        stake.base, stake.own = block, stake.own + 1


def promiser_of(state: State, pool: Pool, block: int, page: Page) -> Stake | None:
    """The part of the row that alone holds a page and has promised its room."""
    if page.holders != 1 or not state.groups[pool.group].is_bounded or state.groups[pool.group].current:
        return None
    for number, row in enumerate(state.table.rows):
        stake = None if row is None else row.stakes[pool.group]
        if stake is None or not stake.peak or block < stake.base:
            continue
        if state.table.page(pool.group, number, block) is page:
            return stake
    return None


def promised(state: State, hit: Hit, pool: Pool) -> Int32Array:
    """Pages of a claimed hit that one row alone holds and has promised to give up."""
    blocks, pages = hit.held_blocks(pool.group), hit.pages_held[pool.group]
    found = [page.number for block, page in zip(blocks, pages, strict=True) if promiser_of(state, pool, block, page)]
    return np.array(found, np.int32)


def new_row(state: State, hit: Hit, chain: Chain, root: int, keep: bool) -> Row:
    """The row a hit will become; once everything is checked, the node it will go on from exists."""
    if not hit.claimed:
        raise ValueError("only a claimed hit can be seated")
    blocks = max(hit.blocks, *(hit.end_of(pool.group) for pool in state.pools))
    if blocks > state.table.columns:
        raise ValueError(f"the hit has {blocks} blocks, a row {state.table.columns} columns")
    if root == NO_ROOT and keep:
        raise ValueError("a row that keeps its blocks needs a root")
    landed = num_landed(state, hit)
    tip = None if root == NO_ROOT else find_tip(state, hit, chain, state.tree.root(root), landed)
    row = Row(chain, tip, keep, [Stake(hit.front(pool.group), hit.blocks) for pool in state.pools])
    row.ahead, row.begun = hit.has_needs, hit.blocks
    for stake in row.stakes:
        stake.shown = landed
    return row


def find_tip(state: State, hit: Hit, chain: Chain, root: Node, landed: int) -> Node:
    """The node of the hit's last computed block, made again when it went: a claim may be on other blocks than that."""
    if hit.pending:
        if len(chain) < hit.blocks * state.rules.block_size:
            raise ValueError(f"the hit does not lie under root {root.number}")
        return extend_path(state.tree, chain, root, 0, landed)
    tip = hit.nodes[hit.blocks - 1] if hit.blocks else root
    kept = any(hit.end_of(pool.group) >= hit.blocks for pool in state.pools)  # by a page there, or below
    if (kept and tip.root is not root) or len(chain) < hit.blocks * state.rules.block_size:
        raise ValueError(f"the hit does not lie under root {root.number}")
    if tip.alive and tip.root is root:
        return tip
    return extend_path(state.tree, chain, root, 0, hit.blocks)


def num_landed(state: State, hit: Hit) -> int:
    """Blocks of a hit that are computed by now."""
    number = hit.owner
    if number == NOBODY or state.table.rows[number] is not hit.owner_row:
        return hit.blocks  # its row has ended, which no row does while a step in flight has it
    return max(hit.walked, min(hit.blocks, int(state.table.computed[number]) // state.rules.block_size))
