"""StoreClient: what every user of a shared store needs, once: deadlines, a breaker, counters. Owns the store.

    call ──breaker open──► a miss with a reason, at once
      └──closed──► the store ──answers──► checked pages, counted
                     └── late, unreachable, full: misses with a reason; the breaker hears of it

Its calls wait for the store: make them on a thread that may wait. Knows no cache and no tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TypeVar

from quire.core.records.errors import say
from quire.tiers.base import Bytes
from quire.tiers.page_digest import NAME_BYTES
from quire.tiers.shared.calls.breaker import Breaker
from quire.tiers.shared.calls.counters import StoreCounts, StoreTally
from quire.tiers.shared.stores.store import SharedStore, StoreError, StoreMiss

T = TypeVar("T")
PROBE_SECONDS = 1.0  # a store that takes longer to look up one name is not back
GRACE = 1.0  # seconds beyond its deadline until a call that hangs counts as late
FULL_PAUSE = 1.0  # seconds in which nothing is sent to a store that was full
_PROBE = bytes(NAME_BYTES)
_log = logging.getLogger("quire.shared")


class StoreClient:
    """A store, called with deadlines. A store that fails costs its users nothing but what it held."""

    def __init__(self, store: SharedStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self._clock = store, clock
        self.breaker = Breaker(clock)
        self.tally = StoreTally()
        self._lock = Lock()
        self._calls: dict[int, float] = {}  # under way: number -> deadline
        self._number = 0
        self._full_until = 0.0
        self._format_logged = False
        self._closed = False

    def __repr__(self) -> str:
        return f"StoreClient({self.store.name}, {'reachable' if self.reachable else 'unreachable'})"

    @property
    def reachable(self) -> bool:
        """Whether it is worth asking. A call that hangs far beyond its deadline counts, too."""
        with self._lock:
            late = [number for number, deadline in self._calls.items() if self._clock() > deadline + GRACE]
            for number in late:
                self._calls[number] = float("inf")  # logged once
        for _ in late:
            self._failed(StoreError(self.store.name, StoreMiss.UNREACHABLE, "a call hangs"))
        return not self.breaker.is_open and not self._closed

    @property
    def takes_pages(self) -> bool:
        """Whether it is worth sending: reachable, and not full a moment ago."""
        return self.reachable and self._clock() >= self._full_until

    def counts(self) -> StoreCounts:
        """What it has done so far."""
        return self.tally.counts(self.breaker.num_openings, self.reachable)

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool] | StoreMiss:
        """Which are there; or why that is not known."""
        answer = self._call("exists", deadline, lambda: self.store.exists_many(names, deadline))
        if isinstance(answer, StoreMiss):
            self.tally.missed(answer, len(names))
        return answer

    def get_many(self, names: Sequence[bytes], into: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        """Fill the buffers; None where a page came, and why not elsewhere."""
        answer = self._call("get", deadline, lambda: self.store.get_many(names, into, deadline))
        answers: list[StoreMiss | None] = [answer] * len(names) if isinstance(answer, StoreMiss) else answer
        self.tally.came(answers, (page.nbytes for page in into))
        if StoreMiss.FORMAT in answers and not self._format_logged:
            self._format_logged = True
            fact = "a newer version of Quire wrote them, and this one cannot read them: they count as missing"
            cure = "upgrade this machine, or give it a store of its own until then"
            _log.warning("%s", say(f"pages of shared store {self.store.name}", fact, cure))
        return answers

    def put_many(self, names: Sequence[bytes], pages: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        """Send pages; None where one went, and why not elsewhere."""
        answers: list[StoreMiss | None] = [StoreMiss.FULL] * len(names)
        if self._clock() >= self._full_until:
            answer = self._call("put", deadline, lambda: self.store.put_many(names, pages, deadline))
            answers = [answer] * len(names) if isinstance(answer, StoreMiss) else answer
            if StoreMiss.FULL in answers:  # it says so itself: what it was not asked for makes the pause no longer
                self._full_until = self._clock() + FULL_PAUSE
        self.tally.went(answers, (page.nbytes for page in pages))
        return answers

    def remove_scope(self, tag: bytes, deadline: float) -> int:
        """Take out every page of a scope; raises StoreError where it may not have happened."""
        if self._closed:
            raise StoreError(self.store.name, StoreMiss.CLOSED, "it is closed")
        return self.store.remove_scope(tag, deadline)

    def _call(self, verb: str, deadline: float, act: Callable[[], T]) -> T | StoreMiss:
        if self._closed:
            return StoreMiss.CLOSED
        if not self.reachable:
            return StoreMiss.UNREACHABLE
        started = self._clock()
        if started >= deadline:
            return StoreMiss.LATE
        with self._lock:
            self._number += 1
            number = self._number
            self._calls[number] = deadline
        try:
            answer = act()
        except StoreError as error:
            self._failed(error)
            return error.miss
        finally:
            with self._lock:
                del self._calls[number]
            self.tally.called(verb, self._clock() - started)
        self._answered()
        return answer

    def _failed(self, wrong: StoreError) -> None:
        if wrong.miss is not StoreMiss.FULL and self.breaker.failed(wrong.miss, wrong.fact):
            _log.warning("%s; nothing is asked of it until it answers again", wrong)

    def _answered(self) -> None:
        if self.breaker.succeeded():
            _log.warning("shared store %s answers again", self.store.name)

    def probe(self) -> None:
        """Ask an unreachable store whether it is back, if that is due; for a thread with nothing else to do."""
        if self._closed or not self.breaker.begin_probe():
            return
        try:
            self.store.exists_many([_PROBE], self._clock() + PROBE_SECONDS)
        except StoreError:
            pass
        else:
            self._answered()
        finally:
            self.breaker.end_probe()

    def close(self) -> None:
        """Close the store; calls from now on are misses."""
        if not self._closed:
            self._closed = True
            self.store.close()
