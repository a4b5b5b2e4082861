"""Messages: what two peers say to each other, as bytes of one version. Bounded; never unpickled. Knows no sessions.

receiver -> sender   Hello, Order, Ask, Beat, Cancel          sender -> receiver   Hello, Refuse, DeliveryReport, Cancel
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from quire.core.records.errors import InputError, say
from quire.core.records.span import Span
from quire.transfer.geometry.slices import BlockRun, Places, Spans, places_of, runs_of
from quire.transfer.wire.verdict import Key

VERSION = 1
MAX_BLOCKS = 1 << 22  # of one prompt
MAX_GROUPS = 64
MAX_RUNS = 1 << 16
MAX_KEYS = 1 << 12  # of one beat
MAX_ORDER = 5 * MAX_BLOCKS  # bytes
Text = Annotated[str, Meta(max_length=1024)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Blocks = Annotated[int, Meta(ge=0, le=MAX_BLOCKS)]
Ranks = Annotated[int, Meta(ge=1, le=4096)]
Epoch = Annotated[int, Meta(ge=0, le=2**62)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
WireRun = tuple[Blocks, Annotated[bytes, Meta(max_length=4 * MAX_BLOCKS)]]
WireSpans = Annotated[tuple[tuple[Blocks, Blocks], ...], Meta(max_length=MAX_RUNS)]


class PeerMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What all messages have in common: an array, led by the name of its kind."""


class GroupWant(msgspec.Struct, frozen=True, array_like=True):
    """What one group wants, and where it goes: runs of slots by ordinal. A state stands after `position` tokens."""

    blocks: Blocks  # places of the list: both sides must agree
    runs: Annotated[tuple[WireRun, ...], Meta(max_length=MAX_RUNS)]
    state: bool = False
    position: Count = 0


class WireSection(msgspec.Struct, frozen=True, array_like=True):
    """A section of a layer."""

    name: Text
    num_bytes: Count
    shard: tuple[Count, Count, Count, Count]
    rows: Annotated[int, Meta(ge=1, le=1 << 20)]


class WirePage(msgspec.Struct, frozen=True, array_like=True):
    """A page as a rank has it."""

    layers: Annotated[tuple[Count, ...], Meta(max_length=4096)]
    sections: Annotated[tuple[WireSection, ...], Meta(max_length=64)]


class Hello(PeerMessage, frozen=True):
    """Who speaks: facts that must be equal, its place among its ranks, its pages, what it can do."""

    name: Text
    facts: Annotated[dict[Text, Text], Meta(max_length=2 * MAX_GROUPS)]
    ranks: tuple[Ranks, Annotated[tuple[Ranks, ...], Meta(max_length=1024)], Ranks, Ranks]
    rank: Count
    pages: Annotated[tuple[WirePage, ...], Meta(max_length=MAX_GROUPS)]
    can: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()


class Refuse(PeerMessage, frozen=True):
    """A hello that does not fit, and what differs."""

    reason: Text


class Order(PeerMessage, frozen=True):
    """Compute a prompt for me: I shall ask for it under this key. What `body` says is between the engines."""

    request: Text
    epoch: Epoch
    body: Annotated[bytes, Meta(max_length=MAX_ORDER)]

    def __repr__(self) -> str:
        return f"Order({key_of(self)}, {len(self.body)} bytes)"


class Ask(PeerMessage, frozen=True):
    """A receiver's wants; `patience` is what is left of it.

    `start` is the first block that any group lacks: a peer that does not know per-group wants goes by this number.
    """

    request: Text
    epoch: Epoch
    piece: Count  # the receiver's own number for it; every result echoes it
    door: Count
    length: Count
    content: Annotated[bytes, Meta(max_length=64)]
    wants: Annotated[tuple[GroupWant, ...], Meta(max_length=MAX_GROUPS)]
    start: Blocks
    patience: Seconds

    def __repr__(self) -> str:
        blocks = [want.blocks for want in self.wants]
        return f"Ask({key_of(self)}, {self.length} tokens, {blocks} blocks, door {self.door})"

    @property
    def num_bytes(self) -> int:
        """About what it takes to keep it."""
        return 256 + sum(64 + len(raw) for want in self.wants for _, raw in want.runs)


class DeliveryReport(PeerMessage, frozen=True, tag="Result"):
    """A sender's report: of a piece, or the last one. `delivered` counts from the first piece on.

    On the wire it is called Result, as it was in the first release.
    """

    request: Text
    epoch: Epoch
    piece: Count
    last: bool
    ok: bool
    delivered: Annotated[tuple[WireSpans, ...], Meta(max_length=MAX_GROUPS)] = ()
    num_bytes: Count = 0
    reason: Text = ""
    aux: bytes = b""

    def __repr__(self) -> str:
        which = "the last one" if self.last else "of a piece"
        end = f"{self.num_bytes} bytes and {len(self.aux)} beside them" if self.ok else f"failed: {self.reason[:200]}"
        return f"DeliveryReport({key_of(self)}, {which}, {end})"


class Cancel(PeerMessage, frozen=True):
    """The other side does not want it any more."""

    request: Text
    epoch: Epoch
    reason: Text = ""


class Beat(PeerMessage, frozen=True):
    """A receiver still waits for these."""

    keys: Annotated[tuple[tuple[Text, Epoch], ...], Meta(max_length=MAX_KEYS)]


AnyMessage = Hello | Refuse | Order | Ask | DeliveryReport | Cancel | Beat
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
M = TypeVar("M", Ask, DeliveryReport, Cancel)


def encode(message: AnyMessage) -> bytes:
    """One byte of version, then the message."""
    return bytes((VERSION,)) + _encoder.encode(message)


def decode(data: bytes | memoryview) -> AnyMessage:
    """The message; the version is checked before anything else is read."""
    if not len(data):
        raise InputError(say("a message from a peer", "it is empty", "drop it"))
    if data[0] != VERSION:
        fact = f"it has version {data[0]}, this side speaks {VERSION}"
        raise InputError(say("a message from a peer", fact, "run the same release on both sides"))
    try:
        return _decoder.decode(data[1:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # bad UTF-8 is a ValueError
        raise InputError(say("a message from a peer", str(error), "drop it")) from None


def key_of(message: Order | Ask | DeliveryReport | Cancel) -> Key:
    """The session it belongs to."""
    return Key(message.request, message.epoch)


def group_want(places: Places, *, state: bool, position: int) -> GroupWant:
    """A list of slots for the wire."""
    runs = tuple((run.first, np.asarray(run.slots, "<i4").tobytes()) for run in runs_of(places))
    return GroupWant(len(places), runs, state, position)


def wanted_places(want: GroupWant) -> Places:
    """The list back; checked."""
    runs = []
    for first, raw in want.runs:
        if len(raw) % 4 or first + len(raw) // 4 > want.blocks:
            fact = f"a run of {len(raw)} bytes from {first} on in {want.blocks} blocks"
            raise InputError(say("a want of a peer", fact, "send int32 slots inside the prompt"))
        runs.append(BlockRun(first, tuple(np.frombuffer(raw, "<i4").tolist())))
    return places_of(runs, want.blocks)


def to_wire(spans: Spans) -> WireSpans:
    """Spans as pairs."""
    return tuple((span.start, span.end) for span in spans)


def from_wire(pairs: WireSpans) -> Spans:
    """Pairs as spans; checked."""
    return tuple(Span(start, end) for start, end in pairs)
