"""Counts: what was allocated, reused and moved, in pages, per group. Knows no pages.

The store counts where the work happens; this file gives the numbers their names.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NUM_COUNTERS = 40
_REUSED_FULL, _REUSED_PARTIAL, _MISSED = 2, 3, 4
_TOLD, _FOUND, _SUPERSEDED, _PENDING = 32, 35, 38, 39
_REUSED_FROM, _PARTIAL_FROM, _SKIPPED, _BEHIND, _COPIED_DOWN, _PREFETCHED = 12, 20, 28, 29, 30, 31


@dataclass(frozen=True, slots=True)
class Counts:
    """Pages of one layer group, over one request, one step or the cache's life."""

    page_bytes: int
    allocated: int  # device slots handed out: new pages, copies, onboards, growth
    allocated_new: int  # of those, slots that were empty (the rest evicted something)
    reused_full: int
    reused_partial: int
    missed: int  # blocks that had to be computed, those behind the prompt (drafts) included
    onboarded: int
    offloaded: int
    copied: int  # inside the device, for partial hits and forks
    dropped: int  # pages evicted with their last copy
    demoted: int  # device copies given up because a colder copy was still there
    grown: int  # pages for tokens after the prompt
    copied_tokens: int
    skipped: int  # snapshots not taken: more was handed out than committed, so the state may be further
    behind: int  # of the dropped: worth a copy in the slow tier, and evicted before they had one (disk behind)
    copied_down: int  # copies made ahead in the slow tier
    prefetched: int  # pages brought up from the slow tier
    reused_from: tuple[int, ...]  # by tier, full and partial
    partial_from: tuple[int, ...]  # by tier, the partial ones of those
    hinted: tuple[int, ...] = (0, 0, 0)  # pages said to come back soon, later, never
    reused_hinted: tuple[int, ...] = (0, 0, 0)  # of the reused: ranked by such a hint until then
    superseded: int = 0  # pages of text that its session has left behind
    reused_pending: int = 0  # of the whole ones reused: pages that a step in flight was computing

    @property
    def reused(self) -> int:
        """Hit pages, whole or in part."""
        return self.reused_full + self.reused_partial

    @property
    def hit_rate(self) -> float:
        """Reused of all prompt blocks; 0 when there were none."""
        asked = self.reused + self.missed
        return self.reused / asked if asked else 0.0

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the slots handed out."""
        return self.allocated * self.page_bytes

    @property
    def reused_bytes(self) -> int:
        """Bytes of the hit pages, whole or in part."""
        return self.reused * self.page_bytes

    @property
    def missed_bytes(self) -> int:
        """Bytes of the pages that had to be computed."""
        return self.missed * self.page_bytes

    @property
    def copied_bytes(self) -> int:
        """Bytes of the pages copied inside the device; of a divisible page only its copied tokens move."""
        return self.copied * self.page_bytes

    @property
    def onboarded_bytes(self) -> int:
        """Bytes read up to the device."""
        return self.onboarded * self.page_bytes

    @property
    def offloaded_bytes(self) -> int:
        """Bytes written down to colder tiers."""
        return self.offloaded * self.page_bytes

    @property
    def dropped_bytes(self) -> int:
        """Bytes that left the cache."""
        return self.dropped * self.page_bytes


_NAMES = tuple(field.name for field in fields(Counts)[1:-10])  # in the store's order


def counts(row: NDArray[np.int64], page_bytes: int, num_tiers: int) -> Counts:
    """Names for one row of the store's counters."""
    numbers: list[int] = row.tolist()
    reused, partial = (tuple(numbers[at : at + num_tiers]) for at in (_REUSED_FROM, _PARTIAL_FROM))
    named = dict(zip(_NAMES, numbers, strict=False))
    return Counts(
        page_bytes=page_bytes,
        skipped=numbers[_SKIPPED],
        behind=numbers[_BEHIND],
        copied_down=numbers[_COPIED_DOWN],
        prefetched=numbers[_PREFETCHED],
        reused_from=reused,
        partial_from=partial,
        hinted=tuple(numbers[_TOLD : _TOLD + 3]),
        reused_hinted=tuple(numbers[_FOUND : _FOUND + 3]),
        superseded=numbers[_SUPERSEDED],
        reused_pending=numbers[_PENDING],
        **named,
    )


class ReuseCounts(NamedTuple):
    """Of those counts what was there for one request and what was not: cheap enough for every admission."""

    reused: int
    missed: int
    reused_from: list[int]  # by tier
    partial_from: list[int]  # by tier


def reuse(row: NDArray[np.int64], num_tiers: int) -> ReuseCounts:
    """Names for that part of one row of the store's counters."""
    numbers: list[int] = row.tolist()
    came, partly = numbers[_REUSED_FROM : _REUSED_FROM + num_tiers], numbers[_PARTIAL_FROM : _PARTIAL_FROM + num_tiers]
    return ReuseCounts(numbers[_REUSED_FULL] + numbers[_REUSED_PARTIAL], numbers[_MISSED], came, partly)


@dataclass(frozen=True, slots=True)
class Usage:
    """Slots of one group in one tier, now: capacity = empty + idle + shadows + held."""

    capacity: int
    empty: int
    idle: int  # cached pages without holders: evictable unless claimed
    shadows: int
    held: int  # in use by sequences, holds and writers, or kept out of the tree for claims and finds
    ghosts: int = 0  # pages that are gone and remembered, as often as they went, from whatever tier; counted in tier 0
    ghost_bytes: int = 0  # what they take, and those that were forgotten: 256 a slot when as many as may be have gone
    found: int = 0  # pages that finds hold here, whether idle or held by others too
    writing: int = 0  # of the held ones: slots that writers fill
    filling: int = 0  # of the held ones: slots that background plans fill
    prefetched: int = 0  # pages that prefetches hold here
    index_bytes: int = 0  # of a slow tier: memory that knowing its pages takes, with the blocks that only it has
    by_age: bool = False  # in the adaptive order: nothing is learned yet, or LRU did better: pages go by age; of tier 0
    fallbacks: int = 0  # how often LRU did better, and it has come to that
