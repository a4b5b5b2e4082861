"""Reading the recorder: now, or as soon as there is something. Owns waiting; knows neither sockets nor encodings.

A reader is not woken: it looks at a counter every now and then, so that the cache pays nothing for being read.
"""

from __future__ import annotations

import time

from quire.core.records.errors import InputError, say, shown
from quire.core.records.events import EventArrays, EventBatch, joined, named
from quire.core.records.identity import RestoredScope, Scope
from quire.core.state.setup import Setup

SHORTEST, LONGEST = 0.0002, 0.005  # seconds between two looks


def take_events(setup: Setup, whole: bool) -> EventBatch:
    """What was recorded since the last time, or the whole state; under the cache's lock."""
    parts = []
    names: dict[int, Scope | RestoredScope] = {}
    for stream in setup.streams:
        arrays = EventArrays(*stream.store.take_events(whole))
        parts.append((arrays, stream.first))
        names |= stream.roots.take_names(named(arrays.records) if len(arrays.records) else ())
    return EventBatch(joined(parts), names, setup.config.rank, whole and setup.config.events)


def wait_for_events(setup: Setup, timeout: float | None, whole: bool) -> None:
    """Return when there is something to take, or when the time is over; without the cache's lock."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0):
        raise InputError(
            say(f"events within {shown(timeout)} s", "that is not a time to wait", "pass 0 or more, or None")
        )
    if timeout == 0 or whole or not setup.config.events:
        return
    end = None if timeout is None else time.monotonic() + timeout
    pause = SHORTEST
    while not any(stream.store.num_events for stream in setup.streams):
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                return
            pause = min(pause, left)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)
