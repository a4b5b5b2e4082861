"""SlowTier: a disk or a shared store beside a replay's steps, on the virtual clock. Decides nothing.

As in the engine: pages go down in the background, as fast as writing goes; a request that arrives is prefetched, and is
passed over until its pages have come, or its wait is over. Reads are done one after the other, and so are writes. What
a step does waits for neither.
"""

from __future__ import annotations

from collections import Counter, deque
from math import inf
from typing import Any, NamedTuple

from quire import Plan, Prepared, Refusal
from quire.simulate.play.timed_cache import TimedCache
from quire.simulate.play.waiting import WaitingRequest
from quire.simulate.setup.slow_pace import COPY_BYTES, SlowPace


class PagesUp(NamedTuple):
    """Pages on their way up."""

    end: float  # when they are there
    plan: Plan
    waiting: WaitingRequest
    num_pages: int  # of the group that says where a prompt came from


class PagesDown(NamedTuple):
    """Pages on their way down."""

    end: float
    plan: Plan


class SlowTier:
    """The slow tier of one replay; `measure` is the group that says from which tiers a prompt came."""

    def __init__(self, cache: TimedCache, pace: SlowPace, measure: int) -> None:
        self._cache, self._pace, self._measure = cache, pace, measure
        self._reads: deque[PagesUp] = deque()  # in the order in which they end
        self._writing: PagesDown | None = None
        self._read_until = self._write_until = 0.0  # when the last of them is done
        self._page_bytes = max(sum(group.page_bytes for group in cache.config.groups), 1)
        self._counts: Counter[str] = Counter()
        self._waited = 0.0

    def prefetch(self, waiting: WaitingRequest, prepared: Prepared, now: float) -> None:
        """A request has come: bring what is below."""
        coming = self._cache.prefetch(prepared, now + self._pace.wait)
        if isinstance(coming, Refusal):
            self._counts["refused"] += 1
            return
        if not len(coming.plan):
            coming.close()
            return
        size = self._cache.bytes_of(coming.plan)
        begin = max(now, self._read_until) + self._pace.latency
        self._read_until = begin + size / self._pace.read
        waiting.not_before = min(self._read_until, now + self._pace.wait)
        waiting.prefetch = coming
        self._waited += waiting.not_before - now
        self._counts["prefetches"] += 1
        self._counts["late"] += self._read_until > now + self._pace.wait
        self._counts["read bytes"] += size
        pages = self._cache.pages_of(coming.plan, self._measure)
        self._reads.append(PagesUp(self._read_until, coming.plan, waiting, pages))

    def pass_time(self, now: float) -> None:
        """What is done by now is there; as much as could be written meanwhile is on its way down."""
        while self._reads and self._reads[0].end <= now:
            read = self._reads.popleft()
            self._cache.finish_background(read.plan)
            read.waiting.brought = read.num_pages
            read.waiting.found = None  # it is more now
        if self._writing is not None:
            if self._writing.end > now:
                return
            self._cache.finish_background(self._writing.plan)
            self._writing = None
        idle = max(0.0, now - self._write_until)
        limit = int((idle * self._pace.write + COPY_BYTES) // self._page_bytes) + 1
        plan = self._cache.copy_down(limit)
        if not len(plan):
            self._write_until = now  # nothing to do: what was not written cannot be made up for
            return
        size = self._cache.bytes_of(plan)
        self._counts["written bytes"] += size
        self._write_until += size / self._pace.write
        self._writing = PagesDown(self._write_until, plan)

    def close(self) -> None:
        """The replay is over: what is under way ends."""
        for read in self._reads:
            self._cache.finish_background(read.plan)
        if self._writing is not None:
            self._cache.finish_background(self._writing.plan)
        self._reads.clear()
        self._writing = None

    def next_event(self, now: float) -> float:
        """When a request that is passed over may stop waiting, or a copy down frees its pages; infinity: never."""
        written = inf if self._writing is None else self._writing.end
        return min([written, *(read.waiting.not_before for read in self._reads if read.waiting.not_before > now)])

    def to_json(self) -> dict[str, Any]:
        """What it has done."""
        counts, config = self._counts, self._cache.config
        behind = sum(self._cache.inner.stats(group).behind for group in range(len(config.groups)))
        return {
            "name": config.tiers[-1].name,
            "read_bytes": counts["read bytes"],
            "written_bytes": counts["written bytes"],
            "prefetches": counts["prefetches"],
            "prefetches_late": counts["late"],
            "prefetches_refused": counts["refused"],
            "prefetch_wait_ms": round(1000 * self._waited / max(counts["prefetches"], 1), 3),
            "pages_behind": behind,
        }
