"""How a page comes up to the device, by an `exchange` if need be.

Owns what makes way for it. Knows nothing of rows or hits; the caller has made sure that there is a slot to take.
"""

from quire.core.records.plan import Kind
from quire.core.store.reference.moves.events import log_moved
from quire.core.store.reference.moves.evict import evict_copy, pick_device, soft_room
from quire.core.store.reference.moves.exchange import exchange
from quire.core.store.reference.moves.offload import has_shadow, note_move, num_fast, offload_to
from quire.core.store.reference.pools.pool import NEW, ONBOARDED, Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Page


def onboard(state: State, pool: Pool, page: Page) -> None:
    """Bring a held page from a colder tier to the device."""
    tier, slot = pool.place(page)
    target = pick_device(pool)
    victim = pool.owner(0, target)
    if victim is None:
        pool.unlist_slot(0, target)
        pool.count(NEW)
    elif not clear_slot(state, state.pools[victim.group], target, victim):
        if not page.stays and victim.group == page.group:
            exchange(state, pool, page, victim)
            return
        evict_copy(state, pool, 0, target)  # the page is read below, or a move would be of two groups
    state.moves.add(Kind.ONBOARD, pool.group, (tier, slot), (0, target), [page])
    pool.put_copy(page, 0, target)
    log_moved(state, pool, page, tier, 0)
    pool.count(ONBOARDED)
    if state.rules.shadows or page.stays:
        pool.orders[tier].push_shadow(slot)
    else:
        pool.discard_copy(page, tier)
    note_move(pool, page, tier, 0)


def clear_slot(state: State, pool: Pool, slot: int, victim: Page) -> bool:
    """Free a device slot without displacing idle pages below; False: only an exchange will do."""
    if has_shadow(state, pool, victim) or victim.priority < state.rules.offload_min:
        evict_copy(state, pool, 0, slot)
        return True
    for tier in range(1, num_fast(state, pool)):
        room = soft_room(pool, tier, pool.pick(tier))
        if room >= 0:
            pool.remove_copy(victim, 0)
            offload_to(state, pool, victim, (0, slot), (tier, room))
            return True
    return False
