"""Packed: one step's tokens of many sequences in one row, and the tables that lead to their pages. All in arrays.

    ids        a a a a b c c        segments a (a prompt's part), b (one decoded token), c (a token and a draft)
    offsets    0       4 5   7
    positions  8 9 . . 3 6 7        where each token stands in its sequence

Knows no scheduler and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from quire.core.admission.batch import Snapshot
from quire.core.cache import Cache
from quire.core.records.errors import StateError, say
from quire.core.records.request import Int32
from quire.engine.tensors.on_device import on_device

Int64 = NDArray[np.int64]
Writes = dict[int, list[tuple[int, int]]]  # by segment: after how many of its tokens a state goes into which slot


class Segment(NamedTuple):
    """What one sequence computes in a step."""

    row: int
    start: int
    tokens: Int32  # the ones to compute, from position `start` on
    num_logits: int  # trailing positions whose logits are wanted
    snapshots: tuple[Snapshot, ...] = ()  # states to write on the way

    @property
    def end(self) -> int:
        """Where its KV ends once the step has run."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """Sequences that compute one token each, and want its logits: segments in arrays."""

    rows: Int32
    starts: Int32  # where their tokens stand
    tokens: Int32

    def __len__(self) -> int:
        return len(self.rows)


NO_DECODES = Decodes(*np.zeros((3, 0), np.int32))


class Lane(NamedTuple):
    """One layer group's way to the pages of a step."""

    window: int  # 0: everything before
    table: Int32  # [segments, blocks]: device slots; -1 where nothing is read
    slot: torch.Tensor  # of each token, where its KV goes: [tokens]
    place: torch.Tensor  # and its place in that page


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A step, ready for the model."""

    ids: torch.Tensor  # [tokens]
    positions: torch.Tensor  # [tokens]
    offsets: Int64  # [segments + 1]: first token of each segment
    starts: Int64  # [segments]: its position
    lanes: dict[int, Lane]  # by group with pages of KV
    state_slots: dict[int, Int32]  # by group with states: a slot per segment
    snapshots: dict[int, Writes]  # by group with states: what is written on the way
    wanted: torch.Tensor  # tokens whose logits are wanted
    rows: Int32  # [segments]: rows of the block tables
    only_decodes: bool  # every segment is one token, not the first, whose logits are wanted

    @property
    def num_tokens(self) -> int:
        """Tokens it computes."""
        return int(self.offsets[-1])

    @property
    def counts(self) -> Int64:
        """Tokens of each segment."""
        return np.diff(self.offsets)

    @property
    def ends(self) -> Int64:
        """Length of each sequence once the step has run."""
        return self.starts + self.counts


def pack(
    cache: Cache, windows: Sequence[int | None], segments: Sequence[Segment], device: torch.device,
    decodes: Decodes = NO_DECODES,
) -> Packed:  # fmt: skip
    """Put segments side by side, behind decodes. `windows[group]` is 0 for full attention, None for one of states."""
    flat = _flat(decodes, segments)
    size = cache.config.block_size
    columns = int(flat.positions.max()) // size + 1
    blocks, places = np.divmod(flat.positions, size)
    place = on_device(places, device)
    lanes: dict[int, Lane] = {}
    states: dict[int, Int32] = {}
    writes: dict[int, Writes] = {}
    for group, window in enumerate(windows):
        if window is None:
            states[group] = _backed(cache.state_table(group)[flat.rows], "a sequence", "state")
            writes[group] = _writes(segments, group, len(decodes))
            continue
        table = cache.table(group)[flat.rows, :columns]
        slots = _backed(table[flat.owner, blocks], "a token", "page")
        lanes[group] = Lane(window, table, on_device(slots.astype(np.int64), device), place)
    return Packed(
        on_device(flat.ids, device), on_device(flat.positions, device), flat.offsets, flat.starts, lanes, states,
        writes, on_device(flat.wanted, device), flat.rows, all(map(is_decode, segments)),
    )  # fmt: skip


class _Flat(NamedTuple):
    """All tokens of a step in one row."""

    rows: Int32  # of the segments
    starts: Int64
    offsets: Int64
    owner: Int64  # of each token its segment
    positions: Int64
    ids: Int64
    wanted: Int64


def _flat(decodes: Decodes, segments: Sequence[Segment]) -> _Flat:
    """Decodes, then segments."""
    starts, ids = decodes.starts.astype(np.int64), decodes.tokens.astype(np.int64)
    if not segments:
        each = np.arange(len(decodes) + 1)
        return _Flat(decodes.rows, starts, each, each[:-1], starts, ids, each[:-1])
    ones = np.ones(len(decodes), np.int64)
    rows = np.concatenate([decodes.rows, np.array([segment.row for segment in segments], np.int32)])
    starts = np.concatenate([starts, np.array([segment.start for segment in segments], np.int64)])
    counts = np.concatenate([ones, np.array([len(segment.tokens) for segment in segments], np.int64)])
    logits = np.concatenate([ones, np.array([segment.num_logits for segment in segments], np.int64)])
    ids = np.concatenate([ids, *(segment.tokens for segment in segments)]).astype(np.int64)
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    owner = np.repeat(np.arange(len(rows)), counts)
    positions = np.arange(offsets[-1]) - offsets[owner] + starts[owner]
    return _Flat(rows, starts, offsets, owner, positions, ids, _trailing(offsets[1:], logits))


def is_decode(segment: Segment) -> bool:
    """One token, not the first, whose logits are wanted."""
    return len(segment.tokens) == segment.num_logits == 1 and segment.start > 0 and not segment.snapshots


def _writes(segments: Sequence[Segment], group: int, before: int) -> Writes:
    """States of a group that a step writes on the way, ascending; so many decodes are before the segments."""
    snapshotted = ((nth, segment) for nth, segment in enumerate(segments, start=before) if segment.snapshots)
    return {
        nth: [(one.position - segment.start, one.slot) for one in segment.snapshots if one.group == group]
        for nth, segment in snapshotted
    }


def _backed(slots: Int32, who: str, what: str) -> Int32:
    """The slots as they are: -1 would be written to as well, and is the last slot, another sequence's."""
    if slots.min() < 0:
        fact = f"{who} to compute has no {what}"
        raise StateError(say("pack a step", fact, "compute what admit or grow has given slots to, and nothing else"))
    return slots


def _trailing(ends: Int64, counts: Int64) -> Int64:
    """The last `counts[i]` places before `ends[i]`, one segment after the other."""
    total = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=total[1:])
    owner = np.repeat(np.arange(len(counts)), counts)
    places: Int64 = np.arange(total[-1]) - total[owner] + (ends - counts)[owner]
    return places
