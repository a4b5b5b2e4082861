"""Shadows: early copies of idle pages in colder tiers, so that evicting them later moves nothing.

Owns which pages get one, and where; the slow tier has its own (`background`). Knows nothing of who asks for it.
"""

from collections.abc import Iterable

from quire.core.records.plan import Kind
from quire.core.store.twin.moves.evict import num_fast
from quire.core.store.twin.pools.pool import OFFLOADED, Pool
from quire.core.store.twin.pools.state import State
from quire.core.store.twin.tree.node import Page


def has_shadow(state: State, pool: Pool, page: Page) -> bool:
    """Whether a page has more than its hottest copy, the slow tier aside."""
    return any(slot >= 0 for slot in page.slots[page.hottest + 1 : num_fast(state, pool)])


def early_pages(state: State, pool: Pool) -> Iterable[Page]:
    """Pages that may be copied down early: the next victims first. The adaptive order, which knows what is worth most,
    begins at its other end, with pages that were used often enough."""
    pages = [page for page in pool.orders[0].idle_pages(state.rules.offload_min) if page.group == pool.group]
    if pool.cells is None:
        return pages
    return [page for page in reversed(pages) if page.uses >= state.rules.min_uses]


def offload(state: State, pool: Pool, limit: int) -> int:
    """Copy device pages down into EMPTY slots, so that evicting them later moves nothing."""
    copied = 0
    for page in early_pages(state, pool):
        if copied >= limit:
            break
        if page.claims or has_shadow(state, pool, page):
            continue
        tier = next((tier for tier in range(1, num_fast(state, pool)) if pool.orders[tier].num_empty), 0)
        if not tier:
            break
        slot = pool.orders[tier].first_empty()
        pool.unlist_slot(tier, slot)
        state.moves.add(Kind.OFFLOAD, pool.group, (0, page.slots[0]), (tier, slot), [page])
        pool.put_copy(page, tier, slot)
        pool.orders[tier].push_shadow(slot)
        pool.count(OFFLOADED)
        copied += 1
    return copied
