"""How a row ends: what is worth keeping stays findable, its tail as a partial block; then its pages go, deepest first.

Owns the order in which pages are given up. Knows nothing of how the row got them.
"""

from bisect import bisect_left

from quire.core.store.reference.moves.attach import attach_alone
from quire.core.store.reference.moves.columns import take_columns
from quire.core.store.reference.moves.hinted_text import End, end_of_row, hint_row
from quire.core.store.reference.pools.pool import SKIPPED
from quire.core.store.reference.pools.reserve import set_peak
from quire.core.store.reference.pools.state import Row, State
from quire.core.store.reference.rows.commit import commit, rank_twins
from quire.core.store.reference.rows.state_snapshots import close_current, keep_currents
from quire.core.store.reference.tree.node import Node, Page
from quire.core.store.reference.tree.tree import climb


def release(
    state: State, number: int, keep_tail: bool, now: int, back: int = 0, mark: bool = False
) -> End | None:  # fmt: skip
    """Give up a row, the deepest pages first; with `keep_tail` what it computed stays findable. `back`: when its text
    comes back, 0: unknown. With `mark`: where it ended."""
    table = state.table
    row = table.row(number)
    state.tell_time(now)
    for pool, stake in zip(state.pools, row.stakes, strict=True):
        set_peak(pool, stake, 0)
    if keep_tail:
        ahead = row.ahead
        commit(state, [number], table.computed[[number]])
        _keep_rest(state, number, ahead)
    for pool in state.pools:
        rank_twins(state, pool, number, range(int(table.committed[number])))
    if back and row.tip is not None:
        hint_row(state, number, row.tip.children.get(tail_of(state, number, row) or b""), back)
    end = end_of_row(state, number) if mark else None
    table.set_tip(number, None, state.tree)
    for pool in state.pools:
        for page in reversed(row.spares[pool.group]):
            pool.let_go(page, now)
        for page in take_columns(state, pool, number):
            pool.let_go(page, now)
        close_current(state, pool, number)
    table.vacate(number)
    return end


def _keep_rest(state: State, number: int, ahead: bool) -> None:
    """Before a row goes: twins take places that have become free, then its state and its computed tail are stored."""
    row = state.table.row(number)
    if not row.keep or row.tip is None:
        return
    if row.twins:
        adopt_twins(state, number, row.tip)
    if not ahead:
        keep_currents(state, number)
    if not state.rules.tails:
        return
    if any(group.current for group in state.groups):
        if not ahead:
            keep_whole_tail(state, number, row, row.tip)
    else:
        keep_tail(state, number, row, row.tip)


def adopt_twins(state: State, number: int, tip: Node) -> None:
    """Deepest block first, groups ascending."""
    for node in reversed(climb(tip, 0)):
        for pool in state.pools:
            page = state.table.page(pool.group, number, node.depth - 1)
            if page is not None and page.is_open and node.pages[pool.group] is None:
                attach_alone(state, pool, page, node)


def tail_of(state: State, number: int, row: Row) -> bytes | None:
    """What a row has computed after its last committed block."""
    table = state.table
    begin, computed = int(table.committed[number]) * table.block_size, int(table.computed[number])
    return row.chain.span(begin, computed) if 0 < computed - begin < table.block_size else None


def keep_tail(state: State, number: int, row: Row, tip: Node) -> None:
    """The tokens after the last full block, unless a child begins with them already."""
    table, tail = state.table, tail_of(state, number, row)
    column = int(table.committed[number])
    if tail is None:
        return
    for pool in state.pools:
        page = table.page(pool.group, number, column)
        if page is None or not page.is_open or page.holders != 1 or is_covered(tip, pool.group, tail):
            continue
        attach_alone(state, pool, page, state.tree.child(tip, tail))


def keep_whole_tail(state: State, number: int, row: Row, tip: Node) -> None:
    """The same in a cache with states: its page of every group and the state after it, or nothing."""
    table, tail = state.table, tail_of(state, number, row)
    column = int(table.committed[number])
    if tail is None:
        return
    stored = tip.children.get(tail)
    pages: list[Page] = []
    for pool, group in zip(state.pools, state.groups, strict=True):
        page = row.stakes[pool.group].current if group.current else table.page(pool.group, number, column)
        if page is None or not page.is_open or page.holders != 1:
            return
        pages.append(page)
    lacking = [(pool, page) for pool, page in zip(state.pools, pages, strict=True)
               if stored is None or stored.pages[pool.group] is None]  # fmt: skip
    for pool, page in lacking:
        if not table.is_past(number):
            attach_alone(state, pool, page, state.tree.child(tip, tail))
        elif state.groups[pool.group].current:
            pool.count(SKIPPED)


def is_covered(parent: Node, group: int, tail: bytes) -> bool:
    """Whether a child that begins with `tail` has a page of the group."""
    for place in range(bisect_left(parent.order, tail), len(parent.order)):
        identity = parent.order[place]
        if not identity.startswith(tail):
            return False
        if parent.children[identity].pages[group] is not None:
            return True
    return False
