"""Tier: one kind of memory, seen as page-sized slots per layer group. Owns the contract all tiers keep, its errors and
the cut of a page. Knows no plans, no blocks and no other tier.

    group 0   slot 0     slot 1     slot 2   ...      a slot is page_bytes bytes at an offset
            [ page   ] [ page   ] [ page   ]          a page is contiguous over all layers of its group

Groups of one pool have the same slots: slot 5 of group 0 and slot 5 of group 1 are the same bytes then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, QuireError, UnknownError, say

Bytes = NDArray[np.uint8]
Pages = tuple[Sequence[int], Sequence[int]]  # slots, and the rows of other memory that they are copied to or from


@dataclass(frozen=True, slots=True)
class TierInfo:
    """What a tier is: its name, and per layer group its slots and their size; 0 slots where it holds no such pages.

    Groups of one number in `pool_of` have the same slots, so they have as many, of one size.
    """

    name: str
    num_slots: tuple[int, ...]
    page_bytes: tuple[int, ...]
    pool_of: tuple[int, ...] = ()  # by group: its pool here; (): no group shares its slots

    def __post_init__(self) -> None:
        groups = range(len(self.num_slots))
        if not self.pool_of:
            object.__setattr__(self, "pool_of", tuple(groups))
        if len(self.pool_of) != len(groups):
            fact = f"pools of {len(self.pool_of)} groups, slots of {len(groups)}"
            raise InputError(say(f"tier {self.name!r}", fact, "give one pool number per group"))
        for group, first in enumerate(self.first_of):
            slots, sizes = ([numbers[nth] for nth in (first, group)] for numbers in (self.num_slots, self.page_bytes))
            if slots[0] != slots[1] or sizes[0] != sizes[1]:
                fact = f"they have {slots[0]} and {slots[1]} slots of {sizes[0]} and {sizes[1]} bytes in one pool"
                raise InputError(
                    say(f"tier {self.name!r}, groups {first} and {group}", fact, "groups of a pool have the same slots")
                )

    @property
    def first_of(self) -> tuple[int, ...]:
        """By group: the first group that has the same slots; itself where it shares them with none before it."""
        return first_of(self.pool_of)

    @property
    def num_bytes(self) -> int:
        """Of all its slots, those of a pool counted once."""
        owners = sorted(set(self.first_of))
        return sum(self.num_slots[group] * self.page_bytes[group] for group in owners)


def first_of(pool_of: Sequence[int]) -> tuple[int, ...]:
    """By group: the first group of its pool, whose number stands for all of them."""
    return tuple(map(pool_of.index, pool_of))


class Tier(Protocol):
    """Page-sized slots that keep what was written. One caller at a time.

    Buffer i belongs to slots[i] and is uint8 [strips, width]: the first `width` bytes of each of `strips` equal strips
    of the page. [1, page_bytes] is the whole page, [1, n] its first n bytes. Other bytes of a slot stay as they are.

    A batch is carried to its end: when some slots fail, TierError lists every one of them, and all others are done.
    What is in the buffer of a failed read, or in the slot of a failed write, is unspecified. Misuse changes nothing.
    """

    def info(self) -> TierInfo:
        """What the tier is; stays callable after close."""
        ...

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        """Fill the buffers from the slots; a slot may be named more than once."""
        ...

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        """Fill the slots from the buffers; no slot twice."""
        ...

    def close(self) -> None:
        """Give the memory back; later calls fail, closing again does nothing."""
        ...


@runtime_checkable
class MemoryTier(Tier, Protocol):
    """A tier whose slots the processor can address.

    The mover copies in and out of such slots without a call, so a tier whose reads can fail or need checks is not one.
    """

    def view(self, group: int) -> Bytes:
        """The slots themselves, uint8 [num_slots, page_bytes], C-contiguous; not a copy."""
        ...


@runtime_checkable
class CopyingTier(Tier, Protocol):
    """A tier that copies between its own slots faster than a read and a write do."""

    def copy(self, group: int, src_slots: Sequence[int], dst_slots: Sequence[int], cut: tuple[int, int]) -> None:
        """Fill the cut (strips, width) of each target slot from its source; errors name targets.

        A source may be named more than once, a target once; a target is never another move's source.
        """
        ...


@runtime_checkable
class BulkTier(Tier, Protocol):
    """A tier that moves many pages between its slots and memory that the processor addresses by one call.

    `view` is a MemoryTier's, uint8 [n, page_bytes]: page i moves between slots[i] and view[rows[i]], or of each the cut
    (strips, width). No target twice. What holds for buffers of `read` and `write` holds for the rows here.
    """

    def reaches(self, group: int, view: Bytes) -> bool:
        """Whether the three calls below take this memory for this group."""
        ...

    def read_into(
        self, group: int, slots: Sequence[int], view: Bytes, rows: Sequence[int], cut: tuple[int, int]
    ) -> None:
        """Fill the rows from the slots."""
        ...

    def write_from(
        self, group: int, slots: Sequence[int], view: Bytes, rows: Sequence[int], cut: tuple[int, int]
    ) -> None:
        """Fill the slots from the rows."""
        ...

    def exchange(self, group: int, slots: Sequence[int], view: Bytes, rows: Sequence[int]) -> None:
        """Whole pages change places."""
        ...

    def read_and_write(self, group: int, view: Bytes, down: Pages, up: Pages) -> None:
        """As `read_into` of whole pages, then `write_from`, at once. No row that is read is one that was filled."""
        ...


class TierError(QuireError):
    """Slots that could not be read or written; a miss with a reason, never wrong bytes."""

    def __init__(self, tier: str, group: int, failed: Mapping[int, str]) -> None:
        if not failed:
            raise InputError(say(f"an error of tier {tier!r}", "it names no slot", "give each failed slot a reason"))
        super().__init__(tier, group, dict(failed))
        self.tier = tier
        self.group = group
        self.failed = dict(failed)
        self.slot, self.reason = next(iter(failed.items()))

    def __str__(self) -> str:
        more = f" (and {len(self.failed) - 1} more)" if len(self.failed) > 1 else ""
        ask = f"tier {self.tier!r}, group {self.group}, slot {self.slot}{more}"
        return say(ask, self.reason, "treat what it held as missing")


@dataclass(frozen=True, slots=True)
class PageLayout:
    """How a page divides: `planes` equal strips (layers x K/V), each block_size tokens long; 0: it does not."""

    page_bytes: int
    planes: int = 0

    def cut(self, tokens: int, block_size: int) -> tuple[int, int]:
        """Strips, and bytes of each, that hold the first `tokens` tokens; a whole page is one strip."""
        if not self.planes or tokens >= block_size:
            return 1, self.page_bytes
        return self.planes, self.page_bytes // self.planes // block_size * tokens


def check_call(info: TierInfo, group: int, slots: Sequence[int], buffers: Sequence[Bytes]) -> None:
    """What every tier refuses in read and write, before it touches a byte."""
    where = f"tier {info.name!r}"
    _check_group(info, group)
    if len(slots) != len(buffers):
        fact = f"{len(slots)} slots, {len(buffers)} buffers"
        raise InputError(say(f"a batch for {where}", fact, "give one buffer per slot"))
    _check_slots(info, group, slots)
    page_bytes = info.page_bytes[group]
    for buffer in buffers:
        if buffer.dtype != np.uint8 or buffer.ndim != 2 or not _fits(buffer.shape, page_bytes):
            fact = f"{buffer.dtype} {list(buffer.shape)} is not a cut of a page of {page_bytes} bytes"
            raise InputError(say(f"a buffer for {where}, group {group}", fact, "give uint8 [strips, width]"))


def check_copy(
    info: TierInfo, group: int, src_slots: Sequence[int], dst_slots: Sequence[int], cut: tuple[int, int]
) -> None:
    """What every tier refuses in copy, before it touches a byte."""
    _check_group(info, group)
    if len(src_slots) != len(dst_slots):
        fact = f"{len(src_slots)} sources, {len(dst_slots)} targets"
        raise InputError(say(f"a copy in tier {info.name!r}", fact, "give one target per source"))
    _check_slots(info, group, src_slots)
    _check_slots(info, group, dst_slots)
    check_distinct(info, group, dst_slots)
    if not _fits(cut, info.page_bytes[group]):
        fact = f"{cut} is not a cut of a page of {info.page_bytes[group]} bytes"
        raise InputError(say(f"a copy in tier {info.name!r}, group {group}", fact, "give (strips, width)"))


def check_bulk(info: TierInfo, group: int, slots: Sequence[int], view: Bytes, rows: Sequence[int]) -> None:
    """What every tier refuses in bulk calls, before it touches a byte."""
    _check_group(info, group)
    if len(slots) != len(rows):
        fact = f"{len(slots)} slots, {len(rows)} rows"
        raise InputError(say(f"a batch for tier {info.name!r}", fact, "give one row per slot"))
    _check_slots(info, group, slots)
    if view.dtype != np.uint8 or view.ndim != 2 or view.shape[1] != info.page_bytes[group]:
        fact = f"{view.dtype} {list(view.shape)} beside pages of {info.page_bytes[group]} bytes"
        raise InputError(say(f"memory for tier {info.name!r}, group {group}", fact, "give uint8 [n, page_bytes]"))
    if rows and not (min(rows) >= 0 and max(rows) < len(view)):
        fact = f"it has {len(view)} rows, asked are {min(rows)} to {max(rows)}"
        raise UnknownError(say(f"memory for tier {info.name!r}, group {group}", fact, "name rows it has"))


def _check_group(info: TierInfo, group: int) -> None:
    if not 0 <= group < len(info.num_slots):
        fact = f"it has {len(info.num_slots)} groups"
        raise UnknownError(say(f"tier {info.name!r}, group {group}", fact, "number groups as the cache does"))


def _check_slots(info: TierInfo, group: int, slots: Sequence[int]) -> None:
    num_slots = info.num_slots[group]
    if slots and not (min(slots) >= 0 and max(slots) < num_slots):
        wrong = next(slot for slot in slots if not 0 <= slot < num_slots)
        fact = f"group {group} has {num_slots} slots"
        raise UnknownError(say(f"slot {wrong} of tier {info.name!r}", fact, "name slots from 0 up to that number"))


def check_distinct(info: TierInfo, group: int, slots: Sequence[int]) -> None:
    """Refuse a write that names a slot twice: which buffer wins would be luck."""
    if len(set(slots)) != len(slots):
        fact = f"{len(slots)} slots, {len(set(slots))} of them different"
        raise InputError(say(f"a write to tier {info.name!r}, group {group}", fact, "write each slot once per call"))


def check_pools(info: TierInfo, pool_of: Sequence[int]) -> None:
    """Refuse a tier in which groups share slots that have pools of their own in the cache: they would be mixed up."""
    for group, first in enumerate(info.first_of):
        if pool_of[first] != pool_of[group]:
            fact = "they have the same slots here, and pools of their own in the cache"
            cure = "give groups of one pool, and no others, the same memory"
            raise InputError(say(f"tier {info.name!r}, groups {first} and {group}", fact, cure))


def pools_in(name: str, ends: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """By group: which of them have one memory. `ends`: address and length of each group's, in bytes.

    Memory that two groups have only a part of in common is refused: it could not be said whose slot is whose.
    """
    pools: list[int] = []
    for group, (start, length) in enumerate(ends):
        same = [nth for nth in range(group) if length and ends[nth] == (start, length)]
        pools.append(pools[same[0]] if same else group)
        for nth, (other, size) in enumerate(ends[:group]):
            if pools[nth] != pools[group] and start < other + size and other < start + length:
                fact = "their memory overlaps and is not the same"
                raise InputError(
                    say(f"tier {name!r}, groups {nth} and {group}", fact, "give them one array, or apart ones")
                )
    return tuple(pools)


def runs(dst_slots: Sequence[int], src_slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Pairs of slots, sorted and joined where both sides have neighbours: first target, first source, how many."""
    pairs = sorted(zip(dst_slots, src_slots, strict=True))
    first = 0
    for last, (target, source) in enumerate(pairs, start=1):
        if last == len(pairs) or pairs[last] != (target + 1, source + 1):
            yield *pairs[first], last - first
            first = last


def _fits(shape: tuple[int, ...], page_bytes: int) -> bool:
    strips, width = shape
    return strips > 0 and page_bytes % strips == 0 and 0 < width <= page_bytes // strips
