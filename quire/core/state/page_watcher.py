"""PageWatcher: who hears whose pages are used, made and given up, and the lock that tells it when a call is over.

Knows no bill. Without such a watcher a cache has a plain lock and its stores note nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from quire.core.records.request import Int32, Request

if TYPE_CHECKING:
    from quire.core.state.claim import Promise
    from quire.core.state.sequence import Sequence as LiveSequence
    from quire.core.state.setup import Setup
    from quire.core.store.interface import Hit


@runtime_checkable
class PageWatcher(Protocol):
    """What hears of pages; called under the cache's lock: it calls no cache, waits for nothing, never raises."""

    def attach_pages(self, setup: Setup) -> None:
        """The cache is made, and has no page yet; its stores note tenure from now on."""

    def admitted(self, sequences: Iterable[LiveSequence]) -> None:
        """They have their pages."""

    def ending(self, sequence: LiveSequence, store: bool) -> None:
        """It is about to be released."""

    def seating(self, sequence: LiveSequence, claim: Promise) -> None:
        """It is about to get the pages that were claimed for it."""

    def reading(self, request: Request, hits: tuple[Hit, Hit | None]) -> None:
        """Somebody outside holds the pages of a request's hits to read them."""

    def writing(self, request: Request, pages: Sequence[Int32]) -> None:
        """Somebody outside got these new pages, by group of its own tokens, to write them."""

    def forked(self, source: LiveSequence, forks: Sequence[LiveSequence]) -> None:
        """More sequences go on from where it is."""

    def leaving(self, sequence: LiveSequence) -> None:
        """It is about to give up its row: released, suspended or lost."""

    def call_over(self) -> None:
        """The lock is about to be given back."""

    def check_sums(self, copies: Sequence[Sequence[int]]) -> None:
        """Raise BrokenInvariant where its own numbers do not add up to the stores'; `copies` by pool and tier."""


class WatchedLock:
    """A lock like the cache's, which says when a call is over, before another can begin."""

    def __init__(self, call_over: Callable[[], None]) -> None:
        self._lock, self._depth, self._call_over = threading.RLock(), 0, call_over

    def __enter__(self) -> bool:
        self._lock.acquire()
        self._depth += 1
        return True

    def __exit__(self, *_: object) -> None:
        try:
            if self._depth == 1:
                self._call_over()
        finally:
            self._depth -= 1
            self._lock.release()
