"""Finish: a plan has run. A failed move is a miss: its pages are given up, promises resting on them change, aloud."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np

from quire.core.claim import Claim
from quire.core.errors import InputError, StateError, listed, say
from quire.core.hold import Hold
from quire.core.life import release
from quire.core.plan import Kind, Plan
from quire.core.sequence import Sequence
from quire.core.state import State


@dataclass(frozen=True, slots=True)
class Setback:
    """A promise that a failed move has changed: bytes count up to `start` only. A lost one is released."""

    holder: Sequence | Claim | Hold
    old_start: int
    start: int
    lost: bool = False


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
        raise InputError(say(f"failed moves {named}", f"the plan has {len(plan)} moves", "pass indices of its moves"))
    state.close_plan(plan.number)
    if not places:
        return NOTHING
    lost = _lost_pages(state, plan, places)
    claims = _shaken_claims(state, lost)
    for claim in claims:
        state.store.unclaim(claim.hit)
    cuts = _cuts(state, lost)
    for group, page, stamp in lost:
        state.store.lose(group, page, stamp)
    setbacks = _shaken_holds(state, lost)
    setbacks += [_recut(state, row, cut) for row, cut in sorted(cuts.items())]
    setbacks += [_reclaim(state, claim) for claim in claims]
    return Finished(tuple(setbacks), state.take_plan())


def _lost_pages(state: State, plan: Plan, places: list[int]) -> list[tuple[int, int, int]]:
    """Pages whose only good bytes were to come from a failed move; a failed shadow alone costs nothing."""
    lost: dict[tuple[int, int, int], None] = {}
    for kind, group, _, _, tier, slot, _, page, stamp, page2, stamp2 in plan.moves[places].tolist():
        for name, made in ((page, stamp), (page2, stamp2)) if kind == Kind.EXCHANGE else ((page, stamp),):
            if state.store.page_info(group, name)[-1] != made:
                continue  # that page is gone already
            if kind != Kind.OFFLOAD or not _survives(state, group, name, (tier, slot)):
                lost[group, name, made] = None
    return list(lost)


def _survives(state: State, group: int, page: int, copy: tuple[int, int]) -> bool:
    """Whether a page can do without a copy that a failed offload should have made; such a shadow is given up."""
    tier, slot = copy
    slots = state.store.page_slots(group, page)
    if slots[tier] == slot and any(hotter >= 0 for hotter in slots[:tier]):
        state.store.drop_copy(group, page, tier)
        return True
    return slots[tier] != slot


def _shaken_claims(state: State, lost: list[tuple[int, int, int]]) -> list[Claim]:
    nodes = {state.store.page_info(group, page)[0] for group, page, _ in lost} - {-1}
    return [
        claim
        for claims in state.open_claims
        for claim in claims
        if claim.hit.source in nodes or any(claim.hit.node(block) in nodes for block in range(claim.hit.blocks))
    ]


def _shaken_holds(state: State, lost: list[tuple[int, int, int]]) -> list[Setback]:
    """Holds on lost pages: their bytes count only up to the first of them."""
    size, setbacks = state.block_size, []
    for held in state.holds:
        first = held.span.start // size
        places = [first + nth for g, page, _ in lost for nth in np.flatnonzero(held.pages[g] == page).tolist()]
        if places:
            setbacks.append(Setback(held, held.span.end, max(held.span.start, min(places) * size)))
    return setbacks


def _cuts(state: State, lost: list[tuple[int, int, int]]) -> dict[int, int]:
    """First spoilt block of every row that holds a lost page."""
    cuts: dict[int, int] = {}
    for group, page, _ in lost:
        for row, block in np.argwhere(state.store.pages[group] == page).tolist():
            cuts[row] = min(block, cuts.get(row, block))
    return cuts


def _recut(state: State, row: int, cut: int) -> Setback:
    sequence = next(sequence for sequence in state.sequences.values() if sequence.row == row)
    old = sequence.computed
    room = state.store.recut(row, cut) >= 0
    now = sequence.computed if room else 0
    sequence.prompt_end = max(
        sequence.prompt_end, sequence.length
    )  # what is to be computed again, generated tokens too
    sequence.start = min(sequence.start, now)
    if not room:
        release(state, sequence, False)
    return Setback(sequence, old, now, lost=not room)


def _reclaim(state: State, claim: Claim) -> Setback:
    old = claim.start
    claim.look(state)
    return Setback(claim, old, claim.start)
