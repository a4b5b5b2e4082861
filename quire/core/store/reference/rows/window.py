"""Columns that leave a row: behind a window's edge, or snapshots of a state once it has gone on.

Owns when a column becomes a hole and what stays findable of it. Only numbers decide: a group keeps the last `keep`
blocks and the first `sink`. Knows nothing of how rows end.
"""

from quire.core.store.reference.moves.attach import attach_row
from quire.core.store.reference.moves.columns import clear_columns
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.rows.state_snapshots import keep_snapshot
from quire.core.store.reference.tree.traverse import climb


def leave(state: State, pool: Pool, number: int) -> int:
    """A bounded group lets go what the committed boundary has left behind; pages newly attached on the way out."""
    group, stake = state.groups[pool.group], state.table.row(number).stakes[pool.group]
    edge = int(state.table.committed[number]) - group.keep
    columns = range(max(stake.front, group.sink), edge)
    if group.current:
        attached = _last_offer(state, pool, number, range(columns.start, min(columns.stop, stake.written)))
        attached += keep_snapshot(state, pool, number, columns)
        stake.shown = edge
    else:
        attached = _last_offer(state, pool, number, columns)
        rank_twins(state, pool, number, columns)
    clear_columns(state, pool, number, columns)
    stake.front = max(stake.front, edge)
    return attached


def rank_twins(state: State, pool: Pool, number: int, columns: range) -> None:
    """Idle pages of blocks in whose columns the row has pages of its own are ranked anew, the last first."""
    row = state.table.row(number)
    if pool.window is None or not row.commits or not columns:
        return
    assert row.tip is not None
    nodes = climb(row.tip, columns.start)[: len(columns)]
    pages = state.table.pages_in(pool.group, number, columns)
    for node, page in reversed(list(zip(nodes, pages, strict=True))):
        if page is not None and page.is_open:
            pool.rank_anew(node.pages[pool.group])


def _last_offer(state: State, pool: Pool, number: int, columns: range) -> int:
    """Pages about to go that have no place in the tree get one if it is free now."""
    row = state.table.row(number)
    if not row.commits or not columns:
        return 0
    assert row.tip is not None
    nodes = climb(row.tip, columns.start)[: len(columns)]
    return attach_row(state, pool, nodes, state.table.pages_in(pool.group, number, columns))[0]
