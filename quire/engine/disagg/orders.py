"""Prefill orders: a prompt and how its first token is chosen, as bytes for a peer's engine. Never unpickled."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from quire.core.records.errors import InputError, say
from quire.core.records.identity import Scope
from quire.core.records.request import Int32
from quire.engine.choose.sampling import Sampling
from quire.engine.step.runs.tenant import Together


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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_OrderMessage)


class PrefillOrder(NamedTuple):
    """What to compute: the prompt, how to choose one token, where it belongs, whether its logits are wanted as well."""

    tokens: Int32
    sampling: Sampling
    scope: Scope
    logits: bool
    tenant: str | Together | None = None


def pack(tokens: Int32, sampling: Sampling, seed: int, scope: Scope, tenant: str | Together | None = None) -> bytes:
    """What a peer needs to compute the same first token; the drawn seed, not None."""
    names = (scope.lora, scope.salt, scope.epoch)
    raw = np.ascontiguousarray(tokens, "<i4").tobytes()
    numbers = (float(sampling.temperature), float(sampling.top_p), sampling.top_k, seed)
    try:
        whose = (None, tenant.id) if isinstance(tenant, Together) else (tenant, None)
        return _encoder.encode(_OrderMessage(raw, *numbers, needs_logits(sampling), names, *whose))
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
    return PrefillOrder(tokens, sampling, Scope(*order.scope), order.logits, tenant)


def needs_logits(sampling: Sampling) -> bool:
    """Whether one first token is not enough: several answers begin differently, beams weigh all tokens, and fields
    that an order does not carry may choose another one.
    """
    changed = sampling.edits_logits or bool(sampling.min_p) or sampling.structured_outputs is not None
    return sampling.n > 1 or sampling.beams > 1 or changed or sampling.logprobs is not None
