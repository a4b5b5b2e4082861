"""AskedThread: a thread that does what others ask of it, in turn, and something of its own in between. Owns the queue,
the answers, and how long a caller waits: no longer than the disk is known to answer. Knows no pages.

    caller   ask ───── answer(future): its result, or TimeoutError once the disk has not answered for too long
    thread   [ act ][ act ] [ between ] [ act ] ...      whatever one of them raises, the thread goes on
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, Thread
from typing import TypeVar

from quire.core.records.errors import StateError, say
from quire.tiers.disk.calls.disk_watch import DiskWatch
from quire.tiers.process import check_process

LOOKS = 4  # how often within a disk's deadline a waiting caller looks whether it hangs
LONGEST = 3600.0  # seconds of one wait
T = TypeVar("T")


class AskedThread:
    """Runs until it is closed. `between` returns when it wants its next turn; `ended` comes last, on the thread.

    `on_error` hears what `between` and acts raise; those who asked hear it too.
    """

    def __init__(
        self, name: str, watch: DiskWatch, *, between: Callable[[], float], ended: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._name, self._watch = name, watch
        self._between, self._ended, self._on_error = between, ended, on_error
        self._pid = os.getpid()
        self._changed = Condition()  # guards the two below
        self._asks: deque[Callable[[], None]] = deque()
        self._closing = False
        self._next_turn = 0.0
        self._thread = Thread(target=self._work, name=name, daemon=True)

    def start(self, first_turn: float) -> AskedThread:
        """From now on; `between` is called at that time."""
        self._next_turn = first_turn
        self._thread.start()
        return self

    @property
    def is_ours(self) -> bool:
        """Whether it runs in this process, and not in one of which this is a fork."""
        return self._pid == os.getpid()

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.is_ours and self._thread.is_alive()

    def check_open(self) -> None:
        """StateError where nothing can be asked any more."""
        check_process(self._pid, "a keeper of pages on disk")
        if self._closing:
            raise StateError(say("a keeper of pages on disk", "it is closed", "open the folder again"))

    def ask(self, act: Callable[[], T], *, anyway: bool = False) -> Future[T]:
        """Have it done on the thread. TimeoutError: the disk does not answer, and it is not queued, unless `anyway`."""
        future: Future[T] = Future()

        def answer() -> None:
            try:
                future.set_result(act())
            except BaseException as error:
                self._on_error(error)
                future.set_exception(error)

        self.check_open()
        if not anyway and self._watch.hanging:
            raise self._late()
        with self._changed:
            self.check_open()
            self._asks.append(answer)
            self._changed.notify_all()
        return future

    def answer(self, future: Future[T], timeout: float | None = None) -> T:
        """What came of it; TimeoutError when nothing did in time, or the disk does not answer: it is done later."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                return future.result(max(0.0, min(left, self._watch.seconds / LOOKS)))
            except TimeoutError:
                if future.done():
                    return future.result()  # its own
                if left <= 0 or self._watch.hanging:
                    raise self._late() from None

    def close(self, last: Callable[[], None]) -> bool:
        """Nothing is asked from now on; what was is done, then `last`, then the thread ends. False: it was closed."""
        with self._changed:
            first, self._closing = not self._closing, True
            if first:
                self._asks.append(last)
            self._changed.notify_all()
        return first

    def join(self, seconds: float) -> bool:
        """Wait for its end; whether it has come."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _late(self) -> TimeoutError:
        fact = "the disk does not answer" if self._watch.hanging else "it was not done in time"
        return TimeoutError(
            say("a keeper of pages on disk", fact, "look at the disk; it is done when the disk answers")
        )

    def _work(self) -> None:
        while True:
            with self._changed:
                wait = min(max(0.0, self._next_turn - time.monotonic()), LONGEST)
                self._changed.wait_for(lambda: self._asks or self._closing, wait)
                asks, self._asks = self._asks, deque()
                closing = self._closing
            for act in asks:
                self._guarded(act)
            if closing and not self._asks:
                break
            if time.monotonic() >= self._next_turn:
                self._guarded(self._turn)
        self._guarded(self._ended)

    def _turn(self) -> None:
        self._next_turn = float("inf")  # if it raises: until the next ask
        self._next_turn = self._between()

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # counted and reported; the thread goes on for those who wait
            self._on_error(error)
