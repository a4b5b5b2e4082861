"""What a commit does by definition: pages become findable, pages leave, states are kept. Knows no claims."""

from __future__ import annotations

from fuzzing.oracle import pools as slots
from fuzzing.oracle import reach
from fuzzing.oracle.page import Page
from fuzzing.oracle.points import NAMED
from fuzzing.oracle.state import Row, State
from fuzzing.oracle.tree import path_of
from fuzzing.world.plain import Path


def commit(state: State, row: Row, computed: int) -> int:
    """Whole computed blocks are final; how many pages are new in the tree."""
    row.computed = max(row.computed, computed)
    row.handed = max(row.handed, computed)
    row.ahead = False
    blocks = row.computed // state.world.block_size
    if blocks <= row.committed:
        return sum(offer(state, row, group) for group in range(len(state.pools)) if state.offers(group))
    before, row.committed = row.committed, blocks
    if row.tip is not None:
        path = path_of(row.ask.root, row.tokens, state.world.block_size)
        if state.points.matter:
            see_points(state, row, path[: blocks + 1], before)
        row.tip = path[: blocks + 1]
        for depth in range(before + 1, blocks + 1) if state.points.matter else ():
            kind = NAMED if depth in row.named else state.points.guess(depth, row.edge)
            state.points.put(path[: depth + 1], kind)
    fresh = 0
    for group in range(len(state.pools)):
        if state.offers(group):
            fresh += offer(state, row, group)
        if reach.bounded(state.kinds[group]):
            fresh += leave(state, row, group)
    return fresh


def see_points(state: State, row: Row, path: Path, before: int) -> None:
    """A row goes on to the end of a path: it may part from a text, or end where one goes on."""
    size, known = state.world.block_size, state.tree.depth(path)
    asks = state.asks and before < row.edge < len(path)
    if asks and known >= row.edge:
        state.tree.ask_again(path[: row.edge + 1], size)
    if known < len(path) - 1:
        state.tree.part(path[: known + 1], size)


def offer(state: State, row: Row, group: int) -> int:
    """The tree is offered every final page it has not seen; how many it takes."""
    columns = range(row.showns[group], row.committed)
    row.showns[group] = max(row.showns[group], row.committed)
    return sum(show(state, row, group, column) for column in columns)


def show(state: State, row: Row, group: int, column: int) -> bool:
    """Offer one page."""
    page = row.pages[group][column] if column < len(row.pages[group]) else None
    if row.tip is None or page is None:
        return False
    return commit_page(state, state.pools[group], page, row.tip[: column + 2])


def commit_page(state: State, pools: slots.Pools, page: Page, path: Path) -> bool:
    """A page takes its place in the tree if it is free, or its page idle and off the device; else it stays private."""
    other = state.tree.page(path, pools.group)
    if page.path is not None or other is page:
        return False
    if other is None:
        pools.attach(page, path)
        return True
    if is_unused(other) and 0 not in other.copies:
        replace_page(state, pools, other, page)
    return False


def is_unused(page: Page) -> bool:
    """Nobody holds it, claims it, or needs it where it is."""
    return page.idle and not page.claims and not page.stays


def replace_page(state: State, pools: slots.Pools, other: Page, page: Page) -> None:
    """A page takes the place of one that is only in colder tiers, and its copies."""
    path = other.path
    assert path is not None
    state.tree.detach(other, replaced=True)
    for tier in sorted(other.copies):
        trusted = state.world.shadows and state.trusted  # a copy that may still fail is not; the slow ones are there
        if trusted or tier == state.world.slow_tier:
            pools.put(page, tier, pools.lift(other, tier))
        else:
            pools.empty(other, tier)
    if pools.cells is not None:
        pools.cells.unwatch(other)
    pools.remove_number(other)
    pools.attach(page, path, replaces=True)


def leave(state: State, row: Row, group: int) -> int:
    """Pages nobody will read any more leave the row, the last one first; what the tree takes of them."""
    kind, size = state.kinds[group], state.world.block_size
    stop = row.committed - reach.keeps(kind, size)
    columns = range(max(row.fronts[group], reach.sink(kind, size)), stop)
    keeps = keep_state if kind.kind == "state" else show
    fresh = sum(keeps(state, row, group, column) for column in columns)
    look_beside(state, row, group, columns)
    for column in reversed(columns):
        page = row.pages[group][column] if column < len(row.pages[group]) else None
        if page is not None:
            row.pages[group][column] = None
            if column >= row.bases[group]:
                if row.extras[group] and page.holders > 1:  # a hold keeps it: that was counted when it was held
                    row.extras[group] -= 1
                    row.peaks[group] -= 1
                row.owns[group] -= 1
            state.pools[group].let_go(page, state.now())
    row.fronts[group] = max(row.fronts[group], stop)
    if kind.kind == "state":
        row.showns[group] = row.fronts[group]
    return fresh


def look_beside(state: State, row: Row, group: int, columns: range) -> None:
    """A row goes from columns of a window where it has pages of its own: those of the tree are ranked anew, the last
    first."""
    if row.tip is None or state.kinds[group].kind != "window":
        return
    for column in reversed(columns):
        page = row.pages[group][column] if column < len(row.pages[group]) else None
        if page is not None and page.path is None:
            state.pools[group].look_again(state.tree.page(row.tip[: column + 2], group))


def keep_state(state: State, row: Row, group: int, column: int) -> bool:
    """A snapshot that a step has written is there; else it is taken when the state stands exactly at its block's end.

    Then nobody may have one there.
    """
    if column < row.written[group]:
        return show(state, row, group, column)
    pools, size = state.pools[group], state.world.block_size
    page = row.pages[group][column] if column < len(row.pages[group]) else None
    if page is None or row.tip is None or (column + 1) * size != row.computed:
        return False
    path = row.tip[: column + 2]
    if state.tree.page(path, group) is not None:
        return False
    if row.is_past:
        pools.count(slots.SKIPPED)
        return False
    copy_state(pools, row.currents[group], page)
    pools.attach(page, path)
    return True


def copy_state(pools: slots.Pools, source: Page | None, target: Page) -> None:
    """One state into another page, on the device."""
    assert source is not None
    tier = source.hottest
    pages = (target, source) if tier else (target,)
    pools.move(slots.COPY, (tier, source.copies[tier]), (0, target.copies[0]), *pages)
    pools.count(slots.ONBOARDED if tier else slots.COPIED)
    pools.count(slots.COPIED_TOKENS, pools.world.block_size)
