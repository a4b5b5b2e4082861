"""Commit: pages of full, computed blocks become findable.

Owns how far a row has got and when its pages are offered: at once, also those that are to leave the row later. Whoever
comes to hold one of these is charged for it (`promised`). Knows nothing of how rows end.
"""

from quire.core.store.interface import Int32Array
from quire.core.store.twin.moves.attach import attach_row
from quire.core.store.twin.moves.priority import refresh
from quire.core.store.twin.pools.pool import Pool
from quire.core.store.twin.pools.state import State
from quire.core.store.twin.rows.window import leave
from quire.core.store.twin.tree.points import ask_again
from quire.core.store.twin.tree.traverse import climb, extend_path


def commit(state: State, rows: list[int], computed: Int32Array | None, now: int | None = None) -> int:
    """KV of these rows exists up to `computed` (None: what was handed out); pages newly attached. `now`: if told."""
    table = state.table
    if computed is not None and len(computed) != len(rows):
        raise ValueError(f"{len(computed)} numbers given for {len(rows)} rows")
    if len(set(rows)) != len(rows):
        raise LookupError("a row is named twice")
    chains = [table.row(number).chain for number in rows]
    marks = [int(mark) for mark in (table.handed[rows] if computed is None else computed)]
    for number, chain, mark in zip(rows, chains, marks, strict=True):
        if not 0 <= mark <= len(chain):
            raise ValueError(f"row {number} has {len(chain)} tokens, {mark} cannot be computed")
    if now is not None:
        refresh(state, now)
    return sum(commit_row(state, number, mark) for number, mark in zip(rows, marks, strict=True))


def commit_row(state: State, number: int, computed: int) -> int:
    table = state.table
    row = table.row(number)
    row.ahead = False
    table.computed[number] = max(int(table.computed[number]), computed)
    table.handed[number] = max(int(table.handed[number]), computed)  # who computes more than it was told says so
    first, stop = int(table.committed[number]), int(table.computed[number]) // table.block_size
    goes_on = stop > first
    if goes_on:
        table.committed[number] = stop
        if row.commits:
            assert row.tip is not None
            tip = row.tip
            if state.rules.asks and first < row.edge <= stop:
                tip = extend_path(state.tree, row.chain, tip, first, row.edge)
                ask_again(tip)
            table.set_tip(number, extend_path(state.tree, row.chain, tip, tip.depth, stop), state.tree)
    attached = 0
    for pool, group in zip(state.pools, state.groups, strict=True):
        if not group.current:
            attached += _show(state, pool, number)
        if goes_on and group.is_bounded:
            attached += leave(state, pool, number)
    return attached


def _show(state: State, pool: Pool, number: int) -> int:
    """Offer the committed columns that were not offered yet, those that are to leave too; pages newly attached."""
    row = state.table.row(number)
    stake, stop = row.stakes[pool.group], int(state.table.committed[number])
    if stake.shown >= stop:
        return 0
    first, stake.shown = stake.shown, stop
    if not row.keep or row.tip is None:
        return 0
    pages = state.table.pages_in(pool.group, number, range(first, stop))
    attached, twins = attach_row(state, pool, climb(row.tip, first), pages)
    row.twins += twins
    return attached
