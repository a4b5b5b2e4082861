"""Probe: what a claim would find and an admission would take, without side effects. Estimates; claims make promises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from quire.core.admission.budgets import spared
from quire.core.admission.claim import launched_only, note_facts
from quire.core.admission.prepare import check_device, ready_for
from quire.core.admission.promise import make_promise
from quire.core.records.groups import columns_of, growth
from quire.core.records.reports.receipt import Receipt
from quire.core.records.request import Request
from quire.core.state.claim import Claim, Promise, Spans, hit_of, let_go
from quire.core.state.prepared import Prepared, Purpose, ReadyRequest
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence
from quire.core.state.setup import Setup

Numbers = tuple[int, ...]  # one per group


@dataclass(frozen=True, slots=True)
class Probe:
    """One request, as things are now. Slots are what the free count (`num_free`) would go down by."""

    start: int  # first token that would have to be computed
    stop: int  # where its first step would end at the latest: the prompt's end, or a snapshot before it
    hit_blocks: int  # whole blocks found
    held_blocks: int  # hit pages of the first group that are in use already (they cost no free slot)
    spans: tuple[Spans, ...]  # tokens found, group by group, never cut to the shortest
    onboards: tuple[int, ...]  # pages per group that come from a colder tier, those that are only copied from too
    onboard_bytes: int  # of those pages
    slots_now: tuple[int, ...]  # per group, for the whole prompt
    slots_to_completion: tuple[int, ...]  # and for max_new_tokens after it
    # names the first whole block that is missing: equal numbers, equal prefix; None: it has none
    next_key: int | None = field(repr=False)


def probe_batch(registry: Registry, requests: Iterable[Request | Prepared], purpose: Purpose) -> list[Probe]:
    """What a claim would find now: claim, count, give back."""
    check_device(registry.setup, "probe")
    ready = ready_for(registry.setup, requests, purpose)
    with launched_only(registry):
        return [_probe(registry.setup, prepared, purpose) for prepared in ready]


def explain_request(registry: Registry, request: Request | Prepared, purpose: Purpose) -> Receipt:
    """Why a claim would miss what it would miss now: claim, look, give back."""
    (prepared,) = ready_for(registry.setup, [request], purpose)
    now = registry.setup.now()
    claim = Promise(prepared, purpose)
    with launched_only(registry):
        row = make_promise(registry.setup, claim, True)
    try:
        note_facts(registry, claim, row, now)
    finally:
        let_go(claim)
    return Claim(claim).receipt


class _Taken(NamedTuple):
    """What a claim takes off the free count, it and its admission."""

    slots_now: list[int]  # by group
    idle_blocks: int  # of its hit, in the first group: idle on the device before the claim


def _taken(setup: Setup, claim: Promise, free: list[int]) -> _Taken:
    """Of a claim that is open; so many slots were free before it."""
    hit, groups, partial = claim.hit, setup.groups, claim.hit.source >= 0
    idle = _idle(setup, claim, free)
    leaf, held, num_claims, tiers = setup.store.source_state(hit)
    more = {group: len(setup.store.promised(hit, group)) - spared(setup, claim, group) for group in setup.windows}
    source = _source_takes(leaf, held, num_claims, tiers) if partial else []
    source_idle = partial and not held[0] and num_claims[0] == 1 and tiers[0] == 0
    copied = [setup.layers[group].current and not partial for group in groups]  # a snapshot is given back at once
    now = [0 if copied[group] else idle[group] for group in groups]
    for group in groups:
        now[group] += claim.cold[group] + claim.takes[group] + more.get(group, 0)
        if group < len(source):
            now[group] += source[group] - 1
    return _Taken(now, idle[0] - source_idle)


def _idle(setup: Setup, claim: Promise, free: list[int]) -> list[int]:
    """Per group: pages that were idle on the device, and that the claim alone keeps from others."""
    if len(setup.sharers) == len(setup.groups):
        return [free[group] - setup.available(group) for group in setup.groups]
    counts = []
    for group in setup.groups:
        (store, place), hit, pages = setup.pools[group], hit_of(claim, group), set[int]()
        if hit is not None:
            pages.update(hit.pages(place).tolist(), hit.sources()[place : place + 1])
        infos = [store.page_info(place, page) for page in pages if store.page_slots(place, page)[0] >= 0]
        counts.append(sum(info.holders == 0 and info.claims == 1 for info in infos))
    return counts


def slots_now(registry: Registry, prepared: ReadyRequest, purpose: Purpose) -> list[int]:
    """Slots per group that admitting a request would take off the free count now: claim, count, give back."""
    setup = registry.setup
    free = [setup.available(group) for group in setup.groups]
    claim = Promise(prepared, purpose)
    with launched_only(registry):
        make_promise(setup, claim)
    taken = _taken(setup, claim, free)
    let_go(claim)
    return taken.slots_now


def _probe(setup: Setup, prepared: ReadyRequest, purpose: Purpose) -> Probe:
    config, groups, block = setup.config, setup.groups, setup.block_size
    free = [setup.available(group) for group in groups]
    claim = Promise(prepared, purpose)
    make_promise(setup, claim)
    hit, (now, idle) = claim.hit, _taken(setup, claim, free)
    in_hit = int(np.count_nonzero(hit.tiers(0) == 0))
    let_go(claim)
    ahead = hit.blocks if (hit.blocks + 1) * block <= prepared.end and prepared.scope is not None else None
    later = [_later(setup, prepared, group, claim.takes[group]) for group in groups]
    return Probe(
        start=hit.start,
        stop=prepared.stop_after(hit.start, hit.start + claim.num_tokens),
        hit_blocks=hit.blocks,
        held_blocks=in_hit - idle,
        spans=Claim(claim).spans,
        onboards=claim.onboards,
        onboard_bytes=sum(n * group.page_bytes for n, group in zip(claim.onboards, config.groups, strict=True)),
        slots_now=tuple(now),
        slots_to_completion=tuple(a + b for a, b in zip(now, later, strict=True)),
        next_key=None if ahead is None else _key(prepared, ahead),
    )


def _later(setup: Setup, prepared: ReadyRequest, group: int, have: int) -> int:
    """Slots that generating may take on top of the prompt's."""
    if group >= setup.own_groups.stop:
        return 0
    layer, size, request = setup.layers[group], setup.block_size, prepared.request
    longest = prepared.length + prepared.new_tokens + (layer.extra_tokens or 0)
    coming = columns_of(layer, longest, size) - columns_of(layer, prepared.reaches[group], size)
    return growth(layer, max(coming, 0), have, size) * request.beams


def _source_takes(leaf: int, held: Numbers, num_claims: Numbers, tiers: Numbers) -> list[int]:
    """Slots per group that a partial hit takes on top of its source's own, counted as idle when it was."""
    if leaf and not any(held) and all(claims == 1 for claims in num_claims):
        return [int(tier > 0) for tier in tiers]  # taken over, brought up if need be
    facts = zip(held, num_claims, tiers, strict=True)  # copied: an idle source on the device gives its slot back
    return [0 if not in_use and claims == 1 and tier == 0 else 1 for in_use, claims, tier in facts]


def _key(prepared: ReadyRequest, block: int) -> int:
    prepared.chain.extend_keys(block + 1)
    return hash((prepared.scope_key, prepared.chain.key(block)))


def slots_to_completion(setup: Setup, sequence: Sequence) -> tuple[int, ...]:
    """Slots per group that a live sequence and its beams may still take until max_new_tokens are generated."""
    request, size = sequence.request, setup.block_size
    asked = len(request.tokens) if request.length is None else request.length
    longest = min(max(asked, sequence.prompt_end) + request.max_new_tokens, setup.config.max_length)
    counts = [0] * len(setup.groups)
    for group in setup.own_groups:
        layer = setup.layers[group]
        coming = columns_of(layer, longest + (layer.extra_tokens or 0), size) - sequence.capacity(group) // size
        have = int(np.count_nonzero(setup.store.pages[group][sequence.row] >= 0)) if layer.bounded else 0
        counts[group] = growth(layer, max(coming, 0), have, size) * request.beams
    return tuple(counts)
