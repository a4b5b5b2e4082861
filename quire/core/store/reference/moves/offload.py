"""How an idle page goes down to a colder tier: the move itself, and shadows: early copies, so that evicting their pages
later moves nothing.

Owns the move, which pages get a shadow, and where. Which pages an eviction sends down, and where to, is in `evict`; the
slow tier has its own copies (`background`). Knows nothing of who asks for it.
"""

from collections.abc import Iterable

from quire.core.records.plan import Kind
from quire.core.store.reference.moves.events import log_moved
from quire.core.store.reference.pools.log import Place
from quire.core.store.reference.pools.pool import OFFLOADED, Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Page


def num_fast(state: State, pool: Pool) -> int:
    """Tiers that plans of steps read and write."""
    return len(pool.orders) if state.rules.slow < 0 else state.rules.slow


def note_move(pool: Pool, page: Page, source: int, target: int) -> None:
    """A committed page has its hottest copy in another tier: it may cover its parent, or not any more."""
    if page.node is not None:
        pool.child_moved(page.node, source, target)


def offload_to(state: State, pool: Pool, victim: Page, source: Place, target: Place) -> None:
    """An idle page that has just lost `source` goes on in `target`."""
    state.moves.add(Kind.OFFLOAD, pool.group, source, target, [victim])
    pool.put_copy(victim, *target)
    pool.list_idle(victim)
    log_moved(state, pool, victim, source[0], target[0])
    note_move(pool, victim, source[0], target[0])
    pool.count(OFFLOADED)


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
