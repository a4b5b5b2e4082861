"""Forks: a second row on the first one's pages.

Owns what is shared and what must be the fork's own: computed full blocks are never written again, all else is. Knows
nothing of hits.
"""

from quire.core.store.twin.current import fork_current
from quire.core.store.twin.evict import copy_tokens, spare_or_new
from quire.core.store.twin.parts import NO_ROOM, Parts
from quire.core.store.twin.pool import Pool
from quire.core.store.twin.promise import Stake
from quire.core.store.twin.table import Row


def fork(parts: Parts, source: int, target: int) -> int:
    """A second row; pages taken, -1 without room."""
    table = parts.table
    old = table.row(source)
    table.check_vacant(target)
    if any(stake.peak for stake in old.stakes):
        raise ValueError(f"row {source} has pages promised: its prompt is not finished")
    if max(_num_columns(parts, pool, source) for pool in parts.pools) > table.columns:
        raise ValueError(f"a fork of row {source} does not fit into {table.columns} columns")
    wanted = fork_needs(parts, source)
    missing = [max(0, count - len(spares)) for count, spares in zip(wanted, old.spares, strict=True)]
    if any(pool.lacks(count) for count, pool in zip(missing, parts.pools, strict=True)):
        return NO_ROOM
    table.occupy(target, _second(old), int(table.computed[source]), int(table.committed[source]))
    table.handed[target] = table.handed[source]
    if old.tip is not None:
        parts.tree.add_tip(old.tip)
    for pool in parts.pools:
        before = pool.counters.copy()
        _share(parts, pool, source, target)
        _mirror(parts, pool, source, target)
        fork_current(parts, pool, source, target)
        table.capacity[pool.group][target] = _num_columns(parts, pool, source)
        table.row_counters[pool.group][target] = pool.counters - before
    return sum(missing)


def fork_needs(parts: Parts, source: int) -> tuple[int, ...]:
    """Pages of its own that one fork takes, per group, spares or not."""
    stakes = parts.table.row(source).stakes
    return tuple(
        len(_own_columns(parts, pool, source)) + (stake.current is not None)
        for pool, stake in zip(parts.pools, stakes, strict=True)
    )


def _num_columns(parts: Parts, pool: Pool, source: int) -> int:
    return parts.reaches[pool.group].columns(int(parts.table.length[source]), parts.rules.block_size)


def _num_shared(parts: Parts, source: int) -> int:
    return int(parts.table.computed[source]) // parts.rules.block_size


def _own_columns(parts: Parts, pool: Pool, source: int) -> list[int]:
    """Columns that must not be shared; snapshots only where the source will take one."""
    columns = range(_num_shared(parts, source), _num_columns(parts, pool, source))
    if not parts.reaches[pool.group].current:
        return list(columns)
    return [column for column in columns if parts.table.page(pool.group, source, column) is not None]


def _second(old: Row) -> Row:
    """A row that has got as far as `old`, without its pages."""
    row = Row(old.chain.clone(), old.tip, old.keep, [Stake(stake.front, stake.base) for stake in old.stakes])
    for stake, model in zip(row.stakes, old.stakes, strict=True):
        stake.shown = model.shown
    row.priority, row.duration, row.twins, row.ahead = old.priority, old.duration, old.twins, old.ahead
    row.reached = old.reached
    return row


def _share(parts: Parts, pool: Pool, source: int, target: int) -> None:
    for column in range(_num_shared(parts, source)):
        page = parts.table.page(pool.group, source, column)
        if page is not None:
            pool.hold(page)
            parts.table.put(pool.group, target, column, page)


def _mirror(parts: Parts, pool: Pool, source: int, target: int) -> None:
    """Own pages of a fork, retained as the ones they mirror: spares first; the computed tokens are copied."""
    row, is_state = parts.table.row(source), parts.reaches[pool.group].current
    own = _own_columns(parts, pool, source)
    for column in own:
        model = parts.table.page(pool.group, source, column)
        priority, duration = (row.priority, row.duration) if model is None else (model.priority, model.duration)
        page = spare_or_new(pool, row.spares[pool.group], priority, duration)
        tokens = int(parts.table.computed[source]) - column * parts.rules.block_size
        if model is not None and tokens > 0 and not is_state:
            copy_tokens(pool, model, page, tokens)
        parts.table.put(pool.group, target, column, page)
    parts.table.row(target).stakes[pool.group].own = len(own)
