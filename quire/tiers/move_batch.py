"""MoveBatch: moves of one plan that are carried together. Owns the reading of a plan's columns, their checks and the
order that hazards ask for. Touches no bytes and knows no threads.

    plan      A>x   B>y   x>A   C>z   y>B            A, B, C: places on the device; x, y, z: on the host
    batches  [A>x   B>y   C>z] [x>A   y>B]           device to host first, since the others read what it writes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, UnknownError, say
from quire.core.records.plan import COLUMNS, Kind, Moves, Plan
from quire.tiers.base import PageLayout, TierInfo

KIND, GROUP, SRC_TIER, SRC_SLOT, DST_TIER, DST_SLOT, TOKENS = range(7)
MANY = 64  # moves from which on arrays are faster than a loop
WORDS = ("kind", "group", "tier", "slot", "tier", "slot")  # of the columns above

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MoveBatch:
    """Moves of one group between the same two tiers, of one cut, none of which waits for another."""

    group: int
    src_tier: int
    dst_tier: int
    exchange: bool
    cut: tuple[int, int]  # strips, bytes of each
    moves: list[int]  # their places in the plan
    src_slots: list[int]
    dst_slots: list[int]
    sources: list[int]  # place numbers of the slots
    targets: list[int]

    def makes_room_for(self, other: MoveBatch) -> bool:
        """Whether the next batch goes the other way, with whole pages of the group, none of which this one brings."""
        mine, its = (self.src_tier, self.dst_tier), (other.dst_tier, other.src_tier)
        alike = mine == its and self.group == other.group and self.cut == other.cut and self.src_tier != self.dst_tier
        return alike and not (self.exchange or other.exchange) and set(self.targets).isdisjoint(other.sources)


class Ground:
    """What moves run on. Each slot of a tier's pool is one numbered *place*: no hazard mixes up two tiers, and none
    is missed between two groups that have the same slots.
    """

    __slots__ = ("_base", "_ends", "_limits", "_split", "block_size", "infos", "layouts")

    def __init__(self, infos: Sequence[TierInfo], layouts: Sequence[PageLayout], block_size: int) -> None:
        _check_layouts(layouts, block_size)
        for info in infos:
            _check_tier(info, layouts)
        self.infos = tuple(infos)
        self.layouts = tuple(layouts)
        self.block_size = block_size
        self._limits = np.array([info.num_slots for info in infos], np.int64).reshape(len(infos), len(layouts)).T
        first = np.array([info.first_of for info in infos], np.int64).reshape(len(infos), len(layouts)).T
        owned = np.where(first == np.arange(len(layouts))[:, None], self._limits, 0)  # slots of a pool count once
        self._ends = np.cumsum(owned)
        starts = (self._ends - owned.ravel()).reshape(owned.shape)
        self._base = np.take_along_axis(starts, first, axis=0)
        self._split = np.array([layout.planes > 0 for layout in layouts], bool)

    def name(self, place: int) -> str:
        """A place in words."""
        group, tier = divmod(int(np.searchsorted(self._ends, place, side="right")), len(self.infos))
        info = self.infos[tier]
        sharing = [str(nth) for nth, first in enumerate(info.first_of) if first == group]
        whose = f"group {group}" if len(sharing) == 1 else f"groups {' and '.join(sharing)}"
        return f"slot {place - int(self._base[group, tier])} of tier {info.name!r}, {whose}"

    def check(self, plan: Plan) -> Moves:
        """The plan's moves, copied, when all of them make sense here; an error that names one that does not."""
        moves = np.array(plan.moves)
        if moves.ndim != 2 or moves.shape[1] != COLUMNS or moves.dtype != np.int32:
            fact = f"its moves are {moves.dtype} {list(moves.shape)}"
            raise InputError(say(f"plan {plan.number}", fact, f"give int32 [n, {COLUMNS}]"))
        num_groups, num_tiers = self._limits.shape
        limits = np.array([len(Kind), num_groups, num_tiers, num_tiers])
        _check_below(plan, moves, [KIND, GROUP, SRC_TIER, DST_TIER], limits)
        num_slots = self._limits[moves[:, [GROUP]], moves[:, [SRC_TIER, DST_TIER]]]
        _check_below(plan, moves, [SRC_SLOT, DST_SLOT], num_slots)
        partial = (moves[:, KIND] == Kind.COPY) & self._split[moves[:, GROUP]]
        wrong = partial & ((moves[:, TOKENS] < 1) | (moves[:, TOKENS] > self.block_size))
        if wrong.any():
            index = int(wrong.argmax())
            fact = f"it copies {moves[index, TOKENS]} tokens of a block of {self.block_size}"
            raise InputError(say(f"plan {plan.number}, move {index}", fact, "copy at least one and at most a block"))
        return moves

    def batches(self, moves: Moves) -> list[MoveBatch]:
        """Batches that, one after the other, mean what the moves mean one after the other."""
        wide = moves.astype(np.int64)
        group, src_tier, dst_tier = wide[:, GROUP], wide[:, SRC_TIER], wide[:, DST_TIER]
        sources = self._base[group, src_tier] + wide[:, SRC_SLOT]
        targets = self._base[group, dst_tier] + wide[:, DST_SLOT]
        exchange = wide[:, KIND] == Kind.EXCHANGE
        whole = (wide[:, KIND] != Kind.COPY) | ~self._split[group] | (wide[:, TOKENS] == self.block_size)
        tokens = np.where(whole, self.block_size, wide[:, TOKENS])
        keys = np.ravel_multi_index(
            (group, src_tier, dst_tier, exchange.astype(np.int64), tokens),
            (*self._limits.shape, len(self.infos), 2, self.block_size + 1),
        )
        if len(moves) >= MANY and len(np.unique(np.concatenate((sources, targets)))) == 2 * len(moves):
            gathered = by_key(keys)
        else:
            found = gather(keys.tolist(), sources.tolist(), targets.tolist(), exchange.tolist())
            gathered = [np.array(indices, np.int64) for indices in found]
        return [self._batch(wide, indices, sources, targets) for indices in gathered]

    def _batch(self, moves: Numbers, indices: Numbers, sources: Numbers, targets: Numbers) -> MoveBatch:
        kind, group, src_tier, _, dst_tier, _, tokens, *_ = moves[indices[0]].tolist()
        whole = (1, self.layouts[group].page_bytes)
        return MoveBatch(
            group=group,
            src_tier=src_tier,
            dst_tier=dst_tier,
            exchange=kind == Kind.EXCHANGE,
            cut=self.layouts[group].cut(tokens, self.block_size) if kind == Kind.COPY else whole,
            moves=indices.tolist(),
            src_slots=moves[indices, SRC_SLOT].tolist(),
            dst_slots=moves[indices, DST_SLOT].tolist(),
            sources=sources[indices].tolist(),
            targets=targets[indices].tolist(),
        )


def by_key(keys: Numbers) -> list[Numbers]:
    """As `gather`, for moves of which no two share a place: one batch per key, in the order the keys come first."""
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    parts = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
    return [parts[nth] for nth in np.argsort(first)]


def gather(keys: list[int], sources: list[int], targets: list[int], exchange: list[bool]) -> list[list[int]]:
    """Moves gathered into batches of one key each.

    A move joins the newest batch of its key, unless an earlier move in that batch or a later one writes its source, or
    reads or writes its target: then it opens a batch behind them.
    """
    batches: list[list[int]] = []
    newest: dict[int, int] = {}  # key -> its newest batch
    written: dict[int, int] = {}  # place -> the last batch that writes it
    read: dict[int, int] = {}  # place -> the last batch that reads it
    for index, (key, source, target, swaps) in enumerate(zip(keys, sources, targets, exchange, strict=True)):
        after = max(written.get(source, -1), written.get(target, -1), read.get(target, -1))
        if swaps:
            after = max(after, read.get(source, -1))
        batch = newest.get(key, -1)
        if batch <= after:
            batch = newest[key] = len(batches)
            batches.append([])
        batches[batch].append(index)
        written[target] = batch
        read[source] = max(read.get(source, -1), batch)
        if swaps:
            written[source] = batch
    return batches


def _check_below(plan: Plan, moves: Moves, columns: list[int], limits: NDArray[np.int64]) -> None:
    numbers = moves[:, columns]
    wrong = (numbers < 0) | (numbers >= limits)
    if wrong.any():
        index, nth = np.argwhere(wrong)[0].tolist()
        word, limit = WORDS[columns[nth]], np.broadcast_to(limits, wrong.shape)[index, nth]
        where = f" (group {moves[index, GROUP]}, tier {moves[index, columns[nth] - 1]})" if word == "slot" else ""
        ask = f"plan {plan.number}, move {index}, {word} {numbers[index, nth]}{where}"
        raise UnknownError(say(ask, f"there are {limit}", "build the cache and the mover from the same sizes"))


def _check_layouts(layouts: Sequence[PageLayout], block_size: int) -> None:
    if block_size < 1:
        raise InputError(say("a mover", f"block size {block_size}", "give a number >= 1"))
    for group, layout in enumerate(layouts):
        cells = layout.planes * block_size
        if layout.page_bytes < 1 or layout.planes < 0 or (cells and layout.page_bytes % cells):
            fact = f"{layout.page_bytes} bytes, {layout.planes} planes, blocks of {block_size} tokens"
            cure = "make page_bytes a multiple of planes x block size, or planes 0"
            raise InputError(say(f"the layout of group {group}", fact, cure))


def _check_tier(info: TierInfo, layouts: Sequence[PageLayout]) -> None:
    if len(info.num_slots) != len(layouts):
        fact = f"it has {len(info.num_slots)} groups, the mover {len(layouts)}"
        raise InputError(say(f"tier {info.name!r}", fact, "give every group to every tier, with 0 slots where unused"))
    for group, (num_slots, size) in enumerate(zip(info.num_slots, info.page_bytes, strict=True)):
        if num_slots and size != layouts[group].page_bytes:
            fact = f"pages of {size} bytes, the mover moves {layouts[group].page_bytes}"
            raise InputError(say(f"tier {info.name!r}, group {group}", fact, "build both from the same layer groups"))
