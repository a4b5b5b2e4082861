"""Columns that leave a row: behind a window's edge, or snapshots of a state once it has gone on.

Owns when a column becomes a hole and what stays findable of it. Only numbers decide: a group keeps the last `keep`
blocks and the first `sink`. Knows nothing of how rows end.
"""

from quire.core.store.twin.current import snapshot
from quire.core.store.twin.offer import offer
from quire.core.store.twin.parts import Parts
from quire.core.store.twin.pool import Pool
from quire.core.store.twin.promise import count_own, keep_more
from quire.core.store.twin.tree import path


def leave(parts: Parts, pool: Pool, number: int) -> int:
    """A bounded group lets go what the committed boundary has left behind; pages newly attached on the way out."""
    reach, stake = parts.reaches[pool.group], parts.table.row(number).stakes[pool.group]
    edge = int(parts.table.committed[number]) - reach.keep
    columns = range(max(stake.front, reach.sink), edge)
    if reach.current:
        attached = snapshot(parts, pool, number, columns)
        stake.shown = edge
    else:
        attached = _last_offer(parts, pool, number, columns)
    for column in reversed(columns):
        clear_column(parts, pool, number, column)
    stake.front = max(stake.front, edge)
    return attached


def _last_offer(parts: Parts, pool: Pool, number: int, columns: range) -> int:
    """Pages about to go that have no place in the tree get one if it is free now."""
    row = parts.table.row(number)
    if not row.commits or not columns:
        return 0
    assert row.tip is not None
    nodes = path(row.tip, columns.start)[: len(columns)]
    return offer(parts, pool, nodes, parts.table.pages_in(pool.group, number, columns))[0]


def clear_column(parts: Parts, pool: Pool, number: int, column: int) -> int:
    """The column becomes a hole; pages given up, 1 or 0."""
    page = parts.table.remove(pool.group, number, column)
    if page is None:
        return 0
    stake = parts.table.row(number).stakes[pool.group]
    if stake.kept and column >= stake.base and page.holders > 1:
        keep_more(pool, stake, -1)  # what was set aside for it is used now
    pool.unhold(page, parts.now)
    if column >= stake.base:
        count_own(pool, stake, -1)
    return 1
