"""Lookups: host names to addresses, on a few threads, so that a slow name server holds nothing up. Knows no
connections.

A caller gives a token and finds it with the answer. It never waits for a thread: a lookup cannot be stopped, its answer
can be left unread.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from threading import Lock, Thread
from typing import Generic, NamedTuple, TypeVar

from quire.net.address import SocketAddress, addresses

MOST_AT_ONCE = 8  # lookups, and threads; the others wait for their turn

T = TypeVar("T")


class ResolvedName(NamedTuple, Generic[T]):
    """What a host name stands for, or why that was not found out. `token`: whose question it was."""

    token: T
    address: SocketAddress | None
    problem: str


class Lookups(Generic[T]):
    """`ready` can be read from when there are answers."""

    def __init__(self) -> None:
        self.ready, self._signal = socket.socketpair()
        for end in (self.ready, self._signal):
            end.setblocking(False)
        self._lock = Lock()
        self._waiting: deque[tuple[T, bytes, int]] = deque()
        self._answers: list[ResolvedName[T]] = []
        self._threads = 0
        self._closed = False

    def ask(self, token: T, host: bytes, port: int) -> None:
        """Look a name up; the answer comes with `take`."""
        with self._lock:
            self._waiting.append((token, host, port))
            if self._threads >= MOST_AT_ONCE:
                return
            self._threads += 1
        try:
            Thread(target=self._run, name="quire-lookup", daemon=True).start()
        except RuntimeError as error:  # no more threads here: those that run go on with it, if there are any
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    self._answer(ResolvedName(self._waiting.pop()[0], None, str(error)))

    def forget(self, token: T) -> None:
        """It is not wanted any more; if it is under way its answer comes all the same."""
        with self._lock:
            self._waiting = deque(ask for ask in self._waiting if ask[0] is not token)

    def take(self) -> list[ResolvedName[T]]:
        """Answers since the last call."""
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                while self.ready.recv(4096):
                    pass
            answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """Nothing is looked up from now on; threads end with what they are at."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self.ready.close()
            self._signal.close()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                token, host, port = self._waiting.popleft()
            try:
                answer = ResolvedName(token, addresses(host, port, numeric=False)[0], "")
            except Exception as error:  # whatever a resolver raises: a thread that ended would keep its place for ever
                answer = ResolvedName(token, None, str(error))
            with self._lock:
                self._answer(answer)

    def _answer(self, answer: ResolvedName[T]) -> None:
        if not self._closed:
            self._answers.append(answer)
            with contextlib.suppress(BlockingIOError):  # full: it can be read from anyway
                self._signal.send(b"x")
