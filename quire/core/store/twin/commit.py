"""Commit: pages of full, computed blocks become findable; at release twins, the state and the computed tail do too.

Owns how far a row has got and when its pages are offered. What is promised to leave a row is offered only as it leaves:
nobody else may come to hold it. Knows nothing of how rows end.
"""

from quire.core.store.twin.chain import IntArray
from quire.core.store.twin.current import promote
from quire.core.store.twin.leave import leave
from quire.core.store.twin.offer import offer, store
from quire.core.store.twin.parts import Parts
from quire.core.store.twin.pool import Pool
from quire.core.store.twin.table import Row
from quire.core.store.twin.tree import Node, path


def commit(parts: Parts, rows: list[int], computed: IntArray | None) -> int:
    """KV of these rows exists up to `computed` (None: what was handed out); pages newly attached."""
    table = parts.table
    if computed is not None and len(computed) != len(rows):
        raise ValueError(f"{len(computed)} numbers given for {len(rows)} rows")
    if len(set(rows)) != len(rows):
        raise LookupError("a row is named twice")
    chains = [table.row(number).chain for number in rows]
    marks = [int(mark) for mark in (table.handed[rows] if computed is None else computed)]
    for number, chain, mark in zip(rows, chains, marks, strict=True):
        if mark > len(chain):
            raise ValueError(f"row {number} has {len(chain)} tokens, {mark} cannot be computed")
    return sum(_commit_row(parts, number, mark) for number, mark in zip(rows, marks, strict=True))


def _commit_row(parts: Parts, number: int, computed: int) -> int:
    table = parts.table
    row = table.row(number)
    row.ahead = False
    table.computed[number] = max(int(table.computed[number]), computed)
    table.handed[number] = max(int(table.handed[number]), computed)  # who computes more than it was told says so
    first, stop = int(table.committed[number]), int(table.computed[number]) // table.block_size
    goes_on = stop > first
    if goes_on:
        table.committed[number] = stop
        _move_tip(parts, row, first, stop)
    attached = 0
    for pool, reach in zip(parts.pools, parts.reaches, strict=True):
        if not reach.current:
            attached += _show(parts, pool, number)
        if goes_on and reach.is_bounded:
            attached += leave(parts, pool, number)
    return attached


def _move_tip(parts: Parts, row: Row, first: int, stop: int) -> None:
    """The blocks have nodes, found or made; the row will commit its next one below the last."""
    if not row.keep or row.tip is None:
        return
    tip = row.tip
    for block in range(first, stop):
        tip = parts.tree.child(tip, row.chain.block(block))
    parts.tree.add_tip(tip)
    parts.tree.drop_tip(row.tip)
    row.tip = tip


def _show(parts: Parts, pool: Pool, number: int) -> int:
    """Offer the committed columns that were not offered yet, unless they are promised; pages newly attached."""
    row = parts.table.row(number)
    stake, stop = row.stakes[pool.group], int(parts.table.committed[number])
    if stake.peak or stake.shown >= stop:
        return 0
    first, stake.shown = stake.shown, stop
    if not row.keep or row.tip is None:
        return 0
    pages = parts.table.pages_in(pool.group, number, range(first, stop))
    attached, twins = offer(parts, pool, path(row.tip, first), pages)
    row.twins += twins
    return attached


def attach_rest(parts: Parts, number: int, ahead: bool) -> None:
    """Before a row goes: twins take places that have become free, then its state and its computed tail are stored."""
    row = parts.table.row(number)
    if not row.keep or row.tip is None:
        return
    if row.twins:
        _attach_twins(parts, number, row.tip)
    if not ahead:
        promote(parts, number)
    if parts.rules.tails:
        _attach_tail(parts, number, row, row.tip)


def _attach_twins(parts: Parts, number: int, tip: Node) -> None:
    """Deepest block first, groups ascending."""
    for node in reversed(path(tip, 0)):
        for pool in parts.pools:
            page = parts.table.page(pool.group, number, node.depth - 1)
            if page is not None and page.is_open and node.pages[pool.group] is None:
                store(pool, page, node)


def _attach_tail(parts: Parts, number: int, row: Row, tip: Node) -> None:
    """The tokens after the last full block, unless a child begins with them already."""
    table = parts.table
    column, computed = int(table.committed[number]), int(table.computed[number])
    if not 0 < computed - column * table.block_size < table.block_size:
        return
    tail = row.chain.span(column * table.block_size, computed)
    for pool, reach in zip(parts.pools, parts.reaches, strict=True):
        page = table.page(pool.group, number, column)
        if page is None or not page.is_open or page.holders != 1 or tip.covers(tail, pool.group):
            continue
        if not reach.current:  # a snapshot page there is empty still
            store(pool, page, parts.tree.child(tip, tail))
