"""Pump: an endpoint on a thread of its own, so that bytes move while its engine computes. Decides nothing.

    with pump as endpoint: endpoint.put(...)          the caller's turn; the thread waits meanwhile
    for session in pump.ended(): ...                  what has ended since the last call

With an endpoint that is not `alone` sessions are concluded by the caller, in its own thread, when it suits it.
"""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event, RLock, Thread

from quire.core.errors import StateError, say
from quire.transfer.books import Session
from quire.transfer.endpoint import Endpoint

BUSY, IDLE = 0.0005, 0.005  # seconds between two looks at the link


class Pump:
    """Steps an endpoint again and again. Close it before the endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = RLock()
        self._wake = Event()
        self._closed = False
        self._wrong: BaseException | None = None
        self._ended: SimpleQueue[Session] = SimpleQueue()
        self._thread = Thread(target=self._run, name="quire-transfer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Endpoint:
        self._lock.acquire()
        try:
            self._check()
        except StateError:
            self._lock.release()
            raise
        return self._endpoint

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._wake.set()

    def ended(self, timeout: float = 0.0) -> list[Session]:
        """Sessions that have ended and are quiet; waits up to `timeout` seconds for the first."""
        found = self._take(timeout)
        if not found:
            self._check()
        return found

    def _take(self, timeout: float = 0.0) -> list[Session]:
        found: list[Session] = []
        with suppress(Empty):
            if timeout:
                found.append(self._ended.get(timeout=timeout))
            while True:
                found.append(self._ended.get_nowait())
        return found

    def close(self) -> list[Session]:
        """Stop the thread; the endpoint is its caller's again. Returns what has ended and was not told yet."""
        self._closed = True
        self._wake.set()
        self._thread.join()
        return self._take()

    def _check(self) -> None:
        if self._wrong is not None:
            raise StateError(say("a transfer thread", f"it has stopped: {self._wrong}", "close it")) from self._wrong
        if self._closed:
            raise StateError(say("a transfer thread", "it was closed", "use the endpoint itself"))

    def _run(self) -> None:
        try:
            while not self._closed:
                with self._lock:
                    ended = self._endpoint.step()
                    books = self._endpoint.books
                    busy = bool(books.tickets or books.arrivals)
                for session in ended:
                    self._ended.put(session)
                self._wake.wait(BUSY if busy else IDLE)
                self._wake.clear()
        except BaseException as wrong:
            self._wrong = wrong  # told to whoever asks next
