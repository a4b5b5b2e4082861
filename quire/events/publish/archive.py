"""Archive: the last batches that were published, for those who ask again. Knows no sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from quire.events.wire.protocol import NumberedPayload


class Archive:
    """Numbered payloads, the oldest given up when there are too many or they are too long."""

    __slots__ = ("_batches", "_max_batches", "_max_bytes", "num_bytes")

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self._batches: deque[NumberedPayload] = deque()
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, batch: NumberedPayload) -> None:
        """Numbers ascend by one."""
        self._batches.append(batch)
        self.num_bytes += len(batch.payload)
        while len(self._batches) > self._max_batches or (self.num_bytes > self._max_bytes and self._batches):
            self.num_bytes -= len(self._batches.popleft().payload)

    def since(self, seq: int) -> Iterator[NumberedPayload]:
        """Those from a number on, as far as they are still here."""
        while self._batches and seq <= self._batches[-1].seq:  # more may come and go between two of them
            found = self._batches[max(0, seq - self._batches[0].seq)]
            seq = found.seq + 1
            yield found
