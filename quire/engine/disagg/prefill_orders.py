"""Prefill orders: a prompt and how its first token is chosen, as bytes for a peer's engine. Never unpickled."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from quire.core.records.errors import InputError, say
from quire.core.records.groups import LARGEST
from quire.core.records.hint_words import LONGEST_SESSION, Back
from quire.core.records.identity import Scope
from quire.core.records.request import MOST_POINTS, Int32
from quire.engine.sampling.params import Sampling
from quire.engine.step.runs.page_hints import NO_HINTS, PageHints
from quire.engine.step.runs.tenant import Together

_Point = Annotated[int, Meta(gt=0, lt=LARGEST)]


class _OrderMessage(msgspec.Struct, frozen=True, array_like=True):
    tokens: bytes  # int32
    temperature: float
    top_p: float
    top_k: int
    seed: Annotated[int, Meta(ge=0)]
    logits: bool
    scope: tuple[Any, Any, Any]  # lora, salt, epoch: a Scope takes no other values than it knows
    tenant: str | None = None  # whose turns it takes
    together: Annotated[str, Meta(max_length=64)] | None = None  # or with which others it has a share
    session: Annotated[str, Meta(min_length=1, max_length=LONGEST_SESSION)] | None = None
    back: Back | None = None  # when its text is asked for again
    resume_points: Annotated[tuple[_Point, ...], Meta(max_length=MOST_POINTS)] = ()  # where others may go on from


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_OrderMessage)


class PrefillOrder(NamedTuple):
    """What to compute: the prompt, how to choose one token, where it belongs, whether its logits are wanted as well."""

    tokens: Int32
    sampling: Sampling
    scope: Scope
    logits: bool
    tenant: str | Together | None = None
    session: str | None = None
    back: Back | None = None
    resume_points: tuple[int, ...] = ()


def pack(
    tokens: Int32, sampling: Sampling, seed: int, scope: Scope, tenant: str | Together | None = None,
    hints: PageHints = NO_HINTS,
) -> bytes:  # fmt: skip
    """What a peer needs to compute the same first token; the drawn seed, not None."""
    names = (scope.lora, scope.salt, scope.epoch)
    raw = np.ascontiguousarray(tokens, "<i4").tobytes()
    own, together = (None, tenant.id) if isinstance(tenant, Together) else (tenant, None)
    choice = (float(sampling.temperature), float(sampling.top_p), sampling.top_k, seed, needs_logits(sampling))
    try:
        told = (hints.session, hints.before_end(), tuple(hints.resume_points))
        order = _OrderMessage(raw, *choice, names, own, together, *told)
        return _encoder.encode(order)
    except OverflowError:
        raise InputError(say("a scope for a peer", "its numbers are too long", "use 64 bits")) from None


def unpack(body: bytes) -> PrefillOrder:
    """The order back; the engine checks the tokens."""
    try:
        order = _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise InputError(say("a prompt from a peer", str(wrong), "send what `pack` made")) from None
    if len(order.tokens) % 4:
        raise InputError(say("a prompt from a peer", f"{len(order.tokens)} bytes of tokens", "send int32 tokens"))
    sampling = Sampling(1, order.temperature, order.top_p, order.top_k, order.seed)
    tokens = np.frombuffer(order.tokens, "<i4").astype(np.int32)
    tenant = order.tenant if order.together is None else Together(order.together)
    told = (order.session, order.back, order.resume_points)
    return PrefillOrder(tokens, sampling, Scope(*order.scope), order.logits, tenant, *told)


def needs_logits(sampling: Sampling) -> bool:
    """Whether one first token is not enough: several answers begin differently, beams weigh all tokens, and fields
    that an order does not carry may choose another one.
    """
    changed = sampling.edits_logits or bool(sampling.min_p) or sampling.structured_outputs is not None
    return sampling.n > 1 or sampling.beams > 1 or changed or sampling.logprobs is not None
