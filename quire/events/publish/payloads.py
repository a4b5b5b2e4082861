"""PayloadMaker: batches of the recorder become numbered payloads; keeps what is published. Knows no sockets or threads.

What is published is a ledger of one worker: the digest of every batch comes from it, and so does a snapshot, which is
therefore exactly the state after the last number given out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from quire.core.records.events import EventBatch
from quire.core.store import open_store
from quire.events.publish.archive import Archive
from quire.events.wire.delta import NO_RECORDS, Delta, DeltaRecords, encoded, records_of, state_of
from quire.events.wire.digest import Digest, digest_of
from quire.events.wire.encode import Encoding, EventEncoder
from quire.events.wire.field import Form
from quire.events.wire.names import Names
from quire.events.wire.protocol import NumberedPayload

if TYPE_CHECKING:
    from quire.core.store.interface import Ledger


class PayloadMaker:
    """The stream of one publisher."""

    __slots__ = (
        "_encoder", "_ledger", "_names", "_rank", "_snapshot", "archive", "inconsistent", "lost", "next", "run",
    )  # fmt: skip

    def __init__(self, names: Names, encoding: Encoding, archive: Archive, rank: int = 0) -> None:
        self._names, self._rank = names, rank
        self._encoder = EventEncoder(names, encoding)
        self._ledger: Ledger = open_store().Ledger(1, len(names.groups))
        self._snapshot: NumberedPayload | None = None  # while it is of the last number: many may ask at once
        self.archive = archive
        self.run = time.time_ns()
        self.next = 0  # number of the next batch
        self.lost = 0  # hashes the recorder had no room for
        self.inconsistent = 0  # events that did not follow from those before them: only the whole state helps then

    def make(self, batch: EventBatch, lost: int = 0) -> NumberedPayload:
        """The next payload and its number; `lost` is what this whole state makes up for."""
        records = records_of(batch)
        self._snapshot = None
        self.inconsistent += self._ledger.apply(0, *records)
        self.lost += lost
        form = Form.WHOLE if batch.whole else Form.CHANGES
        made = NumberedPayload(self.next, self._encoded(self._delta(self.next, form, records, lost), batch))
        self.next += 1
        self.archive.put(made)
        return made

    @property
    def dropped(self) -> int:
        """Events that could not be encoded; our field of the same batch has what they say."""
        return self._encoder.dropped

    def snapshot(self) -> NumberedPayload | None:
        """The whole state with the number of the last batch in it; None before the first."""
        if self.next == 0:
            return None
        if self._snapshot is None:
            last = self.next - 1
            records = state_of(self._ledger, len(self._names.groups), len(self._names.media))
            self._snapshot = NumberedPayload(last, self._encoded(self._delta(last, Form.WHOLE, records), None))
        return self._snapshot

    def mark(self) -> NumberedPayload:
        """The number of the last batch (0 before the first) and the digest after it, for those who want to be sure."""
        last = max(0, self.next - 1)
        return NumberedPayload(last, self._encoded(self._delta(last, Form.MARK, NO_RECORDS), None))

    def _delta(self, seq: int, form: Form, records: DeltaRecords, lost: int = 0) -> Delta:
        return Delta(seq, self.run, self._rank, self._names, form, lost, records, self._digest())

    def _digest(self) -> Digest:
        return digest_of(self._ledger, 0, len(self._names.groups), len(self._names.media))

    def _encoded(self, delta: Delta, batch: EventBatch | None) -> bytes:
        events = [] if batch is None else self._encoder.events(batch)
        return encoded(self._encoder, delta, events, time.time())
