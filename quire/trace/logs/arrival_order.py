"""ArrivalOrder: records in order of arrival, as far as bounded memory goes. Knows no files.

Logs are written when answers end: a request may stand thousands of lines behind one that came later.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from quire.trace.record.trace_writer import TraceRecord

MOST_RECORDS = 1 << 14
MOST_IDS = 1 << 21  # of all of them together


class ArrivalOrder:
    """Holds the newest records and hands on the earliest of them."""

    def __init__(self, hand_on: Callable[[TraceRecord], None]) -> None:
        self._hand_on = hand_on
        self._heap: list[tuple[float, int, TraceRecord]] = []
        self._room = MOST_IDS
        self._count = 0
        self._last = float("-inf")
        self.num_late = 0  # that came when a later one had been handed on

    def add(self, record: TraceRecord) -> None:
        """One more, of any time."""
        heappush(self._heap, (record.time_ms, self._count, record))
        self._count += 1
        self._room -= len(record.hash_ids)
        while len(self._heap) > MOST_RECORDS or (self._room < 0 and len(self._heap) > 1):
            self._next()

    def end(self) -> None:
        """All that are left."""
        while self._heap:
            self._next()

    def _next(self) -> None:
        time, _, record = heappop(self._heap)
        self._room += len(record.hash_ids)
        self.num_late += time < self._last
        self._last = max(self._last, time)
        self._hand_on(record)
