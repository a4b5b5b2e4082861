"""Sampler: how often a snapshot is made, and for whom. Nothing is made without a request, and then for all who ask.

Owns the pace: at most once in `FASTEST` seconds, and so seldom that the work takes less than a hundredth of a core; and
a short history of numbers, so that a page that is opened anew has something to draw. Knows no HTTP.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.viewer.cells import Colour
from quire.viewer.snapshot import MOVED, Snapshots

FASTEST = 0.5  # seconds between two snapshots, at least
SLOWEST = 5.0  # and at most
SHARE = 0.0045  # of a core that they may take, besides what reading the tree and answering take
MOST_HISTORY = 300
RECENT = 10.0  # seconds for which a request for a colour counts

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class SentSnapshot:
    """A snapshot as it is sent, and when it was made."""

    time: float
    body: str


class Sampler:
    """Snapshots of one source for any number of viewers."""

    def __init__(self, snapshots: Snapshots, clock: Callable[[], float] = time.monotonic) -> None:
        self.snapshots, self._clock = snapshots, clock
        self._lock = threading.Lock()
        self._made: dict[Colour, SentSnapshot] = {}
        self._asked: dict[Colour, float] = {}
        self._history: deque[list[float]] = deque(maxlen=MOST_HISTORY)
        self.num_made = 0
        self.spent = 0.0  # seconds of a core that one takes, without the tree

    @property
    def pace(self) -> float:
        """Seconds from one snapshot to the next."""
        return min(SLOWEST, max(FASTEST, self.spent / SHARE))

    def body(self, colour: Colour, history: bool = False) -> bytes:
        """The latest snapshot in a colour, made now if it is too old; with the numbers of the last minutes."""
        with self._lock:
            now = self._clock()
            self._asked[colour] = now
            others = sum(now - asked < RECENT for asked in self._asked.values())
            last = self._made.get(colour)
            if last is None or now - last.time >= self.pace * others:
                last = self._made[colour] = self._make(colour, now)
            extra = f'"history":{_encode(list(self._history))},' if history else ""
            return f'{{{extra}"pace":{self.pace * others:.2f},{last.body[1:]}'.encode()

    def _make(self, colour: Colour, now: float) -> SentSnapshot:
        began = time.thread_time()
        snapshot = self.snapshots.make(colour)
        self._history.append(_numbers(snapshot))
        made = SentSnapshot(now, _encode({**snapshot, "now": self._history[-1]}))
        self.num_made += 1
        spent = time.thread_time() - began - self.snapshots.reading
        self.spent = 0.7 * self.spent + 0.3 * spent if self.spent else spent
        return made


def _numbers(snapshot: dict[str, Any]) -> list[float]:
    """Time, running, waiting, used slots of the device, prompt tokens, reused ones; then pages moved, of all groups."""
    used = sum(sum(pool["counts"][1:4]) for pool in snapshot["pools"] if pool["tier"] == 0)
    requests, reuse = snapshot["requests"], snapshot["reuse"]
    moved = [sum(group[name] for group in snapshot["moved"]) for name in MOVED]
    return [snapshot["time"], requests["running"], requests["waiting"], used, reuse["tokens"], reuse["reused"], *moved]
