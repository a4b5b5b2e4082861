"""Read: any batch of KV events as plain values, whoever published it. For people and tests; the index reads deltas."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.events.delta import decoded
from quire.events.field import Damaged

STORED = (
    "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
    "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership",
)  # fmt: skip
REMOVED = ("type", "block_hashes", "medium", "group_idx", "locality", "ownership", "quire")
FIELDS = {"BlockStored": STORED, "BlockRemoved": REMOVED}


def read(payload: bytes) -> dict[str, Any]:
    """Time, rank, events by field, and what our own field says; or why it is no batch."""
    try:
        ts, events, *rank = msgspec.msgpack.decode(payload)
        delta = decoded(payload)
        told = [_plain(event) for event in events]
    except (msgspec.DecodeError, Damaged, TypeError, ValueError) as error:
        return {"damaged": str(error), "events": []}
    batch: dict[str, Any] = {"ts": float(ts), "rank": rank[0] if rank else None, "events": told}
    if delta is not None:
        del batch["events"][-1]  # it only carries our field
        pages = int(delta.digest[:, :, 0].sum())
        lanes = [[[f"{lane:016x}" for lane in tier[1:]] for tier in group] for group in delta.digest.tolist()]
        own = {"run": delta.run, "form": delta.form.name.lower(), "pages": pages, "lost": delta.lost, "digest": lanes}
        batch["quire"] = own
    return batch


def _plain(event: Any) -> dict[str, Any]:
    """An event by field, whichever way it is encoded, without bytes."""
    if isinstance(event, list):
        names = FIELDS.get(event[0], ("type",)) if event else ()
        event = dict(zip(names, event, strict=False))
    if not isinstance(event, dict):
        raise TypeError(f"{event!r} is no event")
    return {str(key): _printable(value) for key, value in event.items()}


def _printable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value
