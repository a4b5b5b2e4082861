"""Extend: a row gets the columns of a later part of its prompt, when that part is about to be computed.

Owns that it gets all of them or none, and may use what is reserved for it; but of snapshots that the step writes itself
as many as there is room for. Knows nothing of hits.
"""

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.store.reference.moves.columns import fill_holes
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.reserve import Ask, Retention, check_asks, set_peak
from quire.core.store.reference.pools.state import NO_ROOM, State, counters_now, lacks_room, note_counters
from quire.core.store.reference.rows.teach import teach_columns, teach_new


def extend(state: State, number: int, asks: Sequence[Ask], retention: Retention) -> int:
    """Give a row the columns of its next chunk; pages taken, -1 without room."""
    row, table = state.table.row(number), state.table
    check_asks(asks, retention, len(state.pools), table.columns)
    holes = [
        table.pages_in(pool.group, number, range(ask.first, ask.stop)).count(None)
        for pool, ask in zip(state.pools, asks, strict=True)
    ]
    if lacks_room(state, holes, [stake.reserve for stake in row.stakes]):
        return NO_ROOM
    taken, before = 0, counters_now(state)
    state.makes[0] = number
    for pool, stake, ask in zip(state.pools, row.stakes, asks, strict=True):
        capacity = table.capacity[pool.group]
        teach_columns(state, pool, number, range(ask.first, ask.stop))
        taken += fill_holes(state, pool, number, range(ask.first, ask.stop), retention)
        teach_new(state, pool, number)
        capacity[number] = max(int(capacity[number]), ask.stop)
        set_peak(pool, stake, ask.peak)
    note_counters(state, number, before)
    return taken


class Snapshots(NamedTuple):
    """What a step shall write itself."""

    columns: list[int]
    peak: int  # pages reserved afterwards
    beside: int  # the last is given up first, unless so many slots are left beside them; -1: it is not


def open_snapshots(state: State, pool: Pool, number: int, asked: Snapshots, retention: Retention) -> int:
    """Pages for snapshots that the row's next step writes itself: the last ones, as far as there is room.

    None that was named before: a step that ran then has not written it.
    """
    table, stake, (columns, peak, beside) = state.table, state.table.row(number).stakes[pool.group], asked
    if not state.groups[pool.group].current or columns != sorted(set(columns)):
        raise ValueError(f"columns {columns} of group {pool.group} are no snapshots")
    if columns and not 0 <= columns[0] <= columns[-1] < table.columns:
        raise ValueError(f"columns {columns} asked of a row that has {table.columns}")
    if peak < 0:
        raise ValueError(f"{peak} pages reserved")
    retention.check(columns[-1] + 1 if columns else 0)
    if not stake.peak:
        return 0
    fresh = [column for column in columns if column >= stake.written]
    holes = [column for column in fresh if table.page(pool.group, number, column) is None]
    room = max(0, pool.available + stake.reserve)
    if beside >= 0 and holes and holes[-1] == columns[-1] and len(holes) + beside > room:
        holes.pop()
    opened = holes[max(0, len(holes) - room) :]
    before = counters_now(state)
    state.makes[0] = number
    teach_columns(state, pool, number, opened)
    fill_holes(state, pool, number, opened, retention)
    teach_new(state, pool, number)
    stake.written = max(stake.written, *(column + 1 for column in columns), 0)
    set_peak(pool, stake, peak)
    note_counters(state, number, before)
    return len(opened)
