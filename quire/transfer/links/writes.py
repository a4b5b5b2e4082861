"""Writes: OutgoingWrite, one on its way to a peer, frame by frame, straight from the pages; IncomingWrite, one on its
way in. Knows no sockets.

When the receiver does not want it any more the rest is left out: one empty last frame ends it. It is over when the
frame before has left, since only then nothing refers to the source pages.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from quire.transfer.geometry.byte_rows import NO_ROWS, Rows, chunks, to_bytes

CHUNK = 4 << 20  # bytes of one frame, so that messages pass between them
WRITE = struct.Struct("<QQ?")  # door, ticket, the last frame of this write


@dataclass(slots=True)
class IncomingWrite:
    """A write on its way in: its frame that is being filled."""

    door: int
    ticket: int
    last: bool
    good: bool = True


class OutgoingWrite:
    """`problem` is set when the receiver has refused it; `flushed` when its last frame has left."""

    __slots__ = ("_parts", "door", "flushed", "peer", "problem", "ticket")

    def __init__(self, peer: str, door: int, ticket: int, rows: Rows) -> None:
        self.peer = peer
        self.door = door
        self.ticket = ticket
        self.problem: str | None = None
        self.flushed = False
        self._parts = deque(chunks(rows, CHUNK) or [NO_ROWS])  # a write of nothing has an end too

    @property
    def is_handed_out(self) -> bool:
        """Its last frame has been asked for."""
        return not self._parts

    def more(self, pools: Sequence[memoryview]) -> list[bytes | memoryview] | None:
        """The next frame and its bytes; asked for when the one before has left. None: that was the last."""
        if self.problem is not None and self._parts:
            self._parts.clear()
            return [WRITE.pack(self.door, self.ticket, True)]
        if not self._parts:
            self.flushed = True
            return None
        part = self._parts.popleft()
        body = WRITE.pack(self.door, self.ticket, not self._parts) + to_bytes(part)
        return [body, *(pools[group][source : source + size] for group, source, _, size in part.tolist())]
