"""Shadows: early copies in a colder tier, so that evicting their pages later moves nothing.

Owns which pages get one, and where. Which pages an eviction sends down, and where to, is in `evict`; the slow tier has
its own copies (`background`). Knows nothing of who asks for it.
"""

from collections.abc import Iterable

from quire.core.records.plan import Kind
from quire.core.store.reference.pools.pool import OFFLOADED, Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Page


def has_shadow(state: State, page: Page) -> bool:
    """Whether a page has more than its hottest copy, the slow tier aside."""
    return any(slot >= 0 for slot in page.slots[page.hottest + 1 : state.rules.num_fast])


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
        if page.claims or has_shadow(state, page):
            continue
        tier = next((tier for tier in range(1, state.rules.num_fast) if pool.orders[tier].num_empty), 0)
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
