"""Finish: a plan has run. Pages that a failed move should have brought are lost; who relied on them is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex

import numpy as np

from quire.core.admission.claim import look_up, note_facts
from quire.core.life.release import release_sequence, suspended
from quire.core.records.errors import InputError, StateError, listed, say, shown
from quire.core.records.plan import Kind, Plan
from quire.core.records.request import Request
from quire.core.state.claim import Claim, hit_of, let_go
from quire.core.state.hold import Hold
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence
from quire.core.state.setup import Setup


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


class LostPage(NamedTuple):
    """A page whose bytes never came."""

    group: int
    page: int
    stamp: int


NOTHING = Finished(())


def finish_plan(registry: Registry, plan: Plan, failed: Iterable[int]) -> Finished:
    """Close a plan; `failed` are the numbers of its moves that did not happen."""
    if not isinstance(plan, Plan):
        raise InputError(say(f"finish of a {type(plan).__name__}", "it is no Plan", "pass a plan of this cache"))
    named = listed("failed moves", failed)
    places = sorted({int(place) for place in named}) if all(isinstance(p, SupportsIndex) for p in named) else [-1]
    known = registry.plans.get(plan.number) is plan
    if not known and (len(plan) or plan.number >= registry.next_plan):
        raise StateError(
            say(f"finish of plan {plan.number}", "it is not open here", "finish each plan of this cache once")
        )
    if places and not 0 <= places[0] <= places[-1] < len(plan):
        fact = f"the plan has {len(plan)} moves"
        raise InputError(say(f"failed moves {shown(named)}", fact, "pass indices of its moves"))
    now = registry.setup.now() if places else 0  # before the first change: a caller's clock may raise
    registry.close_plan(plan.number)
    if not places:
        return NOTHING
    return Finished(_give_up(registry, plan, places, now), registry.take_plan())


def _give_up(registry: Registry, plan: Plan, places: list[int], now: int) -> tuple[Setback, ...]:
    """Lose what the failed moves should have brought, and change every promise that rests on it."""
    setup = registry.setup
    lost = _lost_pages(setup, plan, places)
    claims = _claims_on(registry, lost)
    for claim in claims:
        let_go(claim)
    cuts = _cuts(setup, lost)
    for group, page, stamp in lost:
        store, place = setup.pools[group]
        store.lose(place, page, stamp)
    setbacks = _hold_setbacks(registry, lost)
    setbacks += [_recut(registry, row, cut) for row, cut in sorted(cuts.items())]
    setbacks += [_reclaim(registry, claim, now) for claim in claims]
    return tuple(setbacks)


def _lost_pages(setup: Setup, plan: Plan, places: list[int]) -> list[LostPage]:
    """Pages whose only good bytes were to come from a failed move; a failed shadow alone costs nothing."""
    lost: dict[LostPage, None] = {}
    for kind, group, src_tier, src, tier, slot, _, page, stamp, page2, stamp2 in plan.moves[places].tolist():
        store, place = setup.pools[group]
        for name, made in ((page, stamp), (page2, stamp2)):
            found = LostPage(group, name, made)
            if name < 0 or store.page_info(place, name)[-1] != made or found in lost:
                continue  # there is no such page, it is gone already, or it is among the lost
            copy = (src_tier, src) if kind == Kind.COPY else (tier, slot)  # the source of a copy could not be read
            fails_alone = kind == Kind.OFFLOAD or (kind == Kind.COPY and name == page2)
            if not fails_alone or not _survives(setup, group, name, copy):
                lost[found] = None
    return list(lost)


def _survives(setup: Setup, group: int, page: int, copy: tuple[int, int]) -> bool:
    """Whether a page can do without a copy that could not be written or read; such a shadow is given up."""
    (tier, slot), (store, place) = copy, setup.pools[group]
    slots = store.page_slots(place, page)
    if slots[tier] == slot and any(hotter >= 0 for hotter in slots[:tier]):
        store.drop_copy(place, page, tier)
        return True
    return slots[tier] != slot


def _claims_on(registry: Registry, lost: list[LostPage]) -> list[Claim]:
    """Claims on a lost page, as a whole block or as the source of a partial hit."""
    nodes: set[tuple[int, int]] = set()
    for group, page, _ in lost:
        store, place = registry.setup.pools[group]
        nodes.add((group, store.page_info(place, page)[0]))
    found = (claim for claims in registry.open_claims.values() for claim in claims)
    return [claim for claim in found if any(_rests_on(registry.setup, claim, *node) for node in nodes)]


def _rests_on(setup: Setup, claim: Claim, group: int, node: int) -> bool:
    hit = hit_of(claim, group)
    if hit is None or node < 0:
        return False
    return hit.source == node or node in map(hit.node, hit.held(setup.pools[group].place).tolist())


def _hold_setbacks(registry: Registry, lost: list[LostPage]) -> list[Setback]:
    """Holds on lost pages: their bytes count only up to the first of them; of an encoder's stream all is needed."""
    setup, setbacks = registry.setup, []
    for held in registry.holds:
        places = [int(b) for g, page, _ in lost for b in held.blocks[g][held.pages[g] == page] if _is_own(setup, g)]
        places += [0 for g, page, _ in lost if not _is_own(setup, g) and page in held.pages[g]]
        if places:
            setbacks.append(Setback(held, held.span.end, max(held.span.start, min(places) * setup.block_size)))
    return setbacks


def _is_own(setup: Setup, group: int) -> bool:
    return group < setup.own_groups.stop


def _cuts(setup: Setup, lost: list[LostPage]) -> dict[int, int]:
    """First spoilt block of every row that holds a lost page; a spoilt state, or encoder, spoils all."""
    cuts: dict[int, int] = {}
    for group, page, _ in lost:
        store, place = setup.pools[group]
        for row, block in np.argwhere(store.pages[place] == page).tolist():
            cuts[row] = min(block if _is_own(setup, group) else 0, cuts.get(row, block))
        for row in np.flatnonzero(store.currents[place] == page).tolist():
            cuts[row] = 0
    return cuts


def _recut(registry: Registry, row: int, cut: int) -> Setback:
    setup = registry.setup
    sequence = next(sequence for sequence in registry.sequences.values() if sequence.row == row)
    old = sequence.computed
    stuck = setup.bounded or setup.cross is not None or sequence._received
    if stuck or setup.store.recut(row, cut) < 0:
        request = suspended(setup, sequence)
        release_sequence(registry, sequence, False)
        return Setback(sequence, old, 0, lost=True, request=request)
    sequence.prompt_end = max(sequence.prompt_end, sequence.length)  # generated tokens are computed again too
    sequence.start = min(sequence.start, sequence.computed)
    sequence._granted = sequence.computed
    return Setback(sequence, old, sequence.computed)


def _reclaim(registry: Registry, claim: Claim, now: int) -> Setback:
    old = claim.start
    explains = claim._explains
    look_up(registry.setup, claim, explains)
    if explains:
        note_facts(registry, claim, now)
    return Setback(claim, old, claim.start)
