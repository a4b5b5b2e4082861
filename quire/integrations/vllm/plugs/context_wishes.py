"""Wishes of a request's caller, as vLLM's offloading sees them: its ReqContext has no request, only what came with it.

    kv_transfer_params["quire"]     "back"; "priority", "seconds" and "tokens"
    kv_hints                        from vLLM 0.33 on: actions "quire.hint" and "kv.retain", as for the connector

What is not known by name is left alone, and the rest holds: the connector may know it, or a later version. What cannot
be read is logged and ignored, one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.core.records.config import DEFAULT_PRIORITY
from quire.core.records.errors import shown
from quire.core.records.hint_words import NO_HINT, hint_number
from quire.integrations.vllm.common.request_hints import back_of
from quire.integrations.vllm.common.request_identity import PARAMS

log = logging.getLogger(__name__)
MOST_SECONDS = 10 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class Wishes:
    """When its text comes back, and how long it should stay."""

    back: int = NO_HINT
    priority: int = DEFAULT_PRIORITY
    seconds: float | None = None
    tokens: int | None = None  # how many from the start the priority is about; None: all

    @property
    def retains(self) -> bool:
        """Whether it asks for another priority than all have."""
        return self.priority != DEFAULT_PRIORITY

    def covers(self, end: int | None) -> bool:
        """Whether the priority is about a block that ends there."""
        return self.tokens is None or (end is not None and end <= self.tokens)


@dataclass(frozen=True, slots=True)
class _Asker:
    """A context as `request_hints` reads requests."""

    request_id: str
    kv_transfer_params: Mapping[str, Any] | None
    kv_hints: object


def wishes_of(context: Any) -> Wishes | None:
    """None: nothing was said."""
    params, hints = getattr(context, "kv_transfer_params", None), getattr(context, "kv_hints", None)
    given = params.get(PARAMS) if isinstance(params, Mapping) else None
    if not isinstance(given, Mapping):
        given = {}
    if not given and hints is None:
        return None
    name = str(getattr(context, "req_id", ""))
    said = {PARAMS: {"back": given["back"]}} if "back" in given else None
    asker: Any = _Asker(name, said, hints)
    back = back_of(asker)
    return Wishes(
        NO_HINT if back is None else hint_number(back, f"request {shown(name)}"),
        DEFAULT_PRIORITY if (priority := _whole(given, "priority", 100, name)) is None else priority,
        _seconds(given, name),
        _whole(given, "tokens", 1 << 31, name),
    )


def _whole(given: Mapping[str, Any], key: str, most: int, name: str) -> int | None:
    value = given.get(key)
    if value is None or (type(value) is int and 0 <= value <= most):
        return value
    log.warning("%s %s of request %s is left out: give 0 to %d", key, shown(value), shown(name), most)
    return None


def _seconds(given: Mapping[str, Any], name: str) -> float | None:
    value = given.get("seconds")
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_SECONDS):
        return value
    log.warning("seconds %s of request %s are left out: give a number", shown(value), shown(name))
    return None
