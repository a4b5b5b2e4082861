"""Background copies: into the slow tier ahead of an eviction, and up from it ahead of a claim.

Owns which pages are copied and into which slots. Until a copy has landed, its target has no owner, its source stays
where it is and the page is unchanged, so no move of a step touches what the copy reads or writes. Knows nothing of who
waits.

    begin   source claimed and kept, target taken     land    target is a copy of the page, or empty again
"""

from collections.abc import Iterator, Sequence

import numpy as np

from quire.core.records.errors import BrokenInvariant
from quire.core.records.plan import COLUMNS, Kind
from quire.core.store.interface import Int32Array
from quire.core.store.reference.moves.events import log_moved
from quire.core.store.reference.moves.evict import evict_copy, is_worth_copying, note_move, take_in
from quire.core.store.reference.pools.log import NO_PAGE
from quire.core.store.reference.pools.pool import COPIED_DOWN, PREFETCHED, Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Page

Row = tuple[int, ...]


def copy_down(state: State, pool: Pool, limit: int) -> Int32Array:
    """Begin to copy idle pages into the slow tier: the coldest tier first, and in each the pages to be evicted last."""
    rows: list[Row] = []
    for page in uncopied_pages(state, pool):
        if len(rows) >= limit:
            break
        room = slow_room(state, pool, page)
        if room < 0:
            break
        source = source_tier(state, page)
        rows.append(begin_copy(state, pool, page, Kind.OFFLOAD, (source, state.rules.slow, room)))
    return _array(rows)


def uncopied_pages(state: State, pool: Pool) -> Iterator[Page]:
    """Idle pages that should have a copy in the slow tier, have none, and none is on its way."""
    slow = state.rules.slow
    for tier in range(slow - 1, -1, -1):
        for page in reversed(list(pool.orders[tier].idle_pages(state.rules.offload_min))):
            if page.group != pool.group or page.slots[slow] >= 0 or page.copying:
                continue
            if state.moves.is_pending(pool.group, page):
                continue  # a snapshot that was just committed waits for the next plan
            if is_worth_copying(state, pool, page):
                yield page


def source_tier(state: State, page: Page) -> int:
    """Where a page is read: the coldest copy that no plan of a step may still fail to write, else the hottest."""
    tiers = [tier for tier in range(state.rules.slow) if page.slots[tier] >= 0]
    return tiers[-1] if state.inherit else tiers[0]


def slow_room(state: State, pool: Pool, page: Page) -> int:
    """A slot of the slow tier for a page: empty, or of an idle page that shall make way; no shadow is given up."""
    slow = state.rules.slow
    slot = pool.pick_unshadowed(slow)
    if slot < 0:
        return -1
    if pool.owner(slow, slot) is None:
        pool.unlist_slot(slow, slot)
        return slot
    if pool.is_outranked(page, slow, slot):
        return -1
    evict_copy(state, pool, slow, slot)
    return slot


def bring_up(state: State, pool: Pool, pages: Sequence[Page]) -> Int32Array:
    """Begin to bring pages that are in the slow tier only up to the next faster one; the caller has counted its slots.

    Those under way already, and those that have come since, are left out.
    """
    rows: list[Row] = []
    slow = state.rules.slow
    for page in pages:
        if page.hottest == slow and not page.copying:
            slot = take_in(state, pool, slow - 1)
            rows.append(begin_copy(state, pool, page, Kind.ONBOARD, (slow, slow - 1, slot)))
    return _array(rows)


def begin_copy(state: State, pool: Pool, page: Page, kind: Kind, ends: tuple[int, int, int]) -> Row:
    """A page is read from a tier into a taken slot of another: the move."""
    source, target, slot = ends
    pool.claim_page(page)
    pool.keep_page(page)
    page.copying = True
    size = state.rules.block_size
    return (kind, pool.group, source, page.slots[source], target, slot, size, page.number, page.stamp, *NO_PAGE)


def _array(rows: list[Row]) -> Int32Array:
    return np.array(rows, np.int32).reshape(-1, COLUMNS)


def land(state: State, moves: Int32Array, failed: Sequence[bool]) -> None:
    """Background copies have been made, or have failed: their slots are copies of the pages, or empty again."""
    for (_, group, _, source, tier, slot, _, number, stamp, _, _), missed in zip(moves.tolist(), failed, strict=True):
        pool = state.pools[group]
        page = pool.page(number)
        if page.stamp != stamp or not page.copying:
            raise BrokenInvariant(f"page {number} of group {group} is not being copied from slot {source}")
        page.copying = False
        if missed or page.node is None or page.slots[tier] >= 0:
            pool.list_empty(tier, slot)
        elif tier == state.rules.slow:
            pool.put_copy(page, tier, slot)
            pool.orders[tier].push_shadow(slot)
            pool.count(COPIED_DOWN)
        else:
            arrive(state, pool, page, tier, slot)
        pool.unkeep_page(page)
        pool.unclaim_page(page)


def arrive(state: State, pool: Pool, page: Page, tier: int, slot: int) -> None:
    """An idle page of the slow tier has a faster copy from now on; the slow one is its shadow."""
    slow = state.rules.slow
    pool.unlist_idle(page)
    pool.put_copy(page, tier, slot)
    pool.orders[slow].push_shadow(page.slots[slow])
    pool.list_idle(page)
    log_moved(state, pool, page, slow, tier)
    note_move(pool, page, slow, tier)
    pool.count(PREFETCHED)
