"""Recut by definition: a row goes back, and gets pages of its own for what it computes again. Knows no claims."""

from __future__ import annotations

from fuzzing.oracle import life
from fuzzing.oracle import pools as slots
from fuzzing.oracle.page import DEFAULT, Page
from fuzzing.oracle.state import Row, State


def recut(state: State, row: Row, cut: int, shared_end: int = 0, end: int = 0) -> bool:
    """The row gets pages of its own from block `cut` on, where others read what it has committed or was to share; False
    when there is no room. Steps in flight compute it up to `end`."""
    size = state.world.block_size
    blocks = range(cut, max(row.committed, shared_end // size))
    shared = [[block for block in blocks if not private(pages, block)] for pages in row.pages]
    for some in state.sharers:
        freed = sum(freed_after(state.pools[group], shared[group], row) for group in some)
        if sum(len(shared[group]) for group in some) > state.pools[some[0]].room.free() + freed:
            return False
    for pools, lost in zip(state.pools, shared, strict=True):
        for block in reversed(lost):
            page = row.pages[pools.group][block]
            assert page is not None
            pools.let_go(page, state.now())
    for pools, lost in zip(state.pools, shared, strict=True):
        life.set_fresh(pools, row)
        for block in lost:
            row.pages[pools.group][block] = pools.open_page(DEFAULT, None)
    row.computed = min(row.computed, cut * size)
    row.committed = min(row.committed, cut)
    row.showns = [min(shown, cut) for shown in row.showns]
    if row.tip is not None:
        row.tip = row.tip[: cut + 1]
        state.tree.forget_gone()
    row.granted = row.handed = max(row.computed, end)
    row.start = min(row.start, row.handed)
    row.prompt_end = max(row.prompt_end, life.paged(state, row))
    row.prompt = max(row.prompt, life.paged(state, row))
    return True


def freed_after(pools: slots.Pools, lost: list[int], row: Row) -> int:
    """Slots that are free once the row has let go of these blocks: those that it alone held and nobody claims."""
    pages = [page for block in lost if (page := row.pages[pools.group][block]) is not None]
    return sum(page.path is not None and page.holders == 1 and not page.claims for page in pages)


def private(pages: list[Page | None], block: int) -> bool:
    """A page only this row has and nobody reads, or no page."""
    page = pages[block] if block < len(pages) else None
    return page is None or (page.path is None and page.holders == 1 and not page.claims)
