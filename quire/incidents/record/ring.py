"""Ring: the calls of one cache in packs, bounded in bytes: what does not fit any more goes, the oldest first.

A ring that still has its first pack can be played exactly: it begins with the new cache. One that has lost it begins in
the middle, and says so.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

PACK_BYTES = 120  # of a pack besides its bytes


class Pack(NamedTuple):
    """Calls that follow one another."""

    data: bytes
    first: float  # times
    last: float
    calls: int


class Ring:
    """The latest packs."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.packs: deque[Pack] = deque()
        self.num_bytes = self.num_calls = 0
        self.is_whole = True  # it begins with the cache

    def add(self, pack: Pack) -> None:
        """One more; the oldest make room."""
        self.packs.append(pack)
        self.num_bytes += len(pack.data) + PACK_BYTES
        self.num_calls += pack.calls
        while self.num_bytes > self.max_bytes:
            self.drop()

    def drop(self) -> None:
        """The oldest pack goes."""
        gone = self.packs.popleft()
        self.num_bytes -= len(gone.data) + PACK_BYTES
        self.num_calls -= gone.calls
        self.is_whole = False

    @property
    def seconds(self) -> float:
        """From its first call to its last."""
        return self.packs[-1].last - self.packs[0].first if self.packs else 0.0
