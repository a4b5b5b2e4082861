"""The dry count: whether claims have room for everything they will take, before the first move. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.core.admission.claim import Claim
from quire.core.state.state import State

Roles = dict[int, list[tuple[int, int]]]  # by place in the batch, then group: slots taken, slots given back


@dataclass(frozen=True, slots=True)
class Shortage:
    """The first claim that runs out of slots: its place, and of which group it needs more than there is."""

    place: int
    need: int
    have: int
    group: int


def shortage(state: State, claims: list[Claim]) -> Shortage | None:
    """Where slots run out; None when all fit."""
    for group, (store, place) in enumerate(state.pools):
        most = 0  # if every partial hit copies, no source is given back and no onboard is shared
        for claim in claims:
            most += claim.cold[group] + claim.takes[group]
        if most > store.available(place):
            return _run_dry(state, claims, _roles(state, claims), _cold_once(state, claims))
    return None  # the usual case


def _run_dry(state: State, claims: list[Claim], roles: Roles, cold: list[tuple[int, ...]]) -> Shortage | None:
    for group in state.groups:
        have = state.available(group)
        lent = _lent(state, claims, group)
        for place, claim in enumerate(claims):
            takes, gives = roles[place][group] if place in roles else (0, 0)
            new = claim.takes[group] - (place in roles and group < state.own_groups.stop)
            if lent[place]:  # the state is copied into its own slot first, then the snapshot is room again
                takes, gives, new = 1, 1, new - 1
            need = cold[place][group] + takes
            if need > have or new > have - need + gives:
                return Shortage(place, need + new, have, group)
            have += gives - need - new
    return None


def _lent(state: State, claims: list[Claim], group: int) -> list[bool]:
    """Per claim: whether it alone keeps an idle device page of this state group from others."""
    return [group in state.states and _lends(state, claim, group) for claim in claims]


def _lends(state: State, claim: Claim, group: int) -> bool:
    """Tried out: let go, is there more room? Neither changes any order."""
    if claim.purpose == "decode" or not claim.hit.blocks:
        return False
    before = state.store.available(group)
    state.store.unclaim(claim.hit)
    freed = state.store.available(group) - before
    state.store.claim(claim.hit)
    return freed > 0


def _cold_once(state: State, claims: list[Claim]) -> list[tuple[int, ...]]:
    """Onboards per claim and group as they are now, a page that several claims share counted for the first."""
    seen: list[set[int]] = [set() for _ in state.groups]
    counts: list[tuple[int, ...]] = []
    for claim in claims:
        cold = [_cold_nodes(state, claim, group) for group in state.groups]
        counts.append(tuple(len(cold[group] - seen[group]) for group in state.groups))
        for group in state.groups:
            seen[group] |= cold[group]
    return counts


def _cold_nodes(state: State, claim: Claim, group: int) -> set[int]:
    hit, place = (claim.hit, group) if group < state.own_groups.stop else (claim.cross_hit, state.pools[group][1])
    if hit is None or not claim.cold[group]:
        return set()
    return {hit.node(block) for block in np.flatnonzero(hit.tiers(place) > 0).tolist()}


def _roles(state: State, claims: list[Claim]) -> Roles:
    """For each partial hit and group: slots it takes, and slots its source gives back right after the copy.

    An idle leaf that nobody hits in full goes to its last partial hitter; all others copy. The last copier of an
    idle source that is no leaf gives it back, so that the next page of this very batch may have its slot.
    """
    by_source: dict[int, list[int]] = {}
    for place, claim in enumerate(claims):
        if claim.hit.source >= 0:
            by_source.setdefault(claim.hit.source, []).append(place)
    across = [(0, 0)] * (len(state.groups) - len(state.own_groups))
    roles: Roles = {}
    for places in by_source.values():
        last = claims[places[-1]].hit
        leaf, held, num_claims, tiers = state.store.source_state(last)
        ours = [not in_use and count == len(places) for in_use, count in zip(held, num_claims, strict=True)]
        for place in places:
            roles[place] = [(1, 0)] * len(tiers) + across
        if leaf and all(ours):
            roles[places[-1]] = [(int(tier > 0), 0) for tier in tiers] + across
        else:
            gives = [(1, int(mine and tier == 0)) for mine, tier in zip(ours, tiers, strict=True)]
            roles[places[-1]] = gives + across
    return roles
