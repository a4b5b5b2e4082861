"""Field: our own field of a batch, read from untrusted bytes. Owns the limits of what a worker may say.

Whatever comes is either the field, None (a batch of another publisher), Damaged (bytes that are not a batch) or Refused
(a batch that no cache of this version publishes); nothing else is raised, and memory goes by the length of the bytes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from quire.core.records.config import MAX_TIERS, SEED_BYTES
from quire.core.records.groups import LARGEST

VERSION = 2
MAX_GROUPS, MAX_BLOCK_SIZE = 64, 65535  # of a ledger, of a chain
MAX_NUMBER = (1 << 63) - 1  # of a batch; 2^64 - 1 ends an answer
MAX_NAME = 64  # characters of a tier's or a kind's name
LEAST_EVENT = 16  # bytes of one, at least: a payload that claims more events than fit into it is refused
_WIDTHS = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}  # of numbers

_NOTHING = msgspec.Raw()
Name = Annotated[str, Meta(max_length=MAX_NAME)]
Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
BlockCount = Annotated[int, Meta(ge=-1, le=LARGEST)]
GroupEntry = tuple[Name, BlockCount | None, BlockCount, BlockCount]  # kind, window, tail, sink: as GroupNames


class Damaged(Exception):
    """Bytes that are not a batch; as good as lost."""


class Refused(Damaged):
    """A batch that no cache of ours would publish: its sender is not to be relied on."""


class OtherVersion(Refused):
    """A batch whose own field another version wrote; its events are as every router reads them."""


class Form(IntEnum):
    """What a batch says about the state."""

    CHANGES = 0  # since the batch before
    WHOLE = 1  # all of it
    MARK = 2  # nothing but its digest


class QuireField(msgspec.Struct, array_like=True, gc=False):
    """Our field; numbers are little-endian."""

    version: Count
    run: Count  # of the publisher: another one, another stream
    block_size: Annotated[int, Meta(ge=1, le=MAX_BLOCK_SIZE)]
    tiers: Annotated[list[Name], Meta(min_length=1, max_length=MAX_TIERS)]
    groups: Annotated[list[GroupEntry], Meta(min_length=1, max_length=MAX_GROUPS)]
    form: Form
    lost: Count  # hashes the recorder had no room for, and which a whole state makes up for
    records: bytes  # int32 [n, 5]
    hashes: bytes  # uint64
    priorities: bytes  # uint8
    digest: bytes  # uint64 [groups, tiers, 3]
    number: Count  # of the batch, as in the frame beside it
    seed: Annotated[bytes, Meta(min_length=SEED_BYTES, max_length=SEED_BYTES)]  # of event hashes


class _Version(msgspec.Struct, array_like=True, gc=False):
    version: int


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    rank: Annotated[int, Meta(ge=0, le=LARGEST)] | None = None


class _MapCarrier(msgspec.Struct, gc=False):
    quire: msgspec.Raw = _NOTHING


class _ArrayCarrier(msgspec.Struct, array_like=True, gc=False):
    type: str
    hashes: msgspec.Raw = _NOTHING
    medium: msgspec.Raw = _NOTHING
    group: msgspec.Raw = _NOTHING
    locality: msgspec.Raw = _NOTHING
    ownership: msgspec.Raw = _NOTHING
    quire: msgspec.Raw = _NOTHING


_batches, _fields = msgspec.msgpack.Decoder(_Batch), msgspec.msgpack.Decoder(QuireField)
_maps, _arrays = msgspec.msgpack.Decoder(_MapCarrier), msgspec.msgpack.Decoder(_ArrayCarrier)
_versions = msgspec.msgpack.Decoder(_Version)


class FoundField(NamedTuple):
    """Our field of a batch, and the rank of its cache."""

    rank: int
    field: QuireField


def read_field(payload: bytes) -> FoundField | None:
    """Our field of a batch; None: it has none."""
    try:
        _check_length(payload)
        batch = _batches.decode(payload)
        field = _field(batch.events[-1]) if batch.events else None
        if field is None:
            return None
        version = _versions.decode(field).version
        if version != VERSION:
            cure = "upgrade the worker" if version < VERSION else "upgrade the router"
            raise OtherVersion(f"it speaks version {version} of our field, we read {VERSION}: {cure}")
        return FoundField(batch.rank or 0, _fields.decode(field))
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise Refused(str(error)) from None
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: text that is none
        raise Damaged(str(error)) from None


def _check_length(payload: bytes) -> None:
    """Check the number of events before each becomes an object; it is the length of the array behind the time."""
    at = 1 + _WIDTHS.get(payload[1], 1) if len(payload) > 1 else 1
    width = {0xDC: 2, 0xDD: 4}.get(payload[at], 0) if len(payload) > at else 0
    if not 0x90 <= (payload[0] if payload else 0) <= 0x9F:
        raise Damaged("it is not an array of time, events and rank")
    num_events = int.from_bytes(payload[at + 1 : at + 1 + width], "big")
    if num_events * LEAST_EVENT > len(payload):
        raise Refused(f"{num_events} events in {len(payload)} bytes")


def _field(event: msgspec.Raw) -> msgspec.Raw | None:
    """Our field of a batch's last event; events are maps or arrays."""
    head = memoryview(event)[0]
    is_map = 0x80 <= head <= 0x8F or head in (0xDE, 0xDF)
    found = _maps.decode(event).quire if is_map else _arrays.decode(event).quire
    return None if bytes(memoryview(found)[:1]) in (b"", b"\xc0") else found
