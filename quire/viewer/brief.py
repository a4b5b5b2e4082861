"""Brief: a cache in a few numbers, for a page that shows many of them. Knows no HTTP."""

from __future__ import annotations

from typing import Any

from quire.core.maps import live_ids
from quire.viewer.source import CacheSource


def brief_of(source: CacheSource) -> dict[str, Any]:
    """What is so now: who asks, what was reused, how full each tier is. Nothing of prompts."""
    config, cache = source.cache.config, source.cache
    tiers = []
    for tier, one in enumerate(config.tiers):
        used = [cache.usage(tier, group) for group in range(len(config.groups))]
        cached = sum(usage.idle + usage.shadows for usage in used)
        held = sum(usage.held for usage in used)
        slots = sum(usage.capacity for usage in used)
        tiers.append({"name": one.name, "slots": slots, "held": held, "cached": cached})
    return {
        "running": len(live_ids(cache)),
        "waiting": len(source.waiting()),
        "tokens": source.tally.tokens,
        "reused": source.tally.reused,
        "tiers": tiers,
    }
