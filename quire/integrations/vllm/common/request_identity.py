"""Identity: what makes two of vLLM's requests share pages, and how long theirs should stay. Knows no cache.

Whatever vLLM counts into its own block hashes counts here: LoRA, cache_salt, images. What has no token ids is not
reused at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol

from quire.core.records.config import DEFAULT_PRIORITY
from quire.core.records.errors import InputError, QuireError, is_text, say, shown
from quire.core.records.identity import Media, Scope
from quire.core.records.request import MOST_POINTS, NO_MEDIA, NO_POINTS, PLAIN
from quire.core.records.retain import RetainRange, Retention
from quire.core.records.span import Span

log = logging.getLogger(__name__)
PARAMS = "quire"  # our part of kv_transfer_params
KNOWN = (
    "priority", "seconds", "tokens", "decode_priority", "decode_seconds", "receipt", "session", "back", "resume_points",
)  # fmt: skip


class EngineRequest(Protocol):
    """What we read of vLLM's Request; some of it changes between hooks."""

    @property
    def request_id(self) -> str: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...  # that are known: the prompt and what was generated
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def all_token_ids(self) -> Sequence[int]: ...
    @property
    def prompt_token_ids(self) -> list[int] | None: ...  # the same at the beginning; None: embeddings
    @property
    def prompt_embeds(self) -> Any: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def lora_request(self) -> Any: ...
    @property
    def mm_features(self) -> Sequence[Any]: ...
    @property
    def kv_transfer_params(self) -> Mapping[str, Any] | None: ...
    @property
    def block_hashes(self) -> Sequence[Any]: ...
    @property
    def resumable(self) -> bool: ...
    @property
    def skip_reading_prefix_cache(self) -> bool: ...


def can_share(request: EngineRequest) -> bool:
    """Embeddings have no token ids, and a streaming session changes tokens that it has had: neither is kept.

    Nor is anything of a request without a token, or with a salt that no event and no page's name could have.
    """
    has_tokens = request.prompt_embeds is None and not request.resumable and request.num_tokens > 0
    return has_tokens and is_text(request.cache_salt)


def adapter_name(lora: Any) -> str:
    """What vLLM calls a LoRA adapter."""
    return str(lora.lora_name)


def scope_of(request: EngineRequest, epoch: int, name: Callable[[Any], str] = adapter_name) -> Scope:
    """The namespace of its pages; `epoch` distinguishes updates of the weights, `name` adapters."""
    if request.lora_request is None and request.cache_salt is None and not epoch:
        return PLAIN
    lora = name(request.lora_request) if request.lora_request is not None else None
    return Scope(lora=lora, salt=request.cache_salt, epoch=epoch or None)


def media_of(request: EngineRequest, tokens: int) -> tuple[Media, ...]:
    """Images and the like in its first tokens: placeholders have equal ids, so its digest identifies the content."""
    if not request.mm_features:
        return NO_MEDIA
    found: list[tuple[int, int, list[tuple[str, int, int]]]] = []  # each with what lies over it
    for feature in sorted(request.mm_features, key=lambda one: one.mm_position.offset):  # mostly they are
        start, length, name = feature.mm_position.offset, feature.mm_position.length, str(feature.identifier)
        if length < 1 or start >= tokens:
            continue
        if found and start < found[-1][1]:  # the sound of a clip has its tokens among those of the pictures
            first, end, names = found.pop()
            found.append((first, max(end, start + length), [*names, (name, start - first, length)]))
        else:
            found.append((start, start + length, [(name, 0, length)]))
    return tuple(Media(_digest(names), (Span(start, min(end, tokens)),)) for start, end, names in found)


def _digest(names: list[tuple[str, int, int]]) -> bytes:
    """Of one image, or of several things that lie over each other, in whatever order they are given."""
    told = names[0][0] if len(names) == 1 else repr(sorted(names))
    first = b"" if len(names) == 1 else b"\xff"  # no text begins with it: an image may be named like such a list
    return blake2b(first + told.encode("utf-8", "surrogatepass"), digest_size=32).digest()


def params_of(request: EngineRequest) -> Mapping[str, Any]:
    """Our part of its kv_transfer_params; invalid ones are logged and ignored."""
    params: object = request.kv_transfer_params
    given = params.get(PARAMS, {}) if isinstance(params, Mapping) else {} if params is None else params
    if isinstance(given, Mapping) and all(name in KNOWN for name in given):
        return given
    log.warning(say(f"kv_transfer_params[{PARAMS!r}] of {shown(request.request_id)}", "not understood", f"use {KNOWN}"))
    return {}


def retention_of(request: EngineRequest) -> Retention | None:
    """How long its pages should stay, as it asks; an invalid retention is logged and ignored."""
    if request.kv_transfer_params is None:
        return None
    given = params_of(request)
    if not given.keys() & {"priority", "seconds", "tokens", "decode_priority", "decode_seconds"}:
        return None
    try:
        end = min(_count(given.get("tokens")), request.num_prompt_tokens)
        priority = given.get("priority", DEFAULT_PRIORITY)
        ranges = (RetainRange(0, end, priority, given.get("seconds")),)
        decoded = given.get("decode_priority", DEFAULT_PRIORITY)
        return Retention(ranges, decoded, given.get("decode_seconds"))
    except QuireError as wrong:
        log.warning("retention of request %s is left out: %s", shown(request.request_id), wrong)
        return None


def points_of(request: EngineRequest, tokens: int) -> tuple[int, ...]:
    """Where it says that others may go on from, in its first tokens; invalid ones are logged and left
    out, and so are all but the last that count."""
    if request.kv_transfer_params is None:
        return NO_POINTS
    given = params_of(request).get("resume_points", NO_POINTS)
    if not isinstance(given, Sequence) or not all(type(at) is int and at > 0 for at in given):
        fact, cure = "they are not positions above 0", "pass a list of ints"
        log.warning(say(f"resume_points {shown(given)} of {shown(request.request_id)}", fact, cure))
        return NO_POINTS
    return tuple(sorted({at for at in given if at <= tokens})[-MOST_POINTS:]) or NO_POINTS


def _count(tokens: object) -> int:
    if tokens is None:
        return 1 << 31
    if type(tokens) is not int or tokens < 0:
        raise InputError(say(f"retention of {shown(tokens)} tokens", "that is not a number", "leave it out for all"))
    return tokens
