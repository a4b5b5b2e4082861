"""Breaker: whether a store is worth asking. Owns that one decision; knows no store.

closed ──unreachable, or late LATE_CALLS times in a row──► open ──a probe, now and then──► closed
                                                            └── it fails: wait twice as long, at most LONGEST
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from quire.tiers.shared.stores.store import StoreMiss

LATE_CALLS = 3
FIRST_WAIT, LONGEST_WAIT = 0.25, 15.0  # seconds between probes


class Breaker:
    """Open: no call goes out, and every page is a miss at once. One probe at a time closes it again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._late, self._wait, self._next = 0, FIRST_WAIT, 0.0
        self._probing = False
        self.is_open = False
        self.why = ""  # it opened
        self.num_openings = 0

    def failed(self, miss: StoreMiss, why: str) -> bool:
        """A call ended so; whether that has opened it."""
        with self._lock:
            if self.is_open:
                return False
            self._late = self._late + 1 if miss is StoreMiss.LATE else LATE_CALLS
            if self._late < LATE_CALLS:
                return False
            self.is_open, self.why = True, why
            self.num_openings += 1
            self._wait = FIRST_WAIT
            self._next = self._clock() + self._wait
            return True

    def succeeded(self) -> bool:
        """The store has answered; whether that has closed it."""
        with self._lock:
            was, self.is_open, self._late, self.why = self.is_open, False, 0, ""
            return was

    def seconds_to_probe(self) -> float | None:
        """How long until a probe is due; None: none is."""
        with self._lock:
            return max(0.0, self._next - self._clock()) if self.is_open and not self._probing else None

    def begin_probe(self) -> bool:
        """Whether the caller makes the probe now; it must end it."""
        with self._lock:
            due = self.is_open and not self._probing and self._clock() >= self._next
            self._probing = self._probing or due
            return due

    def end_probe(self) -> None:
        """It has ended; unless it succeeded the next one is later."""
        with self._lock:
            self._probing = False
            self._wait = min(2 * self._wait, LONGEST_WAIT)
            self._next = self._clock() + self._wait
