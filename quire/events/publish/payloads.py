"""Press: batches of the recorder become numbered payloads; keeps what has been published. Knows no sockets, no threads.

What is published is a ledger of one worker: the digest of every batch comes from it, and so does a snapshot, which is
therefore exactly the state after the last number given out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.records.events import EventBatch
from quire.core.store import open_store
from quire.events.publish.archive import Archive
from quire.events.wire.delta import NOTHING, Delta, digest_of, encoded, records_of, state_of
from quire.events.wire.encode import Encoder, Encoding
from quire.events.wire.field import Form
from quire.events.wire.names import Names

if TYPE_CHECKING:
    from quire.core.store.interface import Ledger


class Press:
    """The stream of one publisher."""

    __slots__ = ("_encoder", "_ledger", "_names", "_snapshot", "archive", "lost", "next", "odd", "rank", "run")

    def __init__(self, names: Names, encoding: Encoding, archive: Archive, rank: int = 0) -> None:
        self._names = names
        self._encoder = Encoder(names, encoding)
        self._ledger: Ledger = open_store().Ledger(1, len(names.groups))
        self._snapshot: tuple[int, bytes] | None = None  # while it is of the last number: many may ask at once
        self.archive = archive
        self.rank = rank
        self.run = time.time_ns()
        self.next = 0  # number of the next batch
        self.lost = 0  # hashes the recorder had no room for
        self.odd = 0  # events that did not follow from those before them: only the whole state helps then

    def print(self, batch: EventBatch, lost: int = 0) -> tuple[int, bytes]:
        """The next payload and its number; `lost` is what this whole state makes up for."""
        records = records_of(batch)
        self._snapshot = None
        self.odd += self._ledger.apply(0, *records)
        self.lost += lost
        form = Form.WHOLE if batch.whole else Form.CHANGES
        seq = self.next
        payload = self._encoded(Delta(*self._head(seq), form, lost, records, self._digest()), batch)
        self.next = seq + 1
        self.archive.put(seq, payload)
        return seq, payload

    def snapshot(self) -> tuple[int, bytes] | None:
        """The whole state with the number of the last batch in it; None before the first."""
        if self.next == 0:
            return None
        if self._snapshot is None:
            last = self.next - 1
            records = state_of(self._ledger, len(self._names.groups), len(self._names.media))
            delta = Delta(*self._head(last), Form.WHOLE, 0, records, self._digest())
            self._snapshot = last, self._encoded(delta, None)
        return self._snapshot

    def mark(self) -> tuple[int, bytes]:
        """The number of the last batch (0 before the first) and the digest after it, for those who want to be sure."""
        last = max(0, self.next - 1)
        return last, self._encoded(Delta(*self._head(last), Form.MARK, 0, NOTHING, self._digest()), None)

    def _head(self, seq: int) -> tuple[int, int, int, Names]:
        return seq, self.run, self.rank, self._names

    def _digest(self) -> NDArray[np.uint64]:
        return digest_of(self._ledger, 0, len(self._names.groups), len(self._names.media))

    def _encoded(self, delta: Delta, batch: EventBatch | None) -> bytes:
        events = [] if batch is None else self._encoder.events(batch)
        return encoded(self._encoder, delta, events, time.time())
