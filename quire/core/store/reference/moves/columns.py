"""Pages in a row's columns: new ones for holes, and columns that are given up.

Owns that what is the row's own is counted. Knows nothing of why.
"""

from collections.abc import Iterable

from quire.core.store.reference.moves.evict import new_page
from quire.core.store.reference.pools.ask import Retention
from quire.core.store.reference.pools.pool import MISSED, Pool
from quire.core.store.reference.pools.reserve import count_own, keep_more
from quire.core.store.reference.pools.state import State


def fill_holes(state: State, pool: Pool, number: int, columns: Iterable[int], retention: Retention) -> int:
    """New pages for columns without one; how many."""
    table, stake = state.table, state.table.row(number).stakes[pool.group]
    holes = [column for column in columns if table.page(pool.group, number, column) is None]
    for column in holes:
        table.set_column(pool.group, number, column, new_page(state, pool, *retention.of_new(column)))
        pool.count(MISSED)
        count_own(pool, stake, 1)
    return len(holes)


def clear_columns(state: State, pool: Pool, number: int, columns: range) -> int:
    """The columns become holes, last to first; what was the row's own is not any more. Pages given up."""
    stake, cleared = state.table.row(number).stakes[pool.group], 0
    for column in reversed(columns):
        page = state.table.take_column(pool.group, number, column)
        if page is None:
            continue
        if stake.kept and column >= stake.base and page.holders > 1:
            keep_more(pool, stake, -1)  # what was set aside for it is used now
        pool.let_go(page, state.now)
        if column >= stake.base:
            count_own(pool, stake, -1)
        cleared += 1
    return cleared


def drop_columns(state: State, pool: Pool, number: int) -> None:
    """Let go of all pages of a row for which nothing is reserved, the last first."""
    for column in range(int(state.table.capacity[pool.group][number]) - 1, -1, -1):
        page = state.table.take_column(pool.group, number, column)
        if page is not None:
            pool.let_go(page, state.now)
