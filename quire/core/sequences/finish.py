"""Finish: a plan has run. Pages that a failed move should have brought are lost. Knows no promises: setbacks does.

Of a background plan what has come is there from now on; a copy down that failed costs nothing but itself. It may be
finished on any thread, between any two calls of the engine's: moves that wait for the next plan are left to that one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from quire.core.outside.lose import LostPage
from quire.core.records.errors import InputError, StateError, listed, say, shown, whole_numbers
from quire.core.records.plan import Kind, MoveColumn, Moves, Plan
from quire.core.sequences.setbacks import NOTHING, Finished, give_up
from quire.core.state.registry import Registry
from quire.core.state.setup import Setup


def finish_plan(registry: Registry, plan: Plan, failed: Iterable[int], undone: Iterable[int] = ()) -> Finished:
    """Close a plan; `failed` are the numbers of its moves that did not happen, and `undone` those of a background plan
    that did not either, though nothing is wrong with their pages."""
    if type(failed) is tuple and not failed and undone == () and type(plan) is Plan:  # as usual all of it happened,
        kept = registry.plans.get(plan.number)
        if kept is not None and kept.moves is plan.moves:
            registry.close_plan(plan.number)
            return NOTHING
        if not len(plan.moves) and plan.number < registry.next_plan:
            return NOTHING  # or there was nothing to do
    if not isinstance(plan, Plan):
        raise InputError(say(f"finish of a {type(plan).__name__}", "it is not a Plan", "pass a plan of this cache"))
    places, missed = (_moves_named(plan, numbers) for numbers in (failed, undone))
    kept = registry.plans.get(plan.number) or registry.background.get(plan.number)
    known = kept is not None and kept.moves is plan.moves
    if not known and (len(plan) or plan.number >= registry.next_plan):
        raise StateError(
            say(f"finish of plan {plan.number}", "it is not open here", "finish each plan of this cache once")
        )
    if missed and not plan.background:
        fact = "it is a step's plan: what did not come there is missing"
        raise InputError(say(f"undone moves of plan {plan.number}", fact, "pass them as failed"))
    now = registry.setup.now() if places else 0  # before the first change: a caller's clock may raise
    registry.close_plan(plan.number)
    if plan.background:
        failed_moves = np.zeros(len(plan), np.bool_)
        failed_moves[places + missed] = True
        land_moves(registry.setup, plan.moves, failed_moves)
    if not places:
        return NOTHING
    setbacks = give_up(registry, _lost_pages(registry.setup, plan, places), now)
    return Finished(setbacks, None if plan.background else registry.take_plan())


def warn_of_lost_plans(registry: Registry) -> None:
    """A plan that cannot be finished any more was probably never run, and pages do not hold what the cache says. They
    stay open: `open_plans` has them. Shown by default, unlike the warning for lost claims, which cost room only."""
    numbers = []
    while registry.lost_plans:  # which grows while this runs
        lost = registry.lost_plans.pop()
        if registry.callers_plans.get(lost.number) is lost:
            registry.watch_plan(registry.plans[lost.number])  # said once
            numbers.append(lost.number)
    if not numbers:
        return
    numbers.sort()
    fact = f"{len(numbers)} of them were lost and never finished, the first is plan {numbers[0]}"
    cure = "run the moves of every plan before the model reads pages, then call finish (docs/tutorial.md)"
    warnings.warn(say("plans", fact, cure), RuntimeWarning, stacklevel=4)


def _moves_named(plan: Plan, numbers: Iterable[int]) -> list[int]:
    named = listed("failed moves", numbers)
    whole = whole_numbers(named)
    places = [-1] if whole is None else sorted(set(whole))
    if places and not 0 <= places[0] <= places[-1] < len(plan):
        fact = f"the plan has {len(plan)} moves"
        raise InputError(say(f"failed moves {shown(named)}", fact, "pass indices of its moves"))
    return places


def land_moves(setup: Setup, all_moves: Moves, failed: NDArray[np.bool_]) -> None:
    """What background moves have copied counts from now on."""
    groups = all_moves[:, MoveColumn.GROUP]
    for stream in setup.streams:
        last = stream.first + len(stream.store.pages)
        mine = (groups >= stream.first) & (groups < last)
        moves = all_moves[mine].copy()
        moves[:, MoveColumn.GROUP] -= stream.first
        stream.store.land(moves, failed[mine])


def _lost_pages(setup: Setup, plan: Plan, places: list[int]) -> list[LostPage]:
    """Pages whose only good bytes were to come from a failed move; a failed shadow alone costs nothing."""
    lost: dict[LostPage, None] = {}
    for kind, group, src_tier, src, tier, slot, _, page, stamp, page2, stamp2 in plan.moves[places].tolist():
        store, place = setup.pools[group]
        for name, made in ((page, stamp), (page2, stamp2)):
            found = LostPage(group, name, made)
            if name < 0 or store.page_info(place, name)[-1] != made or found in lost:
                continue  # there is no such page, it is gone already, or it is among the lost
            if plan.background and kind == Kind.OFFLOAD:
                continue  # it has no copy there, and that is all
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
        return store.drop_copy(place, page, tier)  # not while it is read there: then the page is lost
    return slots[tier] != slot
