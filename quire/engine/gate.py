"""Gate: so many may be inside; the rest wait in line, threads and coroutines alike. Knows nothing of what is inside."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from threading import Event, Lock


class Gate:
    """Places handed out first come, first served."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._lock = Lock()
        self._line: deque[Callable[[], bool]] = deque()  # each takes the place offered, or has left

    def enter(self, timeout: float | None = None) -> bool:
        """Wait for a place; False when none came in time."""
        turn = _Turn()
        if self._take(turn.offer):
            return True
        if turn.came.wait(timeout):
            return True
        return not turn.leave()  # it may have come just now

    async def enter_async(self) -> None:
        """Wait for a place without holding up the event loop; a cancelled wait takes none."""
        loop, turn = asyncio.get_running_loop(), _Turn()
        woken = asyncio.Event()
        turn.then = lambda: loop.call_soon_threadsafe(woken.set)
        if self._take(turn.offer):
            return
        try:
            await woken.wait()
        except asyncio.CancelledError:
            if not turn.leave():
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place back; the next in line has it at once."""
        with self._lock:
            while self._line:
                if self._line.popleft()():
                    return
            self._free += 1

    def _take(self, offer: Callable[[], bool]) -> bool:
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            self._line.append(offer)
            return False


class _Turn:
    """One wait in line: ends with a place or by leaving, never both."""

    def __init__(self) -> None:
        self.came = Event()
        self.then: Callable[[], object] | None = None
        self._lock = Lock()
        self._left = False

    def offer(self) -> bool:
        with self._lock:
            if self._left:
                return False
            self.came.set()
        if self.then is not None:
            self.then()
        return True

    def leave(self) -> bool:
        """Whether it left before a place came."""
        with self._lock:
            self._left = not self.came.is_set()
            return self._left
