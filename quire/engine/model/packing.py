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


def pack(cache: Cache, windows: Sequence[int | None], segments: Sequence[Segment], device: torch.device) -> Packed:
    """Put segments side by side. `windows[group]` is 0 for full attention, None for a group of states."""
    counts = np.array([len(segment.tokens) for segment in segments], np.int64)
    starts = np.array([segment.start for segment in segments], np.int64)
    rows = np.array([segment.row for segment in segments], np.int64)
    logits = np.array([segment.num_logits for segment in segments], np.int64)
    offsets = np.zeros(len(segments) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    ids = np.concatenate([segment.tokens for segment in segments]).astype(np.int64)
    owner = np.repeat(np.arange(len(segments)), counts)
    positions = np.arange(offsets[-1]) - offsets[owner] + starts[owner]
    size = cache.config.block_size
    columns = int(-(-(starts + counts).max() // size))
    blocks, places = np.divmod(positions, size)
    place = on_device(places, device)
    lanes: dict[int, Lane] = {}
    states: dict[int, Int32] = {}
    writes: dict[int, Writes] = {}
    for group, window in enumerate(windows):
        if window is None:
            states[group] = _backed(cache.state_table(group)[rows], "a sequence", "state")
            writes[group] = _writes(segments, group)
            continue
        table = cache.table(group)[rows, :columns]
        slots = _backed(table[owner, blocks], "a token", "page")
        lanes[group] = Lane(window, table, on_device(slots.astype(np.int64), device), place)
    return Packed(
        on_device(ids, device), on_device(positions, device), offsets, starts, lanes, states,
        writes, on_device(_trailing(offsets[1:], logits), device),
    )  # fmt: skip


def _writes(segments: Sequence[Segment], group: int) -> Writes:
    """States of a group that a step writes on the way, ascending."""
    snapshotted = ((nth, segment) for nth, segment in enumerate(segments) if segment.snapshots)
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
