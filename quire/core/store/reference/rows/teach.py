"""What an admission teaches the adaptive order: which blocks were used again, which of them were gone.

Owns which blocks of a prompt count as known: those of the hit, and behind them those that are ghosts, up to the first
new one. Only admissions teach. Knows nothing of how rows get pages.
"""

from collections.abc import Iterable

from quire.core.store.reference.hits.walk_result import Hit
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.learned.ages import follows_hint, fresh_class
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.reserve import Ask
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node
from quire.core.store.reuse import ONCE


def teach_prompt(state: State, pool: Pool, number: int, hit: Hit, ask: Ask) -> None:
    """Before a seated row gets its pages: how much of its prompt was there before, and so the class of new pages."""
    if pool.cells is None:
        return
    row = state.table.row(number)
    columns = [*range(min(state.groups[pool.group].sink, ask.first)), *range(ask.first, ask.stop)]
    if hit.source_node is not None and not state.groups[pool.group].current:
        columns = [column for column in columns if column != hit.blocks]
    known = teach_columns(state, pool, number, columns)
    stake = row.stakes[pool.group]
    deepest = state.table.page(pool.group, number, hit.blocks - 1) if hit.blocks else None
    last = pool.cells.met_class if known > hit.blocks else ONCE if deepest is None else deepest.reuse
    stake.followed = follows_hint(last)
    stake.fresh = fresh_class(max(hit.blocks, known), len(row.chain) // state.rules.block_size)
    pool.cells.fresh = stake.fresh


def teach_columns(state: State, pool: Pool, number: int, columns: Iterable[int]) -> int:
    """Find the leading ones of the columns to be filled among the ghosts; the column after the last that was one."""
    row, known = state.table.row(number), 0
    set_fresh(state, pool, number)
    if pool.cells is None or row.tip is None:
        return 0
    for column in columns:
        if state.table.page(pool.group, number, column) is not None:
            continue
        if column >= len(row.chain) // state.rules.block_size:
            break
        if not pool.cells.meet(column, (row.tip.root.hash, row.chain.key(column), pool.group)):
            break
        known = column + 1
    return known


def teach_new(state: State, pool: Pool, number: int) -> None:
    """New pages of a row whose blocks were there before have their uses."""
    for column, uses in pool.cells.met.items() if pool.cells is not None else ():
        page = state.table.page(pool.group, number, column)
        if pool.cells is not None and page is not None:
            pool.cells.begin(page, uses)


def use_chain(state: State, root: Node, chain: Chain, blocks: int) -> None:
    """A request was served from outside: what its first blocks need is used, the ghosts right behind are met."""
    nodes: list[Node] = []
    while len(nodes) < blocks and (child := (nodes[-1] if nodes else root).children.get(chain.block(len(nodes)))):
        nodes.append(child)
    for pool, group in zip(state.pools, state.groups, strict=True):
        found = [nodes[block].pages[pool.group] for block in group.needed(len(nodes))]
        pages = [page for page in found if page is not None]
        for page in pages:
            pool.use_page(page)
        for page in reversed(pages):
            if page.is_idle:
                pool.relist(page)
        meet_behind(state, pool, root, chain, len(nodes))


def meet_behind(state: State, pool: Pool, root: Node, chain: Chain, block: int) -> None:
    """The ghosts of a chain from a block on, up to the first block that is none."""
    last = min(len(chain) // state.rules.block_size, state.table.columns)
    while pool.cells is not None and block < last and pool.cells.meet(block, (root.hash, chain.key(block), pool.group)):
        block += 1
    if pool.cells is not None:
        pool.cells.met.clear()


def set_fresh(state: State, pool: Pool, number: int) -> None:
    """New pages are for this row from now on."""
    if pool.cells is not None:
        pool.cells.fresh = state.table.row(number).stakes[pool.group].fresh
        pool.cells.met.clear()
