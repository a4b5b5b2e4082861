"""LingeringTransport: a transport that ends without a reset while its client may still be sending. Knows no HTTP.

A socket that is closed with bytes unread resets the connection, and then a client may never read its answer. So
its last words are sent, what still comes is passed over, and it is closed when the client has closed its end, has been
quiet for a moment, or sends too much or for too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

QUIET_SECONDS = 2.0  # without a byte of the client
LONGEST_SECONDS = 10.0
MOST_BYTES = 8 << 20  # that are passed over


class LingeringTransport(asyncio.Transport):
    """Around a transport; `is_sending` says whether the client is in the middle of something."""

    def __init__(
        self, real: asyncio.Transport, loop: asyncio.AbstractEventLoop, is_sending: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._real, self._loop, self._is_sending = real, loop, is_sending
        self.is_lingering = False
        self._timer: asyncio.TimerHandle | None = None
        self._until, self._left = 0.0, MOST_BYTES

    def linger(self) -> None:
        """Nothing more is written; end it when the client has."""
        if self.is_closing():
            return
        self.is_lingering = True
        self._until = self._loop.time() + LONGEST_SECONDS
        if self._real.can_write_eof():
            self._real.write_eof()
        self._real.resume_reading()
        self.pass_over(0)

    def pass_over(self, count: int) -> None:
        """The client still sends: it may go on for a moment."""
        self._left -= count
        if self._timer is not None:
            self._timer.cancel()
        if self._left < 0:
            self.abort()
            return
        left = min(QUIET_SECONDS, self._until - self._loop.time())
        self._timer = self._loop.call_later(max(0.0, left), self.abort)

    def forget(self) -> None:
        """It is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_closing(self) -> bool:
        """Whether its end has begun."""
        return self.is_lingering or self._real.is_closing()

    def close(self) -> None:
        """End it once all is sent; one that lingers ends by itself."""
        if self._is_sending():
            self.linger()
        elif not self.is_lingering:
            self._real.close()

    def abort(self) -> None:
        """End it at once."""
        self.forget()
        self._real.abort()

    def write(self, data: Any) -> None:
        """Send it, unless the end has begun."""
        if not self.is_lingering:
            self._real.write(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Of the real one."""
        return self._real.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._real.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._real.resume_reading()
