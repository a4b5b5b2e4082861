"""Usage: where the slots of a tier are, in the pool of a group, what outsiders read or write included.

Changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quire.core.records.plan import MoveColumn
from quire.core.records.reports.index_size import index_bytes, index_size
from quire.core.records.reports.stats import Usage
from quire.core.state.held_hit import hits_of
from quire.core.state.registry import Registry


def usage_of(registry: Registry, tier: int, group: int) -> Usage:
    """What the store knows, and how much of it finds and writers hold."""
    setup = registry.setup
    usage = setup.usage(tier, group)
    if tier and tier == setup.slow_tier:
        usage = replace(usage, index_bytes=_index_bytes(registry, group, usage))
    if registry.background or registry.open_prefetches:
        usage = replace(usage, filling=_filling(registry, tier, group), prefetched=_prefetched(registry, tier, group))
    if not registry.open_finds and not registry.open_writers:
        return usage
    read, filled = set[int](), 0
    for nth in setup.sharers[setup.pool_of[group]]:
        place = setup.pools[nth].place
        for kept in registry.open_finds.values():
            hit = hits_of(kept, nth)
            if hit is not None:
                read.update(hit.pages(place)[kept.places[nth][0] == tier].tolist())
        for writing in registry.open_writers.values():
            if writing.tier == tier and nth in setup.own_groups:
                filled += len(writing.pages[nth])
    return replace(usage, found=len(read), writing=filled)


def _index_bytes(registry: Registry, group: int, usage: Usage) -> int:
    """Its slots; and the blocks with that group of a stream that has most of them here, since groups share blocks."""
    setup = registry.setup
    store, place = setup.pools[group]
    idle = [store.num_idle(nth, setup.slow_tier) for nth in range(len(store.pages))]
    blocks = usage.idle if place == idle.index(max(idle)) else 0
    return index_bytes(index_size(setup.config), usage.capacity, blocks, store.num_nodes)


def _filling(registry: Registry, tier: int, group: int) -> int:
    """Slots that background plans fill."""
    plans, groups = [plan.moves for plan in registry.background.values()], registry.setup.sharers
    mine = groups[registry.setup.pool_of[group]]
    return sum(
        int(np.count_nonzero(np.isin(moves[:, MoveColumn.GROUP], mine) & (moves[:, MoveColumn.DST_TIER] == tier)))
        for moves in plans
    )


def _prefetched(registry: Registry, tier: int, group: int) -> int:
    """Pages that prefetches hold in a tier below the device."""
    (store, place), setup = registry.setup.pools[group], registry.setup
    found: set[int] = set()
    for kept in registry.open_prefetches.values() if tier else ():
        there = [page for nth in setup.sharers[setup.pool_of[group]] for page in kept.still_there(nth)]
        found.update(page for page in there if store.page_slots(place, page)[tier] >= 0)
    return len(found)
