"""Early copies by definition: who gets a shadow before its turn to go, and where. Knows no plans."""

from __future__ import annotations

from fuzzing.oracle.page import Page
from fuzzing.oracle.pools import OFFLOAD, OFFLOADED, Pools


def offload(pools: Pools, limit: int) -> None:
    """The next victims of the device get shadows, in empty slots only; in the adaptive order the last ones do."""
    waiting = [page for page in pools.owner[0] if page and page.group == pools.group and page.idle and not page.claims]
    waiting = [page for page in waiting if not is_copied(pools, page)]
    worthy = [page for page in waiting if page.priority >= pools.world.offload_min]
    if pools.cells is not None:
        worthy = pools.cells.used_often(worthy, pools.world.min_uses)
    for page in sorted(worthy, key=lambda page: turn(pools, page), reverse=pools.cells is not None)[:limit]:
        room = first_empty(pools)
        if room is None:
            return
        pools.move(OFFLOAD, (0, page.copies[0]), room, page)
        pools.put(page, *room)
        pools.count(OFFLOADED)
        if pools.cells is not None:
            pools.cells.reached["worth most copied early"] += 1


def is_copied(pools: Pools, page: Page) -> bool:
    """Whether it has a shadow, the slow tier aside."""
    return len(pools.fast_copies(page)) > 1


def turn(pools: Pools, page: Page) -> tuple[tuple[int, int], int]:
    """Sorts the idle pages of a tier in the order of their eviction."""
    tier = page.hottest
    klass = pools.klass(tier, page.copies[tier])
    assert klass is not None
    return pools.before(klass), pools.stamp[tier][page.copies[tier]]


def first_empty(pools: Pools) -> tuple[int, int] | None:
    """The empty slot that has waited longest, of the first colder tier that has one."""
    for tier in pools.world.fast[1:]:
        slots = enumerate(pools.owner[tier])
        empty = [slot for slot, page in slots if page is None and (tier, slot) not in pools.filling]
        if empty:
            return tier, min(empty, key=lambda slot: pools.stamp[tier][slot])
    return None
