"""Rows that grow and shrink: slots for coming tokens, tail tokens taken back, spoilt blocks cut off.

Owns the count before the act: a call that cannot have all its pages changes nothing. Knows nothing of hits.
"""

from quire.core.store.twin.chain import IntArray
from quire.core.store.twin.evict import new_page
from quire.core.store.twin.leave import clear_column
from quire.core.store.twin.page import DEFAULT_PRIORITY, NEVER
from quire.core.store.twin.parts import NO_ROOM, Parts
from quire.core.store.twin.pool import GROWN, Pool
from quire.core.store.twin.promise import count_own
from quire.core.store.twin.tree import ancestor


def grow(parts: Parts, rows: list[int], tokens: IntArray | None, num_tokens: int) -> int:
    """Append tokens to rows, or only make room for so many; pages taken, -1 without room."""
    table = parts.table
    if tokens is not None and len(tokens) != len(rows) * num_tokens:
        raise ValueError(f"{len(tokens)} tokens given for {len(rows)} rows of {num_tokens}")
    if len(set(rows)) != len(rows):
        raise LookupError("a row is named twice")
    lengths = [len(table.row(number).chain) + num_tokens for number in rows]
    for number in rows:
        if table.is_under_way(number) or any(stake.peak for stake in table.row(number).stakes):
            raise RuntimeError(f"row {number} has a prompt under way")  # what was promised to it would be used up
    columns = max((_needed(parts, pool, length) for pool in parts.pools for length in lengths), default=0)
    if columns > table.columns:
        raise ValueError(f"{columns} columns needed, a row has {table.columns}")
    for pool, reach in zip(parts.pools, parts.reaches, strict=True):
        if reach.current:
            continue  # nobody is kept waiting for a snapshot
        new = (_new_columns(parts, pool, number, length) for number, length in zip(rows, lengths, strict=True))
        if pool.lacks(sum(map(len, new))):
            return NO_ROOM
    taken = 0
    for place, (number, length) in enumerate(zip(rows, lengths, strict=True)):
        if tokens is not None:
            table.row(number).chain.append(tokens[place * num_tokens : (place + 1) * num_tokens])
            table.length[number] = table.handed[number] = length
        else:  # a step may compute them before anybody tells what they are
            table.row(number).reached = max(table.row(number).reached, length)
        taken += sum(_grow_row(parts, pool, number, length) for pool in parts.pools)
    return taken


def _needed(parts: Parts, pool: Pool, length: int) -> int:
    """Columns of a row of this length."""
    return parts.reaches[pool.group].columns(length, parts.rules.block_size)


def _new_columns(parts: Parts, pool: Pool, number: int, length: int) -> list[int]:
    """Columns that get a page when a row grows to this length."""
    reach, row = parts.reaches[pool.group], parts.table.row(number)
    first = int(parts.table.capacity[pool.group][number])
    if reach.current:  # a snapshot that was not asked for in time will never be taken
        first = max(first, row.stakes[pool.group].front)
    return [column for column in range(first, _needed(parts, pool, length)) if reach.takes_page(column, row.keep)]


def _grow_row(parts: Parts, pool: Pool, number: int, length: int) -> int:
    row, capacity = parts.table.row(number), parts.table.capacity[pool.group]
    new = _new_columns(parts, pool, number, length)
    if parts.reaches[pool.group].current:
        new = new[: max(0, pool.available)]
    for column in new:
        parts.table.put(pool.group, number, column, new_page(pool, row.priority, row.duration))
        pool.count(GROWN)
    count_own(pool, row.stakes[pool.group], len(new))
    capacity[number] = max(int(capacity[number]), _needed(parts, pool, length))
    return len(new)


def trim(parts: Parts, number: int, num_tokens: int) -> int:
    """Take back the last tokens and the columns nothing needs then; pages given back."""
    table = parts.table
    row = table.row(number)
    length = len(row.chain) - num_tokens
    if num_tokens < 0 or length < int(table.committed[number]) * table.block_size:
        raise ValueError(f"{num_tokens} tokens of row {number} cannot be taken back: it has {len(row.chain)}")
    row.chain.truncate(length)
    table.length[number] = length
    row.reached = max(row.reached, int(table.handed[number]))
    table.handed[number] = min(int(table.handed[number]), length)
    table.computed[number] = min(int(table.computed[number]), length)
    return sum(_shrink(parts, pool, number, _needed(parts, pool, length)) for pool in parts.pools)


def _shrink(parts: Parts, pool: Pool, number: int, columns: int) -> int:
    capacity = parts.table.capacity[pool.group]
    last = int(capacity[number])
    capacity[number] = min(last, columns)
    return sum(clear_column(parts, pool, number, column) for column in range(last - 1, columns - 1, -1))


def recut(parts: Parts, number: int, cut: int) -> int:
    """Columns from `cut` on must be computed again, into pages of the row's own; pages taken, -1 without room."""
    table = parts.table
    row = table.row(number)
    committed = int(table.committed[number])
    if any(reach.is_bounded for reach in parts.reaches):
        raise ValueError("a group has forgotten blocks: the row must be admitted again")
    if not 0 <= cut <= table.columns:
        raise ValueError(f"row {number} has {table.columns} columns, it cannot be cut at {cut}")
    wanted = [_not_own(parts, pool, number, range(cut, committed)) for pool in parts.pools]
    if any(_short(parts, pool, number, columns) for pool, columns in zip(parts.pools, wanted, strict=True)):
        return NO_ROOM
    for pool, columns in zip(parts.pools, wanted, strict=True):
        for column in reversed(columns):
            old = table.remove(pool.group, number, column)
            assert old is not None
            pool.unhold(old, parts.now)
    for pool, columns in zip(parts.pools, wanted, strict=True):
        for column in columns:
            table.put(pool.group, number, column, new_page(pool, DEFAULT_PRIORITY, NEVER))
    table.handed[number] = table.computed[number] = min(int(table.computed[number]), cut * table.block_size)
    table.committed[number] = min(committed, cut)
    for stake in row.stakes:
        stake.shown = min(stake.shown, cut)
    if row.tip is not None:
        tip = ancestor(row.tip, cut)
        parts.tree.add_tip(tip)
        parts.tree.drop_tip(row.tip)
        row.tip = tip
    return sum(map(len, wanted))


def _not_own(parts: Parts, pool: Pool, number: int, columns: range) -> list[int]:
    """Columns whose page others may read: all but open pages with this one holder. Holes stay holes."""
    pages = ((column, parts.table.page(pool.group, number, column)) for column in columns)
    return [column for column, page in pages if page is not None and not (page.is_open and page.holders == 1)]


def _short(parts: Parts, pool: Pool, number: int, columns: list[int]) -> bool:
    """Whether these columns cannot be replaced: pages that become idle when given up are room as well."""
    pages = [parts.table.page(pool.group, number, column) for column in columns]
    freed = sum(page is not None and not page.is_open and page.holders == 1 and not page.claims for page in pages)
    return pool.lacks(len(columns), freed)
