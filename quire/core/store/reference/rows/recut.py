"""Recut: a row gives up what a failed read has spoilt, and computes it again into pages of its own.

Owns the count before the act. Knows nothing of who noticed.
"""

from quire.core.store.reference.moves.evict import new_page
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.state import NO_ROOM, State
from quire.core.store.reference.rows.teach import set_fresh
from quire.core.store.reference.tree.node import DEFAULT_PRIORITY, NEVER, Page
from quire.core.store.reference.tree.tree import ancestor


def recut(state: State, number: int, cut: int, shared: int = 0) -> int:
    """Columns from `cut` on must be computed again, into pages of the row's own; pages taken, -1 without room. Those
    before `shared` may be pending: another row's."""
    table = state.table
    row = table.row(number)
    committed = int(table.committed[number])
    stop = max(committed, shared)
    if any(group.is_bounded for group in state.groups):
        raise ValueError("a group has forgotten blocks: the row must be admitted again")
    if not 0 <= cut <= table.columns or not 0 <= shared <= table.columns:
        raise ValueError(f"row {number} has {table.columns} columns, it cannot be cut at {cut}, or share {shared}")
    wanted = [_not_own(state, pool, number, range(cut, stop)) for pool in state.pools]
    freed = [_freed(state, pool, number, columns) for pool, columns in zip(state.pools, wanted, strict=True)]
    for room in state.rooms:
        here = [nth for nth, pool in enumerate(state.pools) if pool.room is room]
        pages = sum(len(wanted[nth]) for nth in here)
        if pages and pages > room.available + sum(freed[nth] for nth in here):
            return NO_ROOM
    for pool, columns in zip(state.pools, wanted, strict=True):
        for column in reversed(columns):
            old = table.take_column(pool.group, number, column)
            assert old is not None
            pool.let_go(old, state.now)
    state.makes[0] = number
    for pool, columns in zip(state.pools, wanted, strict=True):
        set_fresh(state, pool, number)
        for column in columns:
            table.set_column(pool.group, number, column, new_page(state, pool, DEFAULT_PRIORITY, NEVER))
    table.computed[number] = min(int(table.computed[number]), cut * table.block_size)
    table.hand_out(number, int(table.computed[number]))
    table.committed[number] = min(committed, cut)
    for stake in row.stakes:
        stake.shown = min(stake.shown, cut)
    if row.tip is not None:
        table.set_tip(number, ancestor(row.tip, cut), state.tree)
    return sum(map(len, wanted))


def _not_own(state: State, pool: Pool, number: int, columns: range) -> list[int]:
    """Columns whose page others may read. Holes stay holes."""
    pages = ((column, state.table.page(pool.group, number, column)) for column in columns)
    return [column for column, page in pages if page is not None and is_read_by_others(page)]


def is_read_by_others(page: Page) -> bool:
    """Not open and the row's alone.

    A lost page that a find or a background copy reads is claimed, and keeps its colder copies, which are bad: committed
    again with new bytes on the device it would be found with those.
    """
    return not page.is_open or page.holders != 1 or page.claims > 0


def _freed(state: State, pool: Pool, number: int, columns: list[int]) -> int:
    """Pages in these columns that become idle when given up: they are room as well."""
    pages = [state.table.page(pool.group, number, column) for column in columns]
    return sum(page is not None and not page.is_open and page.holders == 1 and not page.claims for page in pages)
