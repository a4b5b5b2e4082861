"""Usage: where the slots of one tier and group are, those that outsiders read or write included. Changes nothing."""

from __future__ import annotations

from dataclasses import replace

from quire.core.records.reports.stats import Usage
from quire.core.state.held_hit import hits_of
from quire.core.state.registry import Registry


def usage_of(registry: Registry, tier: int, group: int) -> Usage:
    """What the store knows, and how much of it finds and writers hold."""
    setup = registry.setup
    usage = setup.usage(tier, group)
    if not registry.open_finds and not registry.open_writers:
        return usage
    place, read, filled = setup.pools[group].place, set[int](), 0
    for kept in registry.open_finds.values():
        hit = hits_of(kept, group)
        if hit is not None:
            read.update(hit.pages(place)[hit.places(place)[0] == tier].tolist())
    for writing in registry.open_writers.values():
        if writing.tier == tier and group in setup.own_groups:
            filled += len(writing.pages[group])
    return replace(usage, found=len(read), writing=filled)
