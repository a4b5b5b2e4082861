"""How a page comes up to the device, by an exchange if need be.

Owns what makes way for it. Knows nothing of rows or hits; the caller has made sure that there is a slot to take.
"""

from quire.core.records.plan import Kind
from quire.core.store.twin.moves.events import log_moved
from quire.core.store.twin.moves.evict import evict_copy, note_move, num_fast, offload_to, pick_device, soft_room
from quire.core.store.twin.moves.offload import has_shadow
from quire.core.store.twin.pools.pool import NEW, OFFLOADED, ONBOARDED, Pool
from quire.core.store.twin.pools.state import State
from quire.core.store.twin.tree.node import Page


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
        evict_copy(state, pool, 0, target)  # somebody reads the page below, or a move would be of two groups
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


def exchange(state: State, pool: Pool, page: Page, victim: Page) -> None:
    """Full on both sides: the page and the device victim change places."""
    tier, slot = pool.place(page)
    target = victim.slots[0]
    state.moves.add(Kind.EXCHANGE, pool.group, (0, target), (tier, slot), [page, victim])
    pool.remove_copy(victim, 0)
    pool.remove_copy(page, tier)
    pool.put_copy(victim, tier, slot)
    pool.list_idle(victim)
    pool.put_copy(page, 0, target)
    log_moved(state, pool, victim, 0, tier)
    log_moved(state, pool, page, tier, 0)
    note_move(pool, victim, 0, tier)
    note_move(pool, page, tier, 0)
    pool.count(OFFLOADED)
    pool.count(ONBOARDED)
