"""Prefetch: pages that are brought for a waiting request before it is claimed: from a shared store, from a disk.

The rule, and its bound: a waiting request is passed over while its prefetch is under way, and no longer than until the
prefetch's own deadline; meanwhile later requests may go first. Then it is claimed with what is here, and what is
not is computed. A step never waits; between two steps that compute nothing the engine rests until pages have come. One
that comes back after a preemption is not prefetched again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class BranchPrefetch(Protocol):
    """Pages on their way; what has come is held until `close`."""

    @property
    def done(self) -> bool:
        """They are here, they will not come, or the deadline has passed: asked in every step, so it must be cheap."""
        ...

    def when_done(self, act: Callable[[], None]) -> None:
        """Call it when they are here or will not come, from whatever thread knows; at once if that is so already."""
        ...

    def close(self) -> None:
        """Its request was admitted, or wants nothing any more."""
        ...


class BothPrefetches:
    """Pages from two places, for one request."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: BranchPrefetch, second: BranchPrefetch) -> None:
        self._first, self._second = first, second

    @property
    def done(self) -> bool:
        """Neither is under way."""
        return self._first.done and self._second.done

    def when_done(self, act: Callable[[], None]) -> None:
        """When either is."""
        self._first.when_done(act)
        self._second.when_done(act)

    def close(self) -> None:
        """Of both."""
        self._first.close()
        self._second.close()
