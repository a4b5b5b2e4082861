"""Finish: a plan has run. A failed move is a miss: its pages are given up, promises resting on them change, aloud."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np

from quire.core.admission.claim import Claim
from quire.core.life.hold import Hold
from quire.core.life.sequences import release, suspended
from quire.core.records.errors import InputError, StateError, listed, say, shown
from quire.core.records.plan import Kind, Plan
from quire.core.records.request import Request
from quire.core.state.sequence import Sequence
from quire.core.state.state import State


@dataclass(frozen=True, slots=True)
class Setback:
    """A promise that a failed move has changed: bytes count up to `start` only. A lost one is released.

    A sequence is lost when there is no room to compute it again in place, when a transfer was to bring its prompt, and
    in caches with groups that forget or that read an encoder: what they need at an earlier position may be gone.
    `request` is what to claim again.
    """

    holder: Sequence | Claim | Hold
    old_start: int
    start: int
    lost: bool = False
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """Setbacks, before their step runs, and the moves that replacing the pages took."""

    setbacks: tuple[Setback, ...]
    plan: Plan | None = None


NOTHING = Finished(())


def finish(state: State, plan: Plan, failed: Iterable[int]) -> Finished:
    """Close a plan; `failed` are the numbers of its moves that did not happen."""
    if not isinstance(plan, Plan):
        raise InputError(say(f"finish of a {type(plan).__name__}", "it is no Plan", "pass a plan of this cache"))
    named = listed("failed moves", failed)
    places = sorted({int(place) for place in named}) if all(isinstance(p, SupportsIndex) for p in named) else [-1]
    known = state.plans.get(plan.number) is plan
    if not known and (len(plan) or plan.number >= state.next_plan):
        raise StateError(
            say(f"finish of plan {plan.number}", "it is not open here", "finish each plan of this cache once")
        )
    if places and not 0 <= places[0] <= places[-1] < len(plan):
        fact = f"the plan has {len(plan)} moves"
        raise InputError(say(f"failed moves {shown(named)}", fact, "pass indices of its moves"))
    state.close_plan(plan.number)
    if not places:
        return NOTHING
    lost = _lost_pages(state, plan, places)
    claims = _shaken_claims(state, lost)
    for claim in claims:
        claim.let_go(state)
    cuts = _cuts(state, lost)
    for group, page, stamp in lost:
        store, place = state.pools[group]
        store.lose(place, page, stamp)
    setbacks = _shaken_holds(state, lost)
    setbacks += [_recut(state, row, cut) for row, cut in sorted(cuts.items())]
    setbacks += [_reclaim(state, claim) for claim in claims]
    return Finished(tuple(setbacks), state.take_plan())


def _lost_pages(state: State, plan: Plan, places: list[int]) -> list[tuple[int, int, int]]:
    """Pages whose only good bytes were to come from a failed move; a failed shadow alone costs nothing."""
    lost: dict[tuple[int, int, int], None] = {}
    for kind, group, src_tier, src, tier, slot, _, page, stamp, page2, stamp2 in plan.moves[places].tolist():
        store, place = state.pools[group]
        for name, made in ((page, stamp), (page2, stamp2)):
            if name < 0 or store.page_info(place, name)[-1] != made or (group, name, made) in lost:
                continue  # there is none, it is gone already, or goes with all its copies
            copy = (src_tier, src) if kind == Kind.COPY else (tier, slot)  # of what was copied: could not be read
            fails_alone = kind == Kind.OFFLOAD or (kind == Kind.COPY and name == page2)
            if not fails_alone or not _survives(state, group, name, copy):
                lost[group, name, made] = None
    return list(lost)


def _survives(state: State, group: int, page: int, copy: tuple[int, int]) -> bool:
    """Whether a page can do without a copy that could not be written or read; such a shadow is given up."""
    (tier, slot), (store, place) = copy, state.pools[group]
    slots = store.page_slots(place, page)
    if slots[tier] == slot and any(hotter >= 0 for hotter in slots[:tier]):
        store.drop_copy(place, page, tier)
        return True
    return slots[tier] != slot


def _shaken_claims(state: State, lost: list[tuple[int, int, int]]) -> list[Claim]:
    """Claims on a lost page, as a whole block or as the source of a partial hit."""
    nodes: set[tuple[int, int]] = set()
    for group, page, _ in lost:
        store, place = state.pools[group]
        nodes.add((group, store.page_info(place, page)[0]))
    found = (claim for claims in state.open_claims.values() for claim in claims)
    return [claim for claim in found if any(_rests_on(state, claim, *node) for node in nodes)]


def _rests_on(state: State, claim: Claim, group: int, node: int) -> bool:
    if group < state.own_groups.stop:
        hit, place = claim.hit, group
    elif claim.cross_hit is None:
        return False
    else:
        hit, place = claim.cross_hit, state.pools[group][1]
    return node >= 0 and (hit.source == node or node in map(hit.node, hit.held(place).tolist()))


def _shaken_holds(state: State, lost: list[tuple[int, int, int]]) -> list[Setback]:
    """Holds on lost pages: their bytes count only up to the first of them; of an encoder's stream all is needed."""
    size, setbacks = state.block_size, []
    for held in state.holds:
        places = [int(b) for g, page, _ in lost for b in held.blocks[g][held.pages[g] == page] if _is_own(state, g)]
        places += [0 for g, page, _ in lost if not _is_own(state, g) and page in held.pages[g]]
        if places:
            setbacks.append(Setback(held, held.span.end, max(held.span.start, min(places) * size)))
    return setbacks


def _is_own(state: State, group: int) -> bool:
    return group < state.own_groups.stop


def _cuts(state: State, lost: list[tuple[int, int, int]]) -> dict[int, int]:
    """First spoilt block of every row that holds a lost page; a spoilt state, or encoder, spoils all."""
    cuts: dict[int, int] = {}
    for group, page, _ in lost:
        store, place = state.pools[group]
        for row, block in np.argwhere(store.pages[place] == page).tolist():
            cuts[row] = min(block if _is_own(state, group) else 0, cuts.get(row, block))
        for row in np.flatnonzero(store.currents[place] == page).tolist():
            cuts[row] = 0
    return cuts


def _recut(state: State, row: int, cut: int) -> Setback:
    sequence = next(sequence for sequence in state.sequences.values() if sequence.row == row)
    old = sequence.computed
    stuck = state.bounded or state.cross is not None or sequence.received
    if stuck or state.store.recut(row, cut) < 0:
        request = suspended(state, sequence)
        release(state, sequence, False)
        return Setback(sequence, old, 0, lost=True, request=request)
    sequence.prompt_end = max(sequence.prompt_end, sequence.length)  # what is computed again, generated tokens too
    sequence.start = min(sequence.start, sequence.computed)
    sequence.granted = sequence.computed
    return Setback(sequence, old, sequence.computed)


def _reclaim(state: State, claim: Claim) -> Setback:
    old = claim.start
    claim.look(state)
    return Setback(claim, old, claim.start)
