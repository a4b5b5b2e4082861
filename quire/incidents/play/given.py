"""Given: what a call of an incident was given, from its line: requests, scopes, numbers. Knows no cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.core.records.encoder import Encoder
from quire.core.records.identity import Scope
from quire.core.records.request import Request
from quire.core.records.retain import RetainRange, Retention
from quire.core.records.span import Span
from quire.incidents.files.naming import unpacked


def request_of(data: dict[str, Any]) -> Request:
    """A request from its line."""
    kept, encoder = data.get("retention"), data.get("encoder")
    retention = None
    if kept is not None:
        ranges = tuple(RetainRange(*one) for one in kept[0])
        retention = Retention(ranges, kept[1], kept[2], kept[3])
    tenant, session = (data.get(name) for name in ("tenant", "session"))
    return Request(
        data["id"], unpacked(data["tokens"]), scope_of(data.get("scope")), length=data.get("length"),
        retention=retention, reuse=data.get("reuse", True), reuse_limit=data.get("reuse_limit"),
        beams=data.get("beams", 1), extra_tokens=data.get("extra_tokens", 0),
        max_new_tokens=data.get("max_new_tokens", 0), resume_points=tuple(data.get("resume_points", ())),
        encoder=None if encoder is None else _encoder(*encoder),
        uncut=tuple(Span(*span) for span in data.get("uncut", ())),
        tenant=None if tenant is None else f"tenant {tenant}",
        session=None if session is None else f"session {session}", redo_blocks=data.get("redo_blocks", 0),
    )  # fmt: skip


def _encoder(length: int, digest: str | None) -> Encoder:
    return Encoder(length, digest=None if digest is None else bytes.fromhex(digest))


def scope_of(numbers: list[int | None] | None) -> Scope:
    """A scope of numbers."""
    return Scope() if numbers is None else Scope(*numbers)


def skipped(blocks: list[Any]) -> dict[int, list[int]]:
    """Blocks by group."""
    return {group: list(some) for group, some in blocks}


def int_array(some: Any) -> Any:
    """An array where it was one, or the number."""
    return np.array(some, np.int32) if isinstance(some, list) else some
