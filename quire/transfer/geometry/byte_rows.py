"""Rows: page moves as byte ranges, for links. Pure arithmetic; knows no sessions.

one row   group, offset in the source's pool, offset in the target's pool, bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, say
from quire.transfer.geometry.shards import Fragment
from quire.transfer.geometry.slices import Places

Rows = NDArray[np.int64]  # [moves, 4]
MAX_ROWS = 1 << 16  # of one frame
NO_ROWS: Rows = np.zeros((0, 4), np.int64)


class PoolSlots(NamedTuple):
    """Slots of one side's pool, and the bytes of a page there."""

    slots: Places
    page_bytes: int

    def offsets(self, inside: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where these bytes of every slot's page lie in the pool: [slots, bytes]."""
        return self.slots.astype(np.int64)[:, None] * self.page_bytes + inside


def rows_of(group: int, source: PoolSlots, target: PoolSlots, fragments: Sequence[Fragment]) -> Rows:
    """The moves of one group: source and target slot of every pair, cut into the fragments both ranks have."""
    if not len(source.slots) or not fragments:
        return NO_ROWS
    cut = np.array(fragments, np.int64)
    rows = np.empty((len(source.slots), len(cut), 4), np.int64)
    rows[..., 0] = group
    rows[..., 1] = source.offsets(cut[:, 0])
    rows[..., 2] = target.offsets(cut[:, 1])
    rows[..., 3] = cut[:, 2]
    return joined(rows.reshape(-1, 4))


def joined(rows: Rows) -> Rows:
    """Neighbours on both sides become one row."""
    if len(rows) < 2:
        return rows
    ends = rows[:-1, 1:3] + rows[:-1, 3:4]
    goes_on = (rows[:-1, 0] == rows[1:, 0]) & (ends == rows[1:, 1:3]).all(axis=1)
    first = np.flatnonzero(np.r_[True, ~goes_on])
    merged = rows[first].copy()
    merged[:, 3] = np.add.reduceat(rows[:, 3], first)
    return merged


def num_bytes(rows: Rows) -> int:
    """All of them."""
    return int(rows[:, 3].sum())


def chunks(rows: Rows, most: int) -> list[Rows]:
    """The same bytes in parts of at most `most`, long rows cut."""
    parts: list[Rows] = []
    now: list[tuple[int, int, int, int]] = []
    room = most
    for group, source, target, size in rows.tolist():
        while size:
            step = min(size, room)
            now.append((group, source, target, step))
            source, target, size, room = source + step, target + step, size - step, room - step
            if not room or len(now) == MAX_ROWS:
                parts.append(np.array(now, np.int64))
                now, room = [], most
    return [*parts, np.array(now, np.int64)] if now else parts


def to_bytes(rows: Rows) -> bytes:
    """Rows for a frame."""
    return rows.astype("<i8", copy=False).tobytes()


def from_bytes(raw: bytes) -> Rows:
    """Rows from a peer; checked, and not more than MAX_ROWS."""
    if len(raw) % 32 or len(raw) > 32 * MAX_ROWS:
        raise InputError(say("rows from a peer", f"they have {len(raw)} bytes", "send whole rows, and fewer"))
    rows = np.frombuffer(raw, "<i8").reshape(-1, 4)
    if len(rows) and (rows.min() < 0 or int(rows[:, 1:].max()) > 1 << 56):
        raise InputError(say("rows from a peer", "they name no bytes of a pool", "send offsets inside pools"))
    return rows
