"""Read: any publisher's batch of KV events as plain values. For people and tests; the index reads deltas."""

from __future__ import annotations

from datetime import datetime
from math import isfinite
from typing import Any

import msgspec

from quire.events.wire.delta import decoded
from quire.events.wire.digest import in_hex, pages_in
from quire.events.wire.field import Damaged, OtherVersion

STORED = (
    "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
    "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership",
)  # fmt: skip
REMOVED = ("type", "block_hashes", "medium", "group_idx", "locality", "ownership", "quire")
FIELDS = {"BlockStored": STORED, "BlockRemoved": REMOVED}
MAX_BYTES = 16 << 20  # of a batch that is taken apart: as Python objects it takes up to 70 times as much
DEPTH = 16  # of lists in lists; deeper ones are left out


def read(payload: bytes) -> dict[str, Any]:
    """Time, rank, events by field, and what our own field says; or why it is not a batch."""
    own: dict[str, Any] | None
    try:
        if len(payload) > MAX_BYTES:
            raise Damaged(f"{len(payload)} bytes, {MAX_BYTES} are taken apart")
        own = _own(payload)
        ts, events, *rank = msgspec.msgpack.decode(payload)
        events = [_plain(event) for event in events]
        batch: dict[str, Any] = {"ts": _time(ts), "rank": _printable(rank[0]) if rank else None, "events": events}
    except (msgspec.DecodeError, Damaged, TypeError, ValueError, OverflowError, OSError, RecursionError) as error:
        return {"damaged": str(error), "events": []}
    if own is not None:
        del batch["events"][-1]  # it only carries our field
        batch["quire"] = own
    return batch


def _own(payload: bytes) -> dict[str, Any] | None:
    """What our own field says, or why it is not read; None: it has none."""
    try:
        delta = decoded(payload)
    except OtherVersion as other:
        return {"unread": str(other)}
    if delta is None:
        return None
    pages, lanes = pages_in(delta.digest), in_hex(delta.digest)
    return {"run": delta.run, "form": delta.form.name.lower(), "pages": pages, "lost": delta.lost, "digest": lanes}


def _plain(event: Any) -> dict[str, Any]:
    """An event by field, whichever way it is encoded, without bytes."""
    if isinstance(event, list):
        names = FIELDS.get(event[0], ("type",)) if event else ()
        event = dict(zip(names, event, strict=False))
    if not isinstance(event, dict):
        raise TypeError(f"{event!r} is not an event")
    return {str(key): _printable(value) for key, value in event.items()}


def _time(ts: Any) -> float:
    """Seconds that a clock can show."""
    seconds = float(ts)
    if not isfinite(seconds):
        raise ValueError(f"its time is {seconds}")
    datetime.fromtimestamp(seconds)
    return seconds


def _printable(value: Any, depth: int = DEPTH) -> Any:
    """Plain values, which any reader can print."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [_printable(item, depth - 1) for item in value] if depth else "..."
    if isinstance(value, dict):
        return {str(key): _printable(item, depth - 1) for key, item in value.items()} if depth else "..."
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
