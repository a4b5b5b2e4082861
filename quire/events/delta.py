"""Delta: what a batch changes, as arrays, with the digest of what is published then. Owns our field of the wire.

It rides in every batch, in an event that means nothing to other consumers. Tiers are numbers here, priorities and
partial blocks are told too, and one call applies it: that is why our index reads this and not the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.core.config import MAX_TIERS
from quire.core.events import Column, EventBatch, Fact
from quire.events import pack
from quire.events.encode import Encoder
from quire.events.names import GroupNames, Names
from quire.events.stamp import Stamped

if TYPE_CHECKING:
    from quire.core.store.twin import Ledger

VERSION = 1
MAX_GROUPS, MAX_BLOCK_SIZE = 64, 65535  # of a ledger, of a chain
_COLUMNS = np.array([Column.KIND, Column.GROUP, Column.COUNT, Column.BEFORE, Column.AFTER])
_CREATED = int(Fact.CREATED)  # NumPy takes an int quicker than a name
Records = tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.uint8]]
NOTHING: Records = (np.empty((0, 5), np.int32), np.empty(0, np.uint64), np.empty(0, np.uint8))


class Damaged(Exception):
    """Bytes that are no batch; as good as lost."""


class Form(IntEnum):
    """What a batch says about the state."""

    CHANGES = 0  # since the batch before
    WHOLE = 1  # all of it
    MARK = 2  # nothing but its digest


class Extra(msgspec.Struct, array_like=True, gc=False):
    """Our field; numbers are little-endian."""

    version: int
    run: int  # of the publisher: another one, another stream
    block_size: int
    tiers: list[str]
    groups: list[tuple[str, int | None, int, int]]  # as GroupNames
    form: Form
    lost: int  # hashes the recorder had no room for, and which a whole state makes up for
    records: bytes  # int32 [n, 5]
    hashes: bytes  # uint64
    priorities: bytes  # uint8
    digest: bytes  # uint64 [groups, tiers, 3]
    number: int | None = None  # of the batch, as in the frame beside it; None: an older publisher, which does not say


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    rank: int | None = None


class _MapCarrier(msgspec.Struct, gc=False):
    quire: Extra | None = None


class _ArrayCarrier(msgspec.Struct, array_like=True, gc=False):
    type: str
    hashes: Any = None
    medium: Any = None
    group: Any = None
    locality: Any = None
    ownership: Any = None
    quire: Extra | None = None


_batches = msgspec.msgpack.Decoder(_Batch)
_maps, _arrays = msgspec.msgpack.Decoder(_MapCarrier), msgspec.msgpack.Decoder(_ArrayCarrier)
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Delta:
    """A batch as the index takes it."""

    number: int | None
    run: int
    rank: int
    names: Names
    form: Form
    lost: int
    records: Records
    digest: NDArray[np.uint64]  # [groups, tiers, 3]: pages, and two lanes of their sum


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
        delta.digest.astype("<u8", copy=False).tobytes(), delta.number,
    )  # fmt: skip
    parts: list[bytes | bytearray] = [b"\x93", _encoder.encode(ts), b""]  # an array of three
    count = 1
    for event in events:
        count += event.count if isinstance(event, Stamped) else 1
        parts.append(event.data if isinstance(event, Stamped) else _encoder.encode(event))
    parts[2] = pack.head(count)
    return b"".join([*parts, _encoder.encode(encoder.carrier(extra)), _encoder.encode(delta.rank)])


def decoded(payload: bytes) -> Delta | None:
    """What our field says; None for a batch of another publisher. Damaged: no batch at all."""
    try:
        batch = _batches.decode(payload)
        extra = _carried(batch.events[-1]) if batch.events else None
        if extra is None:
            return None
        _check(extra)
        groups = tuple(GroupNames(*group) for group in extra.groups)
        names = Names(extra.block_size, tuple(extra.tiers), groups)
        head = extra.number, extra.run, batch.rank or 0, names
        return Delta(*head, extra.form, extra.lost, *_arrays_of(extra))
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: an array of the wrong length, text that is none
        raise Damaged(str(error)) from error


def _check(extra: Extra) -> None:
    """What follows relies on: sizes that a cache may have."""
    if extra.version != VERSION:
        raise Damaged(f"version {extra.version}, we read {VERSION}")
    sizes = (len(extra.groups), MAX_GROUPS), (len(extra.tiers), MAX_TIERS), (extra.block_size, MAX_BLOCK_SIZE)
    if not all(1 <= size <= most for size, most in sizes):
        raise Damaged(f"{len(extra.groups)} groups, {len(extra.tiers)} tiers, blocks of {extra.block_size}")


def _carried(event: msgspec.Raw) -> Extra | None:
    """Our field of a batch's last event; events are maps or arrays."""
    head = memoryview(event)[0]
    is_map = 0x80 <= head <= 0x8F or head in (0xDE, 0xDF)
    return _maps.decode(event).quire if is_map else _arrays.decode(event).quire


def _arrays_of(extra: Extra) -> tuple[Records, NDArray[np.uint64]]:
    rows = np.frombuffer(extra.records, "<i4").astype(np.int32, copy=False).reshape(-1, 5)
    hashes = np.frombuffer(extra.hashes, "<u8").astype(np.uint64, copy=False)
    digest = np.frombuffer(extra.digest, "<u8").astype(np.uint64, copy=False)
    shape = (len(extra.groups), len(extra.tiers), 3)
    return (rows, hashes, np.frombuffer(extra.priorities, np.uint8)), digest.reshape(shape)
