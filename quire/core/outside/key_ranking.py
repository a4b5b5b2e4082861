"""KeyRanking: a caller's keys, ranked by an order that learns, with the time. Owns when it learns, and which priorities
end when.

For users of the order alone, who keep the bytes themselves and know them by name: the host cache of another engine, a
disk of named pages. Knows no tokens. Not thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Sequence
from heapq import heappop, heappush
from typing import Literal

from quire.core.records.config import DEFAULT_PRIORITY
from quire.core.records.retain import TICKS_PER_SECOND
from quire.core.state.learner import Learner
from quire.core.store import StoreName, open_store
from quire.core.store.interface import KeyOrder

Clock = Callable[[], float]  # seconds from any start; it should not go back
GHOSTS = 8  # keys that are gone and remembered, for each that may be there
MOST_TIMED = 1 << 16  # texts whose priority ends; of more the first to end ends at once


class KeyRanking:
    """Which keys go next. `order` learns what is held and what continues what; here is all that takes the time."""

    def __init__(
        self, room: int, eviction: Literal["adaptive", "lru"] = "adaptive", *, clock: Clock = time.monotonic,
        store: StoreName = "auto",
    ) -> None:  # fmt: skip
        self.order: KeyOrder = open_store(store).KeyOrder(room, GHOSTS, eviction == "adaptive")
        self._clock = clock
        self._learner = Learner()
        self._timed: list[tuple[int, int, tuple[bytes, ...]]] = []  # when a priority ends; which one; of which keys
        self._texts = 0
        self._latest: dict[bytes, int] = {}  # of a key with a timed priority: which one counts

    def clear(self) -> None:
        """All keys go, and all that was learned."""
        self.order.clear()
        self._learner = Learner()
        self._timed.clear()
        self._latest.clear()

    def meet(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """These keys will come: how many of them were there before, and the class of the last of those."""
        self._set_time()
        return self.order.meet(keys)

    def use(self, keys: Sequence[bytes], reused: Container[bytes], continued: bool) -> int:
        """As `KeyOrder.use`; the order learns when there is enough new."""
        self._set_time()
        last = self.order.use(keys, reused, continued)
        if self.order.is_due:
            self.order.set_rank(*self._learner.order(*self.order.take_counts()))
        return last

    def take(self, count: int, spared: Collection[bytes] = ()) -> list[bytes] | None:
        """As `KeyOrder.take`; priorities that have ended count no more."""
        self._end_priorities(self._set_time())
        return self.order.take(count, spared)

    def retain(self, keys: Sequence[bytes], priority: int, seconds: float | None = None) -> None:
        """These keys have this priority, for so long if that is said."""
        self.order.retain(keys, priority)
        for key in keys:
            self._latest.pop(key, None)
        if seconds is None or priority == DEFAULT_PRIORITY:
            return
        now = self._set_time()
        self._texts += 1
        self._latest.update(dict.fromkeys(keys, self._texts))
        heappush(self._timed, (now + int(seconds * TICKS_PER_SECOND), self._texts, tuple(keys)))
        if len(self._timed) > MOST_TIMED:
            self._end_first()

    def _set_time(self) -> int:
        now = int(self._clock() * TICKS_PER_SECOND)
        self.order.set_time(now)
        return now

    def _end_priorities(self, now: int) -> None:
        while self._timed and self._timed[0][0] <= now:
            self._end_first()

    def _end_first(self) -> None:
        _, text, keys = heappop(self._timed)
        ended = [key for key in keys if self._latest.get(key) == text]
        self.order.retain(ended, DEFAULT_PRIORITY)
        for key in ended:
            del self._latest[key]
