"""Settle: a seated row gets everything it asks for: slots, onboards and copies.

Owns the order of these steps and their counters. Knows nothing of budgets: the layer above has counted the slots.
"""

from collections.abc import Sequence

from quire.core.store.reference.hits.partial import copy_source, may_take_over, take_source
from quire.core.store.reference.hits.walk_result import Hit
from quire.core.store.reference.moves.columns import fill_holes, onboard
from quire.core.store.reference.moves.evict import new_page
from quire.core.store.reference.moves.priority import set_priority
from quire.core.store.reference.pools.pool import PARTIAL_FROM, PENDING, REUSED_FROM, REUSED_FULL, REUSED_PARTIAL, Pool
from quire.core.store.reference.pools.reserve import Ask, Retention, check_asks, count_own, set_peak
from quire.core.store.reference.pools.state import State, counters_now, note_counters
from quire.core.store.reference.rows.state_snapshots import open_current, resume_current
from quire.core.store.reference.rows.teach import teach_new, teach_prompt


def settle(
    state: State, number: int, hit: Hit, asks: Sequence[Ask], retention: Retention, decode: tuple[int, int]
) -> None:
    """Give a seated row everything it asked for; `decode`: priority and duration of pages made later on."""
    row = state.table.row(number)
    _check(state, number, hit, asks, retention)
    row.priority, row.duration = decode
    state.count_admission()
    state.makes[0] = number
    taken_over = retention.of_new(hit.blocks) if may_take_over(hit) else None
    before = counters_now(state)
    for counters in state.table.row_counters:
        counters[number] = 0
    for pool, ask in zip(state.pools, asks, strict=True):
        group = state.groups[pool.group]
        teach_prompt(state, pool, number, hit, ask)
        reuse_full(state, pool, number, hit, retention)
        if hit.source_pages:
            reuse_partial(state, pool, number, hit, taken_over)
        elif group.current:
            open_current(state, pool, number, hit.held_blocks(pool.group))
        fill_holes(state, pool, number, (*range(min(group.sink, ask.first)), *range(ask.first, ask.stop)), retention)
        teach_new(state, pool, number)
        for _ in range(ask.spare):
            row.spares[pool.group].append(new_page(state, pool, row.priority, row.duration))
        held = 0 if group.current else hit.end_of(pool.group)
        state.table.capacity[pool.group][number] = max(ask.stop, held)
        set_peak(pool, row.stakes[pool.group], ask.peak)
    note_counters(state, number, before)
    hit.settled()


def _check(state: State, number: int, hit: Hit, asks: Sequence[Ask], retention: Retention) -> None:
    if hit.row != number:
        raise ValueError(f"this hit is not seated in row {number}")
    check_asks(asks, retention, len(state.pools), state.table.columns)
    lowest = hit.blocks + (hit.source_node is not None)
    for group, ask in zip(state.groups, asks, strict=True):
        if not group.current and ask.stop < lowest:
            raise ValueError(f"columns up to {ask.stop} asked, the hit has {lowest}")


def reuse_full(state: State, pool: Pool, number: int, hit: Hit, retention: Retention) -> None:
    """Count and retain the held pages, then bring the cold ones to the device; a snapshot stays where it is."""
    table, group, held = state.table, pool.group, hit.held_blocks(pool.group)
    pages = [(block, pool.pages[table.pages[group][number, block]]) for block in held]
    pool.count(PENDING, sum(int(table.committed[number]) <= block < hit.blocks for block in held))
    for block, page in pages:
        pool.count(REUSED_FULL)
        pool.count(REUSED_FROM + page.hottest)
        pool.use_page(page)
        asked = retention.asked(block)
        if asked is not None:
            set_priority(state, pool, page, asked[0])
            page.duration = asked[1]
    if state.groups[group].current:
        return
    for block, page in pages:
        if page.hottest > 0:
            onboard(state, pool, page)
        table.set_column(group, number, block, page)


def reuse_partial(state: State, pool: Pool, number: int, hit: Hit, taken_over: tuple[int, int] | None) -> None:
    """The matched tokens of the source: its own page, taken over with this retention, or copied into a new page."""
    source = hit.source_pages[pool.group]
    pool.count(REUSED_PARTIAL)
    pool.count(REUSED_FROM + source.hottest)
    pool.count(PARTIAL_FROM + source.hottest)
    if state.groups[pool.group].current:
        resume_current(state, pool, number, source, taken_over is not None)
        return
    if taken_over is not None:
        page = take_source(state, pool, source, taken_over)
    else:
        page = copy_source(state, pool, source, hit.matched, (source.priority, source.duration))
    state.table.set_column(pool.group, number, hit.blocks, page)
    count_own(pool, state.table.row(number).stakes[pool.group], 1)
