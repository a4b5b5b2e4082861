"""ReadClock: a cache's clock, and what it has said during a call. Knows no call."""

from __future__ import annotations

from collections.abc import Callable


class ReadClock:
    """The cache's clock; what it says while a call is made is noted."""

    def __init__(self, clock: Callable[[], float], stamp: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self.time = clock if stamp is None else stamp  # when a call was made; not a reading of the cache's
        self.read: list[float] = []

    def __call__(self) -> float:
        now = self._clock()
        self.read.append(now)
        return now
