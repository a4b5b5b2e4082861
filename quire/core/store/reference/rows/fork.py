"""Forks: a second row on the first one's pages.

Owns what is shared and what must be the fork's own: computed full blocks are never written again, all else is. Knows
nothing of hits.
"""

from quire.core.store.reference.moves.evict import copy_part, spare_or_new
from quire.core.store.reference.pools.checks import check_vacant
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.reserve import Stake
from quire.core.store.reference.pools.state import NO_ROOM, Row, State, counters_now, lacks_room, note_counters
from quire.core.store.reference.rows.state_snapshots import fork_current
from quire.core.store.reference.rows.teach import set_fresh


def fork(state: State, source: int, target: int) -> int:
    """A second row; pages taken, -1 without room."""
    table = state.table
    old = table.row(source)
    check_vacant(state, target)
    if any(stake.peak for stake in old.stakes):
        raise ValueError(f"row {source} has pages reserved: its prompt is not finished")
    if max(_num_columns(state, pool, source) for pool in state.pools) > table.columns:
        raise ValueError(f"a fork of row {source} does not fit into {table.columns} columns")
    wanted = fork_needs(state, source)
    missing = [max(0, count - len(spares)) for count, spares in zip(wanted, old.spares, strict=True)]
    if lacks_room(state, missing):
        return NO_ROOM
    before = counters_now(state)
    for counters in table.row_counters:
        counters[target] = 0
    table.occupy(target, _second(old), int(table.computed[source]), int(table.committed[source]))
    table.handed[target] = min(table.handed[source], table.length[source])  # places have no tokens that it could share
    if table.handed[source] > table.length[source]:
        table.row(target).reached = max(old.reached, int(table.handed[source]))
    for pool in state.pools:
        set_fresh(state, pool, source)
        _share(state, pool, source, target)
        _mirror(state, pool, source, target)
        fork_current(state, pool, source, target)
        table.capacity[pool.group][target] = _num_columns(state, pool, source)
    note_counters(state, target, before)
    return sum(missing)


def fork_needs(state: State, source: int) -> tuple[int, ...]:
    """Pages of its own that one fork takes, per group, spares or not."""
    stakes = state.table.row(source).stakes
    return tuple(
        len(_own_columns(state, pool, source)) + (stake.current is not None)
        for pool, stake in zip(state.pools, stakes, strict=True)
    )


def _num_columns(state: State, pool: Pool, source: int) -> int:
    return state.groups[pool.group].columns(int(state.table.length[source]), state.rules.block_size)


def _num_shared(state: State, source: int) -> int:
    return int(state.table.computed[source]) // state.rules.block_size


def _own_columns(state: State, pool: Pool, source: int) -> list[int]:
    """Columns that must not be shared; snapshots only where the source will take one."""
    columns = range(_num_shared(state, source), _num_columns(state, pool, source))
    if not state.groups[pool.group].current:
        return list(columns)
    return [column for column in columns if state.table.page(pool.group, source, column) is not None]


def _second(old: Row) -> Row:
    """A row that has got as far as `old`, without its pages."""
    row = Row(old.chain.clone(), old.tip, old.keep, [Stake(stake.front, stake.base) for stake in old.stakes])
    for stake, model in zip(row.stakes, old.stakes, strict=True):
        stake.shown, stake.fresh, stake.written = model.shown, model.fresh, model.written
        stake.followed = model.followed
    row.priority, row.duration, row.twins, row.ahead = old.priority, old.duration, old.twins, old.ahead
    row.reached, row.edge, row.begun, row.named = old.reached, old.edge, old.begun, old.named
    row.prompt = old.prompt
    return row


def _share(state: State, pool: Pool, source: int, target: int) -> None:
    for column in range(_num_shared(state, source)):
        page = state.table.page(pool.group, source, column)
        if page is not None:
            pool.hold_page(page)
            state.table.set_column(pool.group, target, column, page)


def _mirror(state: State, pool: Pool, source: int, target: int) -> None:
    """Own pages of a fork, retained as the ones they mirror: spares first; the computed tokens are copied."""
    row, is_state = state.table.row(source), state.groups[pool.group].current
    own = _own_columns(state, pool, source)
    for column in own:
        model = state.table.page(pool.group, source, column)
        priority, duration = (row.priority, row.duration) if model is None else (model.priority, model.duration)
        page = spare_or_new(state, pool, row.spares[pool.group], priority, duration)
        tokens = int(state.table.computed[source]) - column * state.rules.block_size
        if model is not None and tokens > 0 and not is_state:
            copy_part(state, pool, model, page, tokens)
        state.table.set_column(pool.group, target, column, page)
    state.table.row(target).stakes[pool.group].own = len(own)
