"""Rows that grow, shrink and split: slots for coming tokens, tail tokens taken back, a second row on shared pages.

Owns the count before the act: a call that cannot have all its pages changes nothing. Knows nothing of hits.
"""

from quire.core.store.twin.chain import IntArray
from quire.core.store.twin.evict import copy_tokens, new_page
from quire.core.store.twin.page import DEFAULT_PRIORITY, NEVER, Page
from quire.core.store.twin.parts import Parts
from quire.core.store.twin.pool import GROWN, Pool
from quire.core.store.twin.table import Row
from quire.core.store.twin.tree import ancestor

NO_ROOM = -1


def grow(parts: Parts, rows: list[int], tokens: IntArray | None, num_tokens: int) -> int:
    """Append tokens to rows, or only make room for so many; pages taken, -1 without room."""
    table = parts.table
    if tokens is not None and len(tokens) != len(rows) * num_tokens:
        raise ValueError(f"{len(tokens)} tokens given for {len(rows)} rows of {num_tokens}")
    if len(set(rows)) != len(rows):
        raise LookupError("a row is named twice")
    columns = [table.blocks_of(len(table.row(number).chain) + num_tokens) for number in rows]
    if max(columns, default=0) > table.columns:
        raise ValueError(f"{max(columns)} columns needed, a row has {table.columns}")
    if any(_num_missing(parts, pool, rows, columns) > pool.available for pool in parts.pools):
        return NO_ROOM
    taken = 0
    for place, (number, needed) in enumerate(zip(rows, columns, strict=True)):
        row = table.row(number)
        if tokens is not None:
            row.chain.append(tokens[place * num_tokens : (place + 1) * num_tokens])
            table.length[number] = len(row.chain)
        taken += sum(_grow_row(parts, pool, number, row, needed) for pool in parts.pools)
    return taken


def _num_missing(parts: Parts, pool: Pool, rows: list[int], columns: list[int]) -> int:
    capacity = parts.table.capacity[pool.group]
    return sum(max(0, needed - int(capacity[number])) for number, needed in zip(rows, columns, strict=True))


def _grow_row(parts: Parts, pool: Pool, number: int, row: Row, needed: int) -> int:
    capacity = parts.table.capacity[pool.group]
    missing = range(int(capacity[number]), needed)
    for column in missing:
        parts.table.put(pool.group, number, column, new_page(pool, row.priority, row.duration))
        pool.count(GROWN)
    capacity[number] = max(int(capacity[number]), needed)
    return len(missing)


def trim(parts: Parts, number: int, num_tokens: int) -> int:
    """Take back the last tokens and the columns nothing needs then; pages given back."""
    table = parts.table
    row = table.row(number)
    length = len(row.chain) - num_tokens
    if num_tokens < 0 or length < int(table.committed[number]) * table.block_size:
        raise ValueError(f"{num_tokens} tokens of row {number} cannot be taken back: it has {len(row.chain)}")
    row.chain.truncate(length)
    table.length[number] = length
    table.computed[number] = min(int(table.computed[number]), length)
    return sum(_shrink(parts, pool, number, table.blocks_of(length)) for pool in parts.pools)


def _shrink(parts: Parts, pool: Pool, number: int, columns: int) -> int:
    capacity = parts.table.capacity[pool.group]
    given = 0
    for column in range(int(capacity[number]) - 1, columns - 1, -1):
        page = parts.table.remove(pool.group, number, column)
        if page is not None:
            pool.unhold(page, parts.now)
            given += 1
    capacity[number] = min(int(capacity[number]), columns)
    return given


def fork(parts: Parts, source: int, target: int) -> int:
    """A second row: full computed pages are shared, the rest is its own; pages taken, -1 without room."""
    table = parts.table
    old = table.row(source)
    table.check_vacant(target)
    computed, columns = int(table.computed[source]), table.blocks_of(len(old.chain))
    shared = computed // table.block_size
    missing = [max(0, columns - shared - len(spares)) for spares in old.spares]
    if any(count > pool.available for count, pool in zip(missing, parts.pools, strict=True)):
        return NO_ROOM
    row = Row(old.chain.clone(), old.tip, old.keep, len(parts.pools))
    row.priority, row.duration, row.twins = old.priority, old.duration, old.twins
    if row.tip is not None:
        parts.tree.add_tip(row.tip)
    table.occupy(target, row, computed, int(table.committed[source]))
    for pool in parts.pools:
        before = pool.counters.copy()
        _share(parts, pool, source, target, shared)
        _mirror(parts, pool, (source, target), range(shared, columns))
        table.capacity[pool.group][target] = columns
        table.row_counters[pool.group][target] = pool.counters - before
    return sum(missing)


def _share(parts: Parts, pool: Pool, source: int, target: int, columns: int) -> None:
    for column in range(columns):
        page = parts.table.page(pool.group, source, column)
        if page is not None:
            pool.hold(page)
            parts.table.put(pool.group, target, column, page)


def _mirror(parts: Parts, pool: Pool, ends: tuple[int, int], columns: range) -> None:
    """Own pages of a fork, retained as the ones they mirror: spares first; the computed tokens are copied."""
    source, target = ends
    row = parts.table.row(source)
    for column in columns:
        model = parts.table.page(pool.group, source, column)
        priority, duration = (row.priority, row.duration) if model is None else (model.priority, model.duration)
        page = _spare_or_new(pool, row.spares[pool.group], priority, duration)
        tokens = int(parts.table.computed[source]) - column * parts.rules.block_size
        if model is not None and tokens > 0:
            copy_tokens(pool, model, page, tokens)
        parts.table.put(pool.group, target, column, page)


def _spare_or_new(pool: Pool, spares: list[Page], priority: int, duration: int) -> Page:
    if not spares:
        return new_page(pool, priority, duration)
    page = spares.pop()
    page.priority, page.duration = priority, duration
    return page


def recut(parts: Parts, number: int, cut: int) -> int:
    """Columns from `cut` on must be computed again, into pages of the row's own; pages taken, -1 without room."""
    table = parts.table
    row = table.row(number)
    committed = int(table.committed[number])
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
    table.computed[number] = min(int(table.computed[number]), cut * table.block_size)
    table.committed[number] = min(committed, cut)
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
    return len(columns) > pool.available + freed
