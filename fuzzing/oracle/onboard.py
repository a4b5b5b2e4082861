"""How a page comes up to the device by definition: what makes way for it, or changes places with it. Knows no rows."""

from __future__ import annotations

from fuzzing.oracle.page import Page
from fuzzing.oracle.pools import EXCHANGE, NEW, OFFLOAD, OFFLOADED, ONBOARD, ONBOARDED, TOTAL, Pools


def onboard(pools: Pools, page: Page) -> None:
    """A held page comes to the device; when all else is full it changes places with the victim."""
    tier = page.hottest
    slot = page.copies[tier]
    target = pools.victim(0)
    assert target is not None, "the dry count was wrong"
    pools.count(TOTAL)
    victim = pools.owner[0][target]
    if victim is None:
        pools.count(NEW)
    elif len(pools.fast_copies(victim)) > 1 or victim.priority < pools.world.offload_min:
        pools.evict(0, target)
    elif not offload_softly(pools.of(victim), victim):
        if not page.stays and victim.group == page.group:
            exchange(pools, page, victim)
            return
        pools.evict(0, target)
    pools.move(ONBOARD, (tier, slot), (0, target), page)
    pools.put(page, 0, target)
    pools.count(ONBOARDED)
    if pools.world.shadows or page.stays:
        pools.restamp(tier, slot)
    else:
        pools.empty(page, tier)
    pools.arrived(page)


def offload_softly(pools: Pools, victim: Page) -> bool:
    """Offload a device page where it costs nobody the last copy, if the next in line is such a place."""
    for tier in pools.world.fast[1:]:
        room = pools.victim(tier)
        if room is not None and pools.soft(tier, room):
            pools.move(OFFLOAD, (0, pools.lift(victim, 0)), (tier, room), victim)
            pools.put(victim, tier, room)
            pools.arrived(victim)
            pools.count(OFFLOADED)
            return True
    return False


def exchange(pools: Pools, page: Page, victim: Page) -> None:
    """Two pages change places."""
    tier = page.hottest
    target, slot = pools.lift(victim, 0), pools.lift(page, tier)
    pools.move(EXCHANGE, (0, target), (tier, slot), page, victim)
    pools.put(victim, tier, slot)
    pools.put(page, 0, target)
    pools.arrived(victim)
    pools.arrived(page)
    pools.count(OFFLOADED)
    pools.count(ONBOARDED)
