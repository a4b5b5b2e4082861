"""Aux: what a decoder needs besides pages: first tokens, drafts, logits, the sampler's state. Packed once, tagged.

The tag binds the bytes to one session: a parcel of another request, or of another attempt, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from quire.core.records.errors import InputError, say
from quire.transfer.wire.verdict import Key

TAG_BYTES = 16


@dataclass(frozen=True, slots=True)
class AuxRoom:
    """What a receiver has room for."""

    first_tokens: int = 8  # beams
    draft_tokens: int = 64
    logits: int = 1 << 20  # numbers
    state_bytes: int = 1 << 16


class Aux(msgspec.Struct, frozen=True, array_like=True):
    """What goes with the last report. Logits are float32, row by row."""

    first_tokens: Annotated[tuple[int, ...], Meta(max_length=1 << 16)] = ()
    draft_tokens: Annotated[tuple[int, ...], Meta(max_length=1 << 16)] = ()
    logits: bytes = b""
    vocabulary: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    sampling: bytes = b""
    cached_tokens: Annotated[int, Meta(ge=0)] = 0

    def __repr__(self) -> str:
        drafts, rows = len(self.draft_tokens), len(self.logits) // (4 * max(self.vocabulary, 1))
        return f"Aux({len(self.first_tokens)} first tokens, {drafts} drafts, {rows} rows of {self.vocabulary} logits)"

    def logits_array(self) -> NDArray[np.float32]:
        """Logits as an array [rows, vocabulary]."""
        return np.frombuffer(self.logits, "<f4").reshape(-1, max(self.vocabulary, 1))


def with_logits(aux: Aux, logits: NDArray[np.float32]) -> Aux:
    """The same with logits [rows, vocabulary]."""
    if logits.ndim != 2:
        raise InputError(say("logits to send", f"they have shape {logits.shape}", "pass [rows, vocabulary]"))
    raw = np.ascontiguousarray(logits, "<f4").tobytes()
    return msgspec.structs.replace(aux, logits=raw, vocabulary=logits.shape[1])


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Aux)


def pack(aux: Aux, key: Key, room: AuxRoom) -> bytes:
    """Bytes for the last report; more than there is room for is an error here, at the sender."""
    _check(aux, room)
    body = _encoder.encode(aux)
    return _tag(body, key) + body


def unpack(data: bytes, key: Key, room: AuxRoom) -> Aux:
    """What a peer packed for this very session."""
    tag, body = data[:TAG_BYTES], data[TAG_BYTES:]
    if len(tag) < TAG_BYTES or not compare_digest(tag, _tag(body, key)):
        raise InputError(say(f"auxiliary data for {key}", "its tag is of another session", "send it again"))
    try:
        aux = _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputError(say(f"auxiliary data for {key}", str(error), "send what `pack` made")) from None
    _check(aux, room)
    return aux


def _tag(body: bytes, key: Key) -> bytes:
    name = key.request.encode() + key.epoch.to_bytes(8, "little")
    return blake2b(len(name).to_bytes(4, "little") + name + body, digest_size=TAG_BYTES, person=b"quire-aux").digest()


def _check(aux: Aux, room: AuxRoom) -> None:
    facts = (
        ("first tokens", len(aux.first_tokens), room.first_tokens),
        ("draft tokens", len(aux.draft_tokens), room.draft_tokens),
        ("logits", len(aux.logits) // 4, room.logits),
        ("bytes of sampling state", len(aux.sampling), room.state_bytes),
    )
    for what, number, most in facts:
        if number > most:
            raise InputError(say(f"{number} {what}", f"there is room for {most}", "send less or make more room"))
    if len(aux.logits) % (4 * max(aux.vocabulary, 1)):
        fact = f"{len(aux.logits)} bytes are not rows of {aux.vocabulary}"
        raise InputError(say("logits", fact, "pass float32 [rows, vocabulary]"))
