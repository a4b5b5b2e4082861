"""Early copies by definition: who gets a shadow before its turn to go, and where. Knows no plans."""

from __future__ import annotations

from fuzzing.oracle.page import Page
from fuzzing.oracle.pools import OFFLOAD, OFFLOADED, Pools


def offload(pools: Pools, limit: int) -> None:
    """The next victims of the device get shadows, in empty slots only; in the adaptive order the last ones do."""
    waiting = [page for page in pools.owner[0] if page and page.idle and not page.claims and len(page.copies) == 1]
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


def turn(pools: Pools, page: Page) -> tuple[tuple[int, int], int]:
    """Sorts device pages in the order of their eviction."""
    klass = pools.klass(0, page.copies[0])
    assert klass is not None
    return pools.before(klass), pools.stamp[0][page.copies[0]]


def first_empty(pools: Pools) -> tuple[int, int] | None:
    """The empty slot that has waited longest, of the first colder tier that has one."""
    for tier in range(1, len(pools.owner)):
        empty = [slot for slot, page in enumerate(pools.owner[tier]) if page is None]
        if empty:
            return tier, min(empty, key=lambda slot: pools.stamp[tier][slot])
    return None
