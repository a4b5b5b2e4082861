"""Probe: what a claim would find and an admission would take, without side effects. Estimates; claims make promises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quire.core.claim import Prepared, Purpose, num_cold, ready_for, walk
from quire.core.request import Request
from quire.core.sequence import Sequence
from quire.core.state import State

Numbers = tuple[int, ...]  # one per group


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
    ready = ready_for(state, requests, purpose)
    return [_probe(state, prepared, purpose) for prepared in ready]


def _probe(state: State, prepared: Prepared, purpose: Purpose) -> Probe:
    store, config = state.store, state.config
    hit = walk(state, prepared, purpose)
    groups = state.groups
    free = [store.available(group) for group in groups]
    store.claim(hit)
    idle = [free[group] - store.available(group) for group in groups]
    cold = num_cold(state, hit)
    leaf, held, num_claims, tiers = store.source_state(hit)
    store.unclaim(hit)
    partial = hit.source >= 0
    new = prepared.blocks - hit.blocks - partial + prepared.spare
    source_takes = _source_takes(leaf, held, num_claims, tiers) if partial else [0] * len(groups)
    now = tuple(idle[group] + cold[group] + new + source_takes[group] for group in groups)
    source_idle = partial and not held[0] and num_claims[0] == 1 and tiers[0] == 0
    later = (
        max(config.blocks(prepared.length + prepared.request.max_new_tokens) - prepared.blocks, 0)
        * prepared.request.beams
    )
    block = config.block_size
    ahead = hit.blocks if (hit.blocks + 1) * block <= prepared.end else None
    return Probe(
        start=hit.start,
        hit_blocks=hit.blocks,
        held_blocks=hit.blocks - (idle[0] - source_idle) - cold[0],
        onboards=cold,
        onboard_bytes=sum(pages * group.page_bytes for pages, group in zip(cold, config.groups, strict=True)),
        slots_now=now,
        slots_to_completion=tuple(slots + later for slots in now),
        next_key=None if ahead is None else _key(prepared, ahead),
    )


def _source_takes(leaf: int, held: Numbers, num_claims: Numbers, tiers: Numbers) -> list[int]:
    """Slots per group that a partial hit takes on top of its source's own, counted as idle when it was."""
    if leaf and not any(held) and all(claims == 1 for claims in num_claims):
        return [int(tier > 0) for tier in tiers]  # taken over, brought up if need be
    facts = zip(held, num_claims, tiers, strict=True)  # copied: an idle source on the device gives its slot back
    return [0 if not in_use and claims == 1 and tier == 0 else 1 for in_use, claims, tier in facts]


def _key(prepared: Prepared, block: int) -> int:
    prepared.chain.extend_keys(block + 1)
    return hash((prepared.scope_key, prepared.chain.key(block)))


def remaining(state: State, sequence: Sequence) -> tuple[int, ...]:
    """Slots per group that a live sequence and its beams may still take until max_new_tokens are generated."""
    request, block = sequence.request, state.block_size
    asked = len(request.tokens) if request.length is None else request.length
    total = state.config.blocks(max(asked, sequence.prompt_end) + request.max_new_tokens)
    have = [sequence.capacity(group) // block for group in state.groups]
    return tuple(max(total - pages, 0) * request.beams for pages in have)
