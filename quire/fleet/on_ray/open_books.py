"""The books of this process's routers. Apart from the router: Ray copies a router's module with its class."""

from __future__ import annotations

from threading import Lock
from weakref import WeakSet

from quire.fleet.worker_book import WorkerBook

_books: WeakSet[WorkerBook] = WeakSet()
_lock = Lock()


def add_book(book: WorkerBook) -> None:
    """A router keeps this one."""
    with _lock:
        _books.add(book)


def open_books() -> list[WorkerBook]:
    """Those that routers of this process keep."""
    with _lock:
        return list(_books)
