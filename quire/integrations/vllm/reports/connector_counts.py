"""ConnectorCounts: what the connector did since it was last asked, by name. Knows no vLLM; vllm_metrics.py shows it."""

from __future__ import annotations

from quire.core.cache import Cache
from quire.integrations.vllm.common.cache_groups import HOST
from quire.integrations.vllm.outer.outer_pages import OuterCounts, OuterPages

COUNTERS = {  # name: what it counts
    "lookups": "Requests that were looked up, when vLLM gave them blocks.",
    "lookup_tokens": "Tokens of those requests.",
    "hit_tokens": "Tokens loaded from host memory instead of being computed.",
    "loads": "Loads that were ordered.",
    "loaded_pages": "Pages loaded.",
    "failed_loads": "Loads that failed; their requests were computed.",
    "refused_loads": "Loads that were not ordered, since vLLM asked for other blocks than were held.",
    "lost_pages": "Pages that turned out to be bad, and were given up.",
    "stores": "Stores that were ordered.",
    "carried_stores": "Stores of what steps before had computed: no step stores more than a part of a long chunk.",
    "stored_pages": "Pages that became findable.",
    "failed_stores": "Stores that failed; their pages are not found.",
    "refused_stores": "Stores that were cut short, since too few slots could be had.",
    "evicted_pages": "Pages that made room for others.",
    "hinted_pages": "Pages of which it was said when they come back.",
    "superseded_pages": "Pages that a session has left behind.",
    "prefetches": "Requests for which pages were asked for below host memory.",
    "late_prefetches": "Requests that were computed before all of those pages had come.",
    "disk_restored": "Pages that were found on disk at the start.",
    "disk_written": "Pages copied to the disk.",
    "disk_read": "Pages brought from the disk.",
    "disk_failed": "Pages that the disk did not take, or whose bytes there were bad.",
    "shared_fetched": "Pages that came from the shared store.",
    "shared_sent": "Pages that went to the shared store.",
    "load_bytes": "Bytes copied from host memory, by all ranks.",
    "load_seconds": "Seconds that took, of all ranks.",
    "store_bytes": "Bytes copied to host memory, by all ranks.",
    "store_seconds": "Seconds that took, of all ranks.",
}
CAUSES = (
    "policy", "last_token", "short", "under_way", "evicted", "failed", "forgotten", "window", "snapshot",
    "other_scope", "new", "interrupted", "slow",
)  # fmt: skip
COUNTERS |= {f"missed_{cause}": f"Tokens that were not in the cache, by cause: {cause}." for cause in CAUSES}
GAUGES = {
    "host_pages": "Pages in host memory.", "host_slots": "Places for pages in host memory.",
    "disk_pages": "Pages on disk.", "disk_slots": "Places for pages on disk.",
}  # fmt: skip


class ConnectorCounts:
    """Of the scheduler's side."""

    def __init__(self, cache: Cache, outer: OuterPages | None = None) -> None:
        self._cache, self._outer, self._below = cache, outer, OuterCounts()
        self._since: dict[str, float] = {}
        self._evicted = 0
        self.total: dict[str, float] = {}

    def add(self, name: str, number: float = 1) -> None:
        """So many more."""
        self._since[name] = self._since.get(name, 0) + number

    def take(self) -> dict[str, dict[str, float]]:
        """What was counted since the last call, and how full it is now; empty when nothing was."""
        if not self._since:  # what makes room for others is counted with them
            return {}
        cache, groups = self._cache, range(len(self._cache.config.groups))
        evicted = sum(cache.stats(group).dropped for group in groups)
        if evicted != self._evicted:
            self.add("evicted_pages", evicted - self._evicted)
            self._evicted = evicted
        if self._outer is not None:
            below = self._outer.counts()
            for name, now, before in zip(OuterCounts._fields, below, self._below, strict=True):
                if now != before:
                    self.add(name, now - before)
            self._below = below
        gauges = {}
        for tier, name in enumerate(("host", "disk")[: len(cache.config.tiers) - HOST], HOST):
            usage = cache.usage(tier)  # all groups have one pool
            gauges[f"{name}_pages"] = float(usage.idle + usage.held + usage.shadows)
            gauges[f"{name}_slots"] = float(usage.capacity)
        counted, self._since = self._since, {}
        for name, number in counted.items():
            self.total[name] = self.total.get(name, 0) + number
        return {"counters": counted, "gauges": gauges}
