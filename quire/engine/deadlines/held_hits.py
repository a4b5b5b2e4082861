"""HeldHits: what was found for accepted requests stays until they are admitted, in a bounded share of the device.

One whose hit there is no room for counts as new text. Holds go before any branch loses its pages: the request with the
latest deadline gives up first. Knows no queue.
"""

from __future__ import annotations

from collections import Counter

from quire.core.admission.probe import Probe
from quire.core.cache import Cache
from quire.core.outside.find import Found
from quire.core.records.groups import pools_of
from quire.core.state.prepared import Prepared
from quire.engine.step.runs.branch import Run

SHARE = 0.25  # of the device's pages of a pool


class HeldHits:
    """By run."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._pools = pools_of(cache.config.groups)
        slots = {pool: cache.config.slots_of(0, group) for group, pool in enumerate(self._pools)}
        self._most = {pool: int(SHARE * count) for pool, count in slots.items()}
        self._held = Counter[int]()  # pages by pool
        self._found: dict[Run, Found] = {}
        self.num_given_up = 0

    def __repr__(self) -> str:
        return f"HeldHits({len(self._found)} hits, {sum(self._held.values())} pages)"

    @property
    def num_pages(self) -> int:
        """Of all, counted once per hit."""
        return sum(self._held.values())

    def has_room(self, probe: Probe) -> bool:
        """Whether a hit could be held, by what was found of each group."""
        pages, size = Counter[int](), self._cache.config.block_size
        for pool, spans in zip(self._pools, probe.spans, strict=False):
            pages[pool] += min(probe.hit_blocks, -(-sum(map(len, spans)) // size))
        return all(self._held[pool] + count <= self._most[pool] for pool, count in pages.items())

    def hold(self, run: Run, prepared: Prepared) -> int:
        """Hold the hit of a run; the leading tokens that are there for it from now on, 0 where there is no room."""
        found = self._cache.find(prepared)
        pages = self._pages(found)
        if not pages or any(self._held[pool] + count > self._most[pool] for pool, count in pages.items()):
            found.close()
            return 0
        self._found[run] = found
        self._held.update(pages)
        return found.end

    def _pages(self, found: Found) -> Counter[int]:
        pages = Counter[int]()
        for group, pool in enumerate(self._pools):
            if count := len(found.blocks(group)):
                pages[pool] += count
        return pages

    def give_back(self, run: Run) -> None:
        """It was admitted, or wants nothing any more."""
        found = self._found.pop(run, None)
        if found is not None:
            self._held.subtract(self._pages(found))
            found.close()

    def give_one_up(self) -> bool:
        """The run with the latest deadline is held nothing any more; False: none is."""
        if not self._found:
            return False
        self.give_back(max(self._found, key=lambda run: (run.deadline, run.arrival)))
        self.num_given_up += 1
        return True
