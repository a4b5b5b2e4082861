"""Delta: what a batch changes, as arrays, with the digest of what is published then. Owns what our field means.

It rides in every batch, in an event that means nothing to other consumers. Tiers are numbers here, priorities and
it has partial blocks too, and one call applies it: that is why our index reads this and not the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.core.records.events import Column, EventBatch, Fact
from quire.events.wire import pack
from quire.events.wire.digest import Digest
from quire.events.wire.encode import EventEncoder
from quire.events.wire.field import VERSION, Form, QuireField, Refused, read_field
from quire.events.wire.names import GroupNames, Names

if TYPE_CHECKING:
    from quire.core.store.interface import Ledger

_COLUMNS = np.array([Column.KIND, Column.GROUP, Column.COUNT, Column.BEFORE, Column.AFTER])
KEPT = 1_024  # bytes, about, of a delta without its arrays
_CREATED, _STORED = int(Fact.CREATED), int(Fact.STORED)  # NumPy takes an int quicker than a name
_REMOVED, _CLEARED = int(Fact.REMOVED), int(Fact.CLEARED)
_encoder = msgspec.msgpack.Encoder()


class DeltaRecords(NamedTuple):
    """What changed, as a ledger takes it."""

    rows: NDArray[np.int32]  # [records, 5]: kind, group, number of hashes, tier before, tier after
    hashes: NDArray[np.uint64]
    priorities: NDArray[np.uint8]


NO_RECORDS = DeltaRecords(np.empty((0, 5), np.int32), np.empty(0, np.uint64), np.empty(0, np.uint8))


@dataclass(frozen=True, slots=True)
class Delta:
    """A batch as the index takes it."""

    number: int
    run: int
    rank: int
    names: Names
    form: Form
    lost: int
    records: DeltaRecords
    digest: Digest

    @property
    def num_bytes(self) -> int:
        """What keeping it takes."""
        return KEPT + self.digest.nbytes + sum(part.nbytes for part in self.records)

    def at_least(self, known: int) -> int:
        """Pages that a cache with so many before has after it, or more: what its last clearing left is not counted."""
        rows = self.records.rows
        cleared = np.flatnonzero(rows[:, 0] == _CLEARED)
        if len(cleared):
            rows, known = rows[int(cleared[-1]) + 1 :], 0
        stored, removed = (int(rows[rows[:, 0] == kind, 2].sum(dtype=np.int64)) for kind in (_STORED, _REMOVED))
        return known + stored - removed


def records_of(batch: EventBatch) -> DeltaRecords:
    """What changed, without what only other consumers need."""
    records, hashes, details = batch.records, batch.hashes, batch.details
    pools = records[:, Column.KIND] == _CREATED
    if pools.any():
        spare = np.ones(len(hashes), bool)
        for row in records[pools].tolist():
            spare[row[Column.AT] : row[Column.AT] + row[Column.COUNT]] = False
        records, hashes, details = records[~pools], hashes[spare], details[spare]
    priorities = details.astype(np.uint8)  # the lowest byte
    return DeltaRecords(records.take(_COLUMNS, axis=1).astype(np.int32), hashes, priorities)


def state_of(ledger: Ledger, num_groups: int, num_tiers: int) -> DeltaRecords:
    """The whole state of a ledger's only worker: per group and tier one record of all its pages."""
    rows, names, marks = [[Fact.CLEARED, group, 0, 0, 0] for group in range(num_groups)], [], []
    for group in range(num_groups):
        hashes, tiers, priorities = ledger.pages(0, group)
        for tier in range(num_tiers):
            there = tiers == tier
            rows.append([Fact.STORED, group, int(there.sum()), 0, tier])
            names.append(hashes[there])
            marks.append(priorities[there])
    return DeltaRecords(np.array(rows, np.int32), np.concatenate(names), np.concatenate(marks))


def encoded(encoder: EventEncoder, delta: Delta, events: list[Any], ts: float) -> bytes:
    """A batch: time, events, our field, rank. Our field has no text of others, so that it can always be encoded."""
    rows, hashes, priorities = delta.records
    names = delta.names
    field = QuireField(
        VERSION, delta.run, names.block_size, list(names.media),
        [(group.kind, group.window, group.tail, group.sink) for group in names.groups], delta.form, delta.lost,
        rows.astype("<i4", copy=False).tobytes(), hashes.astype("<u8", copy=False).tobytes(), priorities.tobytes(),
        delta.digest.astype("<u8", copy=False).tobytes(), delta.number, names.seed,
    )  # fmt: skip
    records = encoder.encoded(events)
    head = [b"\x93", _encoder.encode(ts), pack.head(records.count + 1)]  # an array of three: this is its second
    return b"".join([*head, records.data, _encoder.encode(encoder.carrier(field)), _encoder.encode(delta.rank)])


def decoded(payload: bytes) -> Delta | None:
    """What our field says; None for a batch of another publisher. Damaged: no batch; Refused: none of a cache."""
    found = read_field(payload)
    if found is None:
        return None
    field = found.field
    groups = tuple(GroupNames(*group) for group in field.groups)
    names = Names(field.block_size, tuple(field.tiers), groups, field.seed)
    if not names.own_groups or any(group.sink < 0 for group in groups):
        raise Refused(f"nothing can be resumed with groups {[group.kind for group in groups]}")
    records, digest = _arrays_of(field)
    return Delta(field.number, field.run, found.rank, names, field.form, field.lost, records, digest)


def _arrays_of(field: QuireField) -> tuple[DeltaRecords, NDArray[np.uint64]]:
    """As a ledger takes them, which looks at the records one by one."""
    try:
        rows = np.frombuffer(field.records, "<i4").astype(np.int32, copy=False).reshape(-1, 5)
        hashes = np.frombuffer(field.hashes, "<u8").astype(np.uint64, copy=False)
        digest = np.frombuffer(field.digest, "<u8").astype(np.uint64, copy=False)
        digest = digest.reshape(len(field.groups), len(field.tiers), 3)
    except ValueError as error:
        raise Refused(f"an array of the wrong length: {error}") from None
    return DeltaRecords(rows, hashes, np.frombuffer(field.priorities, np.uint8)), digest
