"""Copy or exchange the pages of one batch between two tiers. Owns the ways bytes take and the account of what failed.
Knows no plans and no poison.

    one tier -> itself     its own copy, where it has one
    memory   -> memory     one copy per run of neighbouring slots
    any tier -> memory     read into the target slots
    memory   -> any tier   write out of the source slots
    bulk    <-> memory     one call for all of them, exchanges too, where the tier reaches that memory; and for two
                           batches, of which one makes room for the other
    any tier -> any tier   read and write through staging, a chunk at a time; exchanges too
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from quire.tiers.base import BulkTier, Bytes, CopyingTier, MemoryTier, Tier, TierError, runs
from quire.tiers.move_batch import MoveBatch

Failures = dict[int, str]  # position in the batch -> reason
T = TypeVar("T")


class End(NamedTuple):
    """One side of a batch: the tier, and once more for what else it can do. Asking for that is slow (13 us)."""

    tier: Tier
    memory: MemoryTier | None
    copying: CopyingTier | None
    bulk: BulkTier | None

    @classmethod
    def from_tier(cls, tier: Tier) -> End:
        """The tier, asked."""
        memory = tier if isinstance(tier, MemoryTier) else None
        copying = tier if isinstance(tier, CopyingTier) else None
        return cls(tier, memory, copying, tier if isinstance(tier, BulkTier) else None)


def carry(src: End, dst: End, batch: MoveBatch, staging: Bytes) -> Failures:
    """Do what the batch says, as far as the tiers can; what failed. Requires: staging holds two pages."""
    if (failed := _carry_at_once(src, dst, batch)) is not None:
        return failed
    if batch.exchange:
        return _exchange(src.tier, dst.tier, batch, staging)
    if src.copying and src.tier is dst.tier:
        return _copy_inside(src.copying, batch)
    if src.memory and dst.memory:
        return _copy_in_place(_cut(src.memory, batch), _cut(dst.memory, batch), batch)
    if dst.memory:
        cut = _cut(dst.memory, batch)
        return _call(src.tier.read, batch.group, batch.src_slots, [cut[slot] for slot in batch.dst_slots])
    if src.memory:
        cut = _cut(src.memory, batch)
        return _call(dst.tier.write, batch.group, batch.dst_slots, [cut[slot] for slot in batch.src_slots])
    return _copy_staged(src.tier, dst.tier, batch, staging)


def _carry_at_once(src: End, dst: End, batch: MoveBatch) -> Failures | None:
    """All moves by one call, between a tier that can do so and memory that it reaches; None: there is no such pair."""
    group, cut = batch.group, batch.cut
    if src.bulk and dst.memory and src.bulk.reaches(group, view := dst.memory.view(group)):
        bulk, slots, rows, act = src.bulk, batch.src_slots, batch.dst_slots, src.bulk.read_into
    elif dst.bulk and src.memory and dst.bulk.reaches(group, view := src.memory.view(group)):
        bulk, slots, rows, act = dst.bulk, batch.dst_slots, batch.src_slots, dst.bulk.write_from
    else:
        return None
    if batch.exchange:
        return _call(lambda group, slots, rows: bulk.exchange(group, slots, view, rows), group, slots, rows)
    return _call(lambda group, slots, rows: act(group, slots, view, rows, cut), group, slots, rows)


def carry_both(src: End, dst: End, down: MoveBatch, up: MoveBatch) -> bool:
    """The moves of two batches by one call, both ways over the link; False: there is no such pair of tiers."""
    if src.bulk is None or dst.memory is None or not src.bulk.reaches(down.group, view := dst.memory.view(down.group)):
        return False
    src.bulk.read_and_write(down.group, view, (down.src_slots, down.dst_slots), (up.dst_slots, up.src_slots))
    return True


def _copy_inside(tier: CopyingTier, batch: MoveBatch) -> Failures:
    def act(group: int, targets: list[int], sources: list[int]) -> None:
        tier.copy(group, sources, targets, batch.cut)

    return _call(act, batch.group, batch.dst_slots, batch.src_slots)


def _copy_in_place(src: Bytes, dst: Bytes, batch: MoveBatch) -> Failures:
    # Moves of a batch do not wait for each other, so they may be sorted to make runs. One copy per run, since a single
    # copy with index arrays goes through a temporary (64 KiB pages without any runs: 3 GB/s instead of 7).
    for target, source, count in runs(batch.dst_slots, batch.src_slots):
        dst[target : target + count] = src[source : source + count]
    return {}


def _copy_staged(src: Tier, dst: Tier, batch: MoveBatch, staging: Bytes) -> Failures:
    failed: Failures = {}
    step = len(staging) // (batch.cut[0] * batch.cut[1])
    for start in range(0, len(batch.moves), step):
        chunk = list(range(start, min(start + step, len(batch.moves))))
        buffers = _buffers(staging, batch, len(chunk))
        chunk, buffers = _pass(src.read, batch.group, batch.src_slots, (chunk, buffers), failed)
        _pass(dst.write, batch.group, batch.dst_slots, (chunk, buffers), failed)
    return failed


def _exchange(src: Tier, dst: Tier, batch: MoveBatch, staging: Bytes) -> Failures:
    """Both pages are read before either slot is written, so a failed read leaves both slots as they were."""
    failed: Failures = {}
    half = len(staging) // 2
    step = half // batch.cut[1]
    for start in range(0, len(batch.moves), step):
        chunk = list(range(start, min(start + step, len(batch.moves))))
        first, second = (_buffers(part, batch, len(chunk)) for part in (staging[:half], staging[half:]))
        _pass(src.read, batch.group, batch.src_slots, (chunk, first), failed)
        _pass(dst.read, batch.group, batch.dst_slots, (chunk, second), failed)
        for write, slots, buffers in ((dst.write, batch.dst_slots, first), (src.write, batch.src_slots, second)):
            good = [position for position in chunk if position not in failed]
            _pass(write, batch.group, slots, (good, [buffers[position - start] for position in good]), failed)
    return failed


Act = Callable[[int, Sequence[int], Sequence[Bytes]], None]
Load = tuple[list[int], list[Bytes]]  # positions in the batch and their buffers


def _pass(act: Act, group: int, slots: list[int], load: Load, failed: Failures) -> Load:
    """Read or write the load; note what failed and hand on the rest."""
    positions, buffers = load
    if not positions:
        return load
    wrong = _call(act, group, [slots[position] for position in positions], buffers)
    failed.update((positions[nth], reason) for nth, reason in wrong.items())
    kept = [nth for nth in range(len(positions)) if nth not in wrong]
    return [positions[nth] for nth in kept], [buffers[nth] for nth in kept]


def _call(act: Callable[[int, list[int], list[T]], None], group: int, slots: list[int], others: list[T]) -> Failures:
    """One call of a tier; which of `slots`, by position, failed. An error that names none of them spoils them all."""
    try:
        act(group, slots, others)
    except TierError as error:
        wrong = {nth: error.failed[slot] for nth, slot in enumerate(slots) if slot in error.failed}
        return wrong or dict.fromkeys(range(len(slots)), str(error))
    return {}


def _cut(memory: MemoryTier, batch: MoveBatch) -> Bytes:
    """The part of every slot that the batch moves: [num_slots, strips, width]."""
    view = memory.view(batch.group)
    strips, width = batch.cut
    return view.reshape(len(view), strips, -1)[:, :, :width]


def _buffers(staging: Bytes, batch: MoveBatch, count: int) -> list[Bytes]:
    strips, width = batch.cut
    return list(staging[: count * strips * width].reshape(count, strips, width))
