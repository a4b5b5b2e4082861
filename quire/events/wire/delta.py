"""Delta: what a batch changes, as arrays, with the digest of what is published then. Owns what our field means.

It rides in every batch, in an event that means nothing to other consumers. Tiers are numbers here, priorities and
partial blocks are told too, and one call applies it: that is why our index reads this and not the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.core.records.events import Column, EventBatch, Fact
from quire.events.wire import pack
from quire.events.wire.encode import Encoder
from quire.events.wire.field import VERSION, Extra, Form, Refused, carried
from quire.events.wire.names import GroupNames, Names
from quire.events.wire.stamp import Stamped

if TYPE_CHECKING:
    from quire.core.store.interface import Ledger

_COLUMNS = np.array([Column.KIND, Column.GROUP, Column.COUNT, Column.BEFORE, Column.AFTER])
KEPT = 1_024  # bytes, about, of a delta without its arrays
_CREATED, _STORED = int(Fact.CREATED), int(Fact.STORED)  # NumPy takes an int quicker than a name
_REMOVED, _CLEARED = int(Fact.REMOVED), int(Fact.CLEARED)
Records = tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.uint8]]
NOTHING: Records = (np.empty((0, 5), np.int32), np.empty(0, np.uint64), np.empty(0, np.uint8))
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Delta:
    """A batch as the index takes it."""

    number: int
    run: int
    rank: int
    names: Names
    form: Form
    lost: int
    records: Records
    digest: NDArray[np.uint64]  # [groups, tiers, 3]: pages, and two lanes of their sum

    @property
    def num_bytes(self) -> int:
        """What keeping it takes."""
        return KEPT + self.digest.nbytes + sum(part.nbytes for part in self.records)

    def at_least(self, known: int) -> int:
        """Pages that a cache with so many before has after it, or more: what its last clearing left is not counted."""
        rows = self.records[0]
        cleared = np.flatnonzero(rows[:, 0] == _CLEARED)
        if len(cleared):
            rows, known = rows[int(cleared[-1]) + 1 :], 0
        stored, removed = (int(rows[rows[:, 0] == kind, 2].sum(dtype=np.int64)) for kind in (_STORED, _REMOVED))
        return known + stored - removed


def records_of(batch: EventBatch) -> Records:
    """What changed, without what only other consumers need."""
    told, hashes, details = batch.records, batch.hashes, batch.details
    pools = told[:, Column.KIND] == _CREATED
    if pools.any():
        spare = np.ones(len(hashes), bool)
        for row in told[pools].tolist():
            spare[row[Column.AT] : row[Column.AT] + row[Column.COUNT]] = False
        told, hashes, details = told[~pools], hashes[spare], details[spare]
    return told.take(_COLUMNS, axis=1).astype(np.int32), hashes, details.astype(np.uint8)  # priority: the lowest byte


def state_of(ledger: Ledger, num_groups: int, num_tiers: int) -> Records:
    """The whole state of a ledger's only worker: per group and tier one record of all its pages."""
    rows, names, marks = [[Fact.CLEARED, group, 0, 0, 0] for group in range(num_groups)], [], []
    for group in range(num_groups):
        hashes, tiers, priorities = ledger.pages(0, group)
        for tier in range(num_tiers):
            there = tiers == tier
            rows.append([Fact.STORED, group, int(there.sum()), 0, tier])
            names.append(hashes[there])
            marks.append(priorities[there])
    return np.array(rows, np.int32), np.concatenate(names), np.concatenate(marks)


def digest_of(ledger: Ledger, worker: int, num_groups: int, num_tiers: int) -> NDArray[np.uint64]:
    """What a worker's pages add up to, per group and tier."""
    return ledger.sums_by_tier(worker)[:num_groups, :num_tiers]


def encoded(encoder: Encoder, delta: Delta, events: list[Any], ts: float) -> bytes:
    """A batch: time, events, our field, rank."""
    rows, hashes, priorities = delta.records
    names = delta.names
    extra = Extra(
        VERSION, delta.run, names.block_size, list(names.media),
        [(group.kind, group.window, group.tail, group.sink) for group in names.groups], delta.form, delta.lost,
        rows.astype("<i4", copy=False).tobytes(), hashes.astype("<u8", copy=False).tobytes(), priorities.tobytes(),
        delta.digest.astype("<u8", copy=False).tobytes(), delta.number, names.seed,
    )  # fmt: skip
    parts: list[bytes | bytearray] = [b"\x93", _encoder.encode(ts), b""]  # an array of three
    count = 1
    for event in events:
        count += event.count if isinstance(event, Stamped) else 1
        parts.append(event.data if isinstance(event, Stamped) else _encoder.encode(event))
    parts[2] = pack.head(count)
    return b"".join([*parts, _encoder.encode(encoder.carrier(extra)), _encoder.encode(delta.rank)])


def decoded(payload: bytes) -> Delta | None:
    """What our field says; None for a batch of another publisher. Damaged: no batch; Refused: none of a cache."""
    found = carried(payload)
    if found is None:
        return None
    rank, extra = found
    groups = tuple(GroupNames(*group) for group in extra.groups)
    names = Names(extra.block_size, tuple(extra.tiers), groups, extra.seed)
    if not names.own_groups or any(group.sink < 0 for group in groups):
        raise Refused(f"nothing can be resumed with groups {[group.kind for group in groups]}")
    records, digest = _arrays_of(extra)
    return Delta(extra.number, extra.run, rank, names, extra.form, extra.lost, records, digest)


def _arrays_of(extra: Extra) -> tuple[Records, NDArray[np.uint64]]:
    """As a ledger takes them, which looks at the records one by one."""
    try:
        rows = np.frombuffer(extra.records, "<i4").astype(np.int32, copy=False).reshape(-1, 5)
        hashes = np.frombuffer(extra.hashes, "<u8").astype(np.uint64, copy=False)
        digest = np.frombuffer(extra.digest, "<u8").astype(np.uint64, copy=False)
        digest = digest.reshape(len(extra.groups), len(extra.tiers), 3)
    except ValueError as error:
        raise Refused(f"an array of the wrong length: {error}") from None
    return (rows, hashes, np.frombuffer(extra.priorities, np.uint8)), digest
