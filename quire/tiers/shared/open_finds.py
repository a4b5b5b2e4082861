"""Open finds: those of the threads between a cache and a store, counted. A planner may ask about them.

A find keeps pages where they are for a moment, on the device too. Who finds no room for a request meanwhile has to try
again before it believes it: two marks, before and after, say whether anything was held in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from quire.core.cache import Cache
from quire.core.outside.find import Found
from quire.core.records.request import Request


class OpenFinds:
    """Finds that are open."""

    def __init__(self, cache: Cache) -> None:
        self._cache, self._lock = cache, Lock()
        self._open = self._opened = 0

    def find(self, request: Request, from_: int = 0) -> Found:
        """As `cache.find`; it ends with `let_go`."""
        with self._lock:
            self._open += 1
            self._opened += 1
        try:
            return self._cache.find(request, from_)
        except BaseException:
            self._close()
            raise

    def let_go(self, found: Found) -> None:
        """Give the pages back."""
        found.close()
        self._close()

    @contextmanager
    def reading(self, request: Request) -> Iterator[Found]:
        """A find for the time of a `with` block."""
        found = self.find(request)
        try:
            yield found
        finally:
            self.let_go(found)

    def _close(self) -> None:
        with self._lock:
            self._open -= 1

    @property
    def mark(self) -> int | None:
        """None while something is held; else a number: nothing was held between two equal ones."""
        with self._lock:
            return None if self._open else self._opened
