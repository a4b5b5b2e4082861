"""The current state of a row in a state group: one page outside its columns, overwritten token by token.

Owns how it begins (from a snapshot or a stored tail), is kept (as a snapshot at a block's edge), is forked and ends. A
snapshot page in a column is empty until the row has computed exactly up to its end; the state is copied into it then.
When a launched step ends there and the next one is handed out before it is committed, the copy is made between the two.
Else, when more was handed out, a step may have moved the state on: it is not kept as what it was, and that is counted.
"""

from collections.abc import Sequence

from quire.core.store.reference.hits.partial import copy_source, take_source
from quire.core.store.reference.moves.attach import attach_alone
from quire.core.store.reference.moves.columns import clear_columns
from quire.core.store.reference.moves.evict import copy_part, new_page, spare_or_new
from quire.core.store.reference.pools.pool import SKIPPED, Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Page


def open_current(state: State, pool: Pool, number: int, held: Sequence[int]) -> None:
    """A new row gets its current page, resumed from the last snapshot held; the row needs none of them any more."""
    table = state.table
    row = table.row(number)
    current = new_page(state, pool, row.priority, row.duration)
    table.set_current(pool.group, number, current)
    if held:
        source = table.page(pool.group, number, held[-1])
        assert source is not None
        copy_part(state, pool, source, current, state.rules.block_size)
    for column in held:
        page = table.take_column(pool.group, number, column)
        assert page is not None
        pool.let_go(page, state.now)


def resume_current(state: State, pool: Pool, number: int, source: Page, taken_over: bool) -> None:
    """A new row goes on from the state of a stored tail: in that page itself, or in a copy."""
    row = state.table.row(number)
    decode = (row.priority, row.duration)
    if taken_over:
        current = take_source(state, pool, source, decode)
    else:
        current = copy_source(state, pool, source, state.rules.block_size, decode)
    state.table.set_current(pool.group, number, current)


def keep_snapshot(state: State, pool: Pool, number: int, columns: range) -> int:
    """Keep the state in the last of the leaving columns, if it is the state there; 1 when it became findable."""
    table = state.table
    row = table.row(number)
    if not columns or not row.commits or not table.is_at_edge(number):
        return 0
    page, current = table.page(pool.group, number, columns[-1]), row.stakes[pool.group].current
    if page is None or current is None or row.tip is None or row.tip.pages[pool.group] is not None:
        return 0
    if table.is_past(number):
        pool.count(SKIPPED)
        return 0
    copy_part(state, pool, current, page, state.rules.block_size)
    attach_alone(state, pool, page, row.tip)
    return 1


def keep_ahead(state: State, number: int) -> None:
    """Before more of a row is handed out: the state that its steps in flight leave is copied into the snapshot there.

    A commit offers it then as it is. Snapshots that those steps went past are none.
    """
    table = state.table
    row, end = table.row(number), int(table.launched[number])
    at_edge = end == int(table.handed[number]) > int(table.computed[number]) and end % table.block_size == 0
    if not at_edge or not row.commits:
        return
    column = end // table.block_size - 1
    for pool in state.pools:
        stake = row.stakes[pool.group]
        page = table.page(pool.group, number, column)
        if stake.current is None or page is None or column < stake.written:
            continue
        clear_columns(state, pool, number, range(max(stake.front, stake.written), column))
        copy_part(state, pool, stake.current, page, table.block_size)
        stake.written = column + 1


def fork_current(state: State, pool: Pool, source: int, target: int) -> None:
    """A fork goes on from a copy of the state."""
    row = state.table.row(source)
    current = row.stakes[pool.group].current
    if current is None:
        return
    page = spare_or_new(state, pool, row.spares[pool.group], row.priority, row.duration)
    copy_part(state, pool, current, page, state.rules.block_size)
    state.table.set_current(pool.group, target, page)


def keep_currents(state: State, number: int) -> None:
    """Before a row goes: its state becomes the snapshot of its last block, if it ends there and none is stored."""
    row = state.table.row(number)
    if not row.commits or row.tip is None or not state.table.is_at_edge(number):
        return
    for pool in state.pools:
        current = row.stakes[pool.group].current
        if current is None or row.tip.pages[pool.group] is not None:
            continue
        if state.table.is_past(number):
            pool.count(SKIPPED)
        else:
            attach_alone(state, pool, current, row.tip)


def close_current(state: State, pool: Pool, number: int) -> None:
    """Give up the current page."""
    current = state.table.row(number).stakes[pool.group].current
    if current is not None:
        state.table.set_current(pool.group, number, None)
        pool.let_go(current, state.now)
