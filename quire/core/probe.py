"""Probe: what a claim would find and an admission would take, without side effects. Estimates; claims make promises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quire.core.claim import Prepared, Purpose, num_cold, ready_for, walk
from quire.core.request import Request
from quire.core.sequence import Sequence
from quire.core.state import State


@dataclass(frozen=True, slots=True)
class Probe:
    """One request, as things are now. Slots are what the free count (`num_free`) would go down by."""

    start: int  # first token that would have to be computed
    hit_blocks: int  # whole blocks found
    held_blocks: int  # of those, how many are in use already (they cost no free slot)
    onboards: tuple[int, ...]  # hit pages per group that are not on the device
    onboard_bytes: int
    slots_now: tuple[int, ...]  # per group, for the whole prompt
    slots_to_completion: tuple[int, ...]  # and for max_new_tokens after it
    next_key: int | None  # names the first whole block that is missing: equal numbers, equal prefix


def probe(state: State, requests: Iterable[Request | Prepared], purpose: Purpose) -> list[Probe]:
    """Look, hold for a moment to count, let go."""
    ready = ready_for(state, requests)
    return [_probe(state, prepared, purpose) for prepared in ready]


def _probe(state: State, prepared: Prepared, purpose: Purpose) -> Probe:
    store, config = state.store, state.config
    hit = walk(state, prepared, purpose)
    groups = range(len(config.groups))
    free = [store.available(group) for group in groups]
    store.claim(hit)
    idle = [free[group] - store.available(group) for group in groups]
    cold = num_cold(state, hit)
    leaf, held, num_claims, tiers = store.source_state(hit)
    store.unclaim(hit)
    partial = hit.source >= 0
    alone = partial and not held and num_claims == 1  # its slot, if on the device, is counted in idle
    new = prepared.blocks - hit.blocks - partial + prepared.spare
    copies = [_copies(leaf, alone, tier) for tier in tiers] if partial else [0] * len(groups)
    now = tuple(idle[group] + cold[group] + new + copies[group] for group in groups)
    later = (
        max(config.blocks(prepared.length + prepared.request.max_new_tokens) - prepared.blocks, 0)
        * prepared.request.beams
    )
    block = config.block_size
    ahead = hit.blocks if (hit.blocks + 1) * block <= prepared.end else None
    return Probe(
        start=hit.start,
        hit_blocks=hit.blocks,
        held_blocks=hit.blocks - (idle[0] - int(alone and tiers[0] == 0)) - cold[0],
        onboards=cold,
        onboard_bytes=sum(pages * group.page_bytes for pages, group in zip(cold, config.groups, strict=True)),
        slots_now=now,
        slots_to_completion=tuple(slots + later for slots in now),
        next_key=None if ahead is None else _key(prepared, ahead),
    )


def _copies(leaf: int, alone: bool, tier: int) -> int:
    """Slots a partial hit takes on top of its source's own, which was counted when it was idle on the device."""
    if alone and leaf:
        return int(tier > 0)  # taken over, brought up if need be
    return 0 if alone and tier == 0 else 1  # copied; an idle source gives its slot back


def _key(prepared: Prepared, block: int) -> int:
    prepared.chain.extend_keys(block + 1)
    return hash((prepared.scope_key, prepared.chain.key(block)))


def remaining(state: State, sequence: Sequence) -> tuple[int, ...]:
    """Slots per group that a live sequence may still take until its max_new_tokens are generated."""
    total = state.config.blocks(sequence.prompt_end + sequence.request.max_new_tokens)
    have = range(len(state.config.groups))
    return tuple(max(total - sequence.capacity(group) // state.config.block_size, 0) for group in have)
