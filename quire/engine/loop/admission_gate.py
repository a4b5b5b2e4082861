"""The admission gate: so many runs may be inside; others wait in line, threads and coroutines alike. Knows no runs.

A tenant takes no place when it has `SHARE` times as many as are free: one alone leaves some to others, however many
requests it has, and where all are taken those that come back go to tenants with few. Who has no tenant may have any.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from threading import TIMEOUT_MAX, Event, RLock

from quire.core.records.errors import InputError, say, shown

SHARE = 4  # one tenant alone has four places in five at most, two have four in nine each


def patience(timeout: float | None) -> float | None:
    """Seconds as a wait takes them; None: as long as it takes."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InputError(say("a wait", f"its timeout is {shown(timeout)}", "give seconds, 0 or more, or None"))
    return float(min(timeout, TIMEOUT_MAX))


class AdmissionGate:
    """Places handed out first come, first served, to all who may have one."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._taken = Counter[Hashable]()  # by tenant, of those who are inside
        self._line: OrderedDict[_Waiter, None] = OrderedDict()
        self._shut = False
        self._lock = RLock()  # an abandoned wait is ended by the garbage collector, in any thread

    @property
    def num_waiting(self) -> int:
        """Who stands in line."""
        return len(self._line)

    def enter(self, timeout: float | None = None, tenant: Hashable = None) -> bool:
        """Wait for a place; False when none came in time, or none will."""
        timeout = patience(timeout)
        came = Event()
        waiter = self._line_up(came.set, tenant)
        try:
            if came.wait(timeout):
                return waiter.served
        except BaseException:  # Ctrl-C
            self._step_out(waiter)
            raise
        with self._lock:
            self._line.pop(waiter, None)
            return waiter.served  # it may have come just now

    async def enter_async(self, timeout: float | None = None, tenant: Hashable = None) -> bool:
        """The same without holding up the event loop; a cancelled wait takes no place."""
        timeout = patience(timeout)
        with self._lock:
            if not self._line and not self._shut and self._has_place(tenant):  # no line to wait in
                self._take(tenant)
                return True
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        waiter = self._line_up(lambda: loop.call_soon_threadsafe(came.set), tenant)
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
        """No request comes in any more; those in line are refused at once."""
        with self._lock:
            self._shut = True
            self._serve()

    def leave(self, tenant: Hashable = None) -> None:
        """Give a place back that this tenant had; the next in line has it at once."""
        with self._lock:
            self._give(tenant)
            self._serve()

    def _has_place(self, tenant: Hashable) -> bool:
        return self._free > 0 and (tenant is None or self._taken[tenant] < SHARE * self._free)

    def _take(self, tenant: Hashable) -> None:
        self._free -= 1
        if tenant is not None:
            self._taken[tenant] += 1

    def _give(self, tenant: Hashable) -> None:
        self._free += 1
        if tenant is not None:
            self._taken[tenant] -= 1
            if not self._taken[tenant]:
                del self._taken[tenant]

    def _line_up(self, wake: Callable[[], object], tenant: Hashable) -> _Waiter:
        waiter = _Waiter(wake, tenant)
        with self._lock:
            self._line[waiter] = None
            self._serve()
        return waiter

    def _serve(self) -> None:
        while (waiter := self._next()) is not None:
            if not self._shut:
                self._take(waiter.tenant)  # first: waking may lead back here
            waiter.served = not self._shut
            try:
                waiter.wake()
            except RuntimeError:  # its event loop is closed: nothing waits there any more
                if waiter.served:
                    self._give(waiter.tenant)
                waiter.served = False

    def _next(self) -> _Waiter | None:
        """The first in line that may come in, or is refused; it leaves the line."""
        if self._free > 0 or self._shut:
            for waiter in list(self._line):  # the garbage collector may change it meanwhile
                if (self._shut or self._has_place(waiter.tenant)) and waiter in self._line:
                    del self._line[waiter]
                    return waiter
        return None

    def _step_out(self, waiter: _Waiter) -> None:
        """It waits no longer, and takes no place."""
        with self._lock:
            self._line.pop(waiter, None)
            if waiter.served:
                self.leave(waiter.tenant)


class _Waiter:
    """One wait in line; `wake` says that there is a place for it."""

    __slots__ = ("served", "tenant", "wake")

    def __init__(self, wake: Callable[[], object], tenant: Hashable) -> None:
        self.wake, self.tenant = wake, tenant
        self.served = False
