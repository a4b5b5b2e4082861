"""EndpointThread: an endpoint on a thread of its own, so that bytes move while its engine computes. Decides nothing.

    with thread as endpoint: endpoint.put(...)        the caller's turn; the thread waits meanwhile
    for session in thread.ended(): ...                what has ended since the last call

With an endpoint that is not `alone` sessions are concluded by the caller, in its own thread, when it suits it.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import RLock, Thread

from quire.core.records.errors import StateError, say
from quire.transfer.endpoint import Endpoint
from quire.transfer.session.endpoint_registry import Session

BUSY, IDLE = 0.0005, 0.005  # seconds between two looks at a link that must be polled
OPEN, CALM = 0.05, 0.25  # and at the clock, where the link wakes it: with sessions, without


class EndpointThread:
    """Steps an endpoint again and again. Close it before the endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._lock = RLock()
        self._wakes, self._waker = socket.socketpair()  # a byte in it ends the thread's sleep
        for end in (self._wakes, self._waker):
            end.setblocking(False)
        self._closed = False
        self._wrong: BaseException | None = None
        self._ended: SimpleQueue[Session] = SimpleQueue()
        self._thread = Thread(target=self._run, name="quire-transfer", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = f"stopped: {self._wrong}" if self._wrong is not None else "closed" if self._closed else "running"
        return f"EndpointThread({self.endpoint!r}, {state})"

    def __enter__(self) -> Endpoint:
        self._lock.acquire()
        try:
            self._check()
        except StateError:
            self._lock.release()
            raise
        return self.endpoint

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._wake()

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
        """Stop the thread; the endpoint is its caller's again. Returns what has ended and was not reported yet."""
        self._closed = True
        self._wake()
        self._thread.join()
        return self._take()

    def _check(self) -> None:
        if self._wrong is not None:
            raise StateError(say("a transfer thread", f"it has stopped: {self._wrong}", "close it")) from self._wrong
        if self._closed:
            raise StateError(say("a transfer thread", "it was closed", "use the endpoint itself"))

    def _wake(self) -> None:
        with suppress(OSError):  # full: it is awake anyway; closed: it has ended
            self._waker.send(b"x")

    def _run(self) -> None:
        try:
            while not self._closed:
                with self._lock:
                    ended = self.endpoint.step()
                    descriptor, seconds = self._next_look()
                for session in ended:
                    self._ended.put(session)
                self._sleep(descriptor, seconds)
        except BaseException as error:
            self._wrong = error  # raised to the next caller
        finally:
            self._wakes.close()
            self._waker.close()

    def _next_look(self) -> tuple[int, float]:
        """What to listen to, besides callers, and how long at most."""
        endpoint = self.endpoint
        descriptor = endpoint.link.fileno()
        if descriptor < 0:
            return descriptor, BUSY if endpoint.is_moving else IDLE
        return descriptor, OPEN if endpoint.num_open or endpoint.num_expected else CALM

    def _sleep(self, descriptor: int, seconds: float) -> None:
        waits = select.poll()
        waits.register(self._wakes, select.POLLIN)
        if descriptor >= 0:
            waits.register(descriptor, select.POLLIN)
        waits.poll(seconds * 1000)
        with suppress(BlockingIOError):
            while self._wakes.recv(4096):
                pass
