"""Rows that grow and shrink: places for coming tokens, tokens that come, tail tokens taken back.

Owns the count before the act: a call that cannot have all its pages changes nothing. Knows nothing of hits.
"""

import numpy as np

from quire.core.store.interface import Int32Array
from quire.core.store.reference.moves.columns import clear_columns
from quire.core.store.reference.moves.evict import new_page
from quire.core.store.reference.pools.pool import GROWN, Pool
from quire.core.store.reference.pools.reserve import count_own
from quire.core.store.reference.pools.room import Room
from quire.core.store.reference.pools.state import NO_ROOM, State
from quire.core.store.reference.rows.state_snapshots import keep_ahead
from quire.core.store.reference.rows.teach import set_fresh


def grow(state: State, rows: list[int], tokens: Int32Array | None, counts: list[int]) -> int:
    """Hand out so many more tokens of each row, or places of such that come; pages taken, -1 without room."""
    table = state.table
    if len(counts) != len(rows) or min(counts, default=0) < 0 or (tokens is not None and len(tokens) != sum(counts)):
        raise ValueError(f"{None if tokens is None else len(tokens)} tokens given for {len(rows)} rows of {counts}")
    if len(set(rows)) != len(rows):
        raise LookupError("a row is named twice")
    lengths = [_end_after(state, row, tokens is not None, count) for row, count in zip(rows, counts, strict=True)]
    for number in rows:
        if table.is_under_way(number) or any(stake.peak for stake in table.row(number).stakes):
            raise RuntimeError(f"row {number} has a prompt under way")  # what is reserved for it would be used up
    columns = max((_needed(state, pool, length) for pool in state.pools for length in lengths), default=0)
    if columns > table.columns:
        raise ValueError(f"{columns} columns needed, a row has {table.columns}")
    owed = dict.fromkeys(state.rooms, 0)  # pages that this call still takes; no request waits for a snapshot
    for pool, group in zip(state.pools, state.groups, strict=True):
        new = (_new_columns(state, pool, number, length) for number, length in zip(rows, lengths, strict=True))
        owed[pool.room] += 0 if group.current else sum(map(len, new))
    if any(count > 0 and count > room.available for room, count in owed.items()):
        return NO_ROOM
    if table.launched.any() and any(group.current for group in state.groups):
        for number in rows:
            keep_ahead(state, number)
    taken = given = 0
    for number, length, count in zip(rows, lengths, counts, strict=True):
        if tokens is not None:
            _add_tokens(state, number, tokens[given : given + count])
            given += count
        table.handed[number] = length
        for pool in state.pools:
            taken += grow_group(state, pool, number, length, owed)
    return taken


def _end_after(state: State, number: int, known: bool, num_tokens: int) -> int:
    """How far a row is handed out with so many more tokens: behind all that are known, or behind its last place."""
    handed = int(state.table.handed[number])
    return max(handed, len(state.table.row(number).chain) + num_tokens) if known else handed + num_tokens


def _add_tokens(state: State, number: int, tokens: Int32Array) -> None:
    chain = state.table.row(number).chain
    chain.add_tokens(tokens)
    state.table.length[number] = len(chain)


def append(state: State, rows: list[int], tokens: Int32Array, num_tokens: int) -> None:
    """Tokens that steps made are known now: of each row those before the first negative one."""
    table = state.table
    if len(tokens) != len(rows) * num_tokens:
        raise ValueError(f"{len(tokens)} tokens given for {len(rows)} rows of {num_tokens}")
    if len(set(rows)) != len(rows):
        raise LookupError("a row is named twice")
    new = [_before_negative(some) for some in tokens.reshape(len(rows), num_tokens)]
    for number, some in zip(rows, new, strict=True):
        length = len(table.row(number).chain) + len(some)
        if len(some) and table.is_under_way(number):
            raise RuntimeError(f"row {number} has a prompt under way")
        if len(some) and max(_needed(state, pool, length) for pool in state.pools) > table.columns:
            raise ValueError(f"{length} tokens do not fit row {number}")
    for number, some in zip(rows, new, strict=True):
        _add_tokens(state, number, some)


def _before_negative(tokens: Int32Array) -> Int32Array:
    return tokens[: int(np.argmax(tokens < 0)) if (tokens < 0).any() else len(tokens)]


def take_back(state: State, number: int, end: int, ran: bool) -> None:
    """A row's tokens from `end` on are not handed out any more. If a step may have run there its state has moved on,
    and what was kept of it behind `end` is not what a step will make there."""
    table = state.table
    row = table.row(number)
    if ran:
        row.reached = max(row.reached, int(table.handed[number]))
    for stake in row.stakes:
        stake.written = min(stake.written, end // table.block_size)
    table.handed[number] = end


def _needed(state: State, pool: Pool, length: int) -> int:
    """Columns of a row of this length."""
    return state.groups[pool.group].columns(length, state.rules.block_size)


def _new_columns(state: State, pool: Pool, number: int, length: int) -> list[int]:
    """Columns that get a page when a row grows to this length."""
    group, row = state.groups[pool.group], state.table.row(number)
    first = int(state.table.capacity[pool.group][number])
    if group.current:  # a snapshot that was not asked for in time will never be taken
        first = max(first, row.stakes[pool.group].front)
    return [column for column in range(first, _needed(state, pool, length)) if group.takes_page(column, row.keep)]


def grow_group(state: State, pool: Pool, number: int, length: int, owed: dict[Room, int]) -> int:
    """Pages of one group for a row of this length; snapshots only of what the call does not owe to others."""
    row, capacity = state.table.row(number), state.table.capacity[pool.group]
    new = _new_columns(state, pool, number, length)
    if state.groups[pool.group].current:
        new = new[: max(0, pool.available - owed[pool.room])]
    else:
        owed[pool.room] -= len(new)
    set_fresh(state, pool, number)
    state.makes[0] = number
    for column in new:
        state.table.set_column(pool.group, number, column, new_page(state, pool, row.priority, row.duration))
        pool.count(GROWN)
    count_own(pool, row.stakes[pool.group], len(new))
    capacity[number] = max(int(capacity[number]), _needed(state, pool, length))
    return len(new)


def trim(state: State, number: int, num_tokens: int) -> int:
    """Take back the last tokens and the columns nothing needs then; pages given back."""
    table = state.table
    row = table.row(number)
    length = len(row.chain) - num_tokens
    if num_tokens < 0 or length < int(table.committed[number]) * table.block_size:
        raise ValueError(f"{num_tokens} tokens of row {number} cannot be taken back: it has {len(row.chain)}")
    row.chain.cut_tokens(length)
    row.prompt = min(row.prompt, length)
    table.length[number] = length
    row.reached = max(row.reached, int(table.handed[number]))
    table.handed[number] = min(int(table.handed[number]), length)
    table.computed[number] = min(int(table.computed[number]), length)
    return sum(_shrink(state, pool, number, _needed(state, pool, length)) for pool in state.pools)


def _shrink(state: State, pool: Pool, number: int, columns: int) -> int:
    capacity, stake = state.table.capacity[pool.group], state.table.row(number).stakes[pool.group]
    last = int(capacity[number])
    stake.written = min(stake.written, columns)
    capacity[number] = min(last, columns)
    return clear_columns(state, pool, number, range(columns, last))
