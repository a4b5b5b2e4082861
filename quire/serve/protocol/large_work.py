"""LargeWork: what takes long is done beside the event loop, a bounded number at a time. Knows no requests.

A thread that runs Python gives way every few milliseconds; several of them would each take their turn before the event
loop gets its own. So few work on large bodies at once, and the others wait, without a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from quire.serve.protocol.decode import LARGE

SMALL: Final = 4 << 10  # bytes of what is done at once: a thread would take longer
AT_ONCE: Final = 2
T = TypeVar("T")


class LargeWork:
    """Of one server."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._turns = asyncio.Semaphore(at_once)

    async def do(self, size: int, work: Callable[[], T], most: int = SMALL) -> T:
        """What `work` returns, on something of so many bytes; up to `most` it is done at once."""
        if size <= most:
            return work()
        if size <= LARGE:
            return await asyncio.to_thread(work)
        async with self._turns:
            return await asyncio.to_thread(work)
