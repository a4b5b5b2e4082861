"""The admission gate: so many runs may be inside; others wait in line, threads and coroutines alike. Knows no runs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from threading import TIMEOUT_MAX, Event, RLock

from quire.core.records.errors import InputError, say, shown


def patience(timeout: float | None) -> float | None:
    """Seconds as a wait takes them; None: as long as it takes."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InputError(say("a wait", f"its timeout is {shown(timeout)}", "give seconds, 0 or more, or None"))
    return float(min(timeout, TIMEOUT_MAX))


class AdmissionGate:
    """Places handed out first come, first served."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._line: OrderedDict[_Waiter, None] = OrderedDict()
        self._shut = False
        self._lock = RLock()  # a wait that nobody finishes is left by the garbage collector, in any thread

    @property
    def num_waiting(self) -> int:
        """Who stands in line."""
        return len(self._line)

    def enter(self, timeout: float | None = None) -> bool:
        """Wait for a place; False when none came in time, or none will."""
        timeout = patience(timeout)
        came = Event()
        waiter = self._line_up(came.set)
        try:
            if came.wait(timeout):
                return waiter.served
        except BaseException:  # Ctrl-C
            self._step_out(waiter)
            raise
        with self._lock:
            self._line.pop(waiter, None)
            return waiter.served  # it may have come just now

    async def enter_async(self, timeout: float | None = None) -> bool:
        """The same without holding up the event loop; a cancelled wait takes no place."""
        timeout = patience(timeout)
        with self._lock:
            if self._free > 0 and not self._line and not self._shut:  # nobody to wait for
                self._free -= 1
                return True
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        waiter = self._line_up(lambda: loop.call_soon_threadsafe(came.set))
        if waiter.served or self._shut:
            return waiter.served
        try:
            if timeout is None:
                await came.wait()
            else:
                async with asyncio.timeout(timeout):
                    await came.wait()
        except TimeoutError:
            with self._lock:
                self._line.pop(waiter, None)  # it may have been served just now
        except BaseException:  # cancelled, or its event loop is gone
            self._step_out(waiter)
            raise
        return waiter.served

    def shut(self) -> None:
        """Nobody comes in any more; who stands in line learns it at once."""
        with self._lock:
            self._shut = True
            self._serve()

    def leave(self) -> None:
        """Give a place back; the next in line has it at once."""
        with self._lock:
            self._free += 1
            self._serve()

    def _line_up(self, wake: Callable[[], object]) -> _Waiter:
        waiter = _Waiter(wake)
        with self._lock:
            self._line[waiter] = None
            self._serve()
        return waiter

    def _serve(self) -> None:
        while self._line and (self._shut or self._free > 0):
            waiter, _ = self._line.popitem(last=False)
            self._free -= not self._shut  # first: waking may lead back here
            waiter.served = not self._shut
            try:
                waiter.wake()
            except RuntimeError:  # its event loop is closed: nobody waits there any more
                self._free += waiter.served
                waiter.served = False

    def _step_out(self, waiter: _Waiter) -> None:
        """It waits no longer, and takes no place."""
        with self._lock:
            self._line.pop(waiter, None)
            if waiter.served:
                self.leave()


class _Waiter:
    """One wait in line; `wake` says that there is a place for it."""

    __slots__ = ("served", "wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake
        self.served = False
