"""Prefetch: bring what a request will need up from the slow tier, before it is claimed. Nothing waits for it.

The plan runs in the background, beside the steps' plans. What has arrived is held until the request is admitted, or
what was found of it is used; until `close`; or until the deadline passes. The device is none of its business.
"""

from __future__ import annotations

import warnings

import numpy as np

from quire.core.admission.prepare import ready_for
from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.plan import NO_MOVES, MoveColumn, Plan
from quire.core.records.request import Int32, Request
from quire.core.records.retain import to_ticks
from quire.core.state.claim import Refusal
from quire.core.state.handle import Handle, take_lost
from quire.core.state.prefetching import Prefetching, let_go
from quire.core.state.prepared import Prepared, ReadyRequest
from quire.core.state.registry import Registry
from quire.core.state.roots import NO_ROOT
from quire.core.state.setup import Setup

Reach = list[tuple[Int32, Int32]]  # by group: pages that are needed, and their hottest tiers
NOTHING: Int32 = np.empty(0, np.int32)


class Prefetch(Handle[Prefetching]):
    """Pages under way from the slow tier, and those of the same hit that are in host memory already, held there.

    Run `plan` in the background and finish it. It ends when a request of the same id is admitted, or what was found of
    it is used; else `close` it. A claim alone does not end it: one that is dropped has changed nothing.
    """

    __slots__ = ("plan",)

    def __init__(self, registry: Registry, kept: Prefetching, plan: Plan) -> None:
        super().__init__(registry.setup.lock, registry.open_prefetches, registry.lost_prefetches, kept)
        self.plan = plan

    @property
    def request(self) -> Request:
        """What was asked."""
        return self._kept.prepared.request

    @property
    def end(self) -> int:
        """Leading tokens that can be reused when all of it has come."""
        return self._kept.end

    @property
    def arrived(self) -> bool:
        """Nothing of it is in the slow tier only."""
        with self._lock:
            return not self.closed and not any(map(len, _slow_pages(self._kept)))

    def close(self) -> None:
        """Hold nothing any more, as when the request is cancelled; what is under way arrives all the same."""
        with self._lock:
            if self._end():
                let_go(self._kept)

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"tokens up to {self.end}, {shown(self.plan)}"
        return f"Prefetch({shown(self.request.id)}, {state})"


def _slow_pages(kept: Prefetching) -> list[list[int]]:
    """Of its pages by group those that have no faster copy."""
    found: list[list[int]] = []
    for group, (store, place) in enumerate(kept.prepared.setup.pools):
        there = kept.still_there(group)
        found.append([page for page in there if max(store.page_slots(place, page)[:-1]) < 0])
    return found


def prefetch_pages(registry: Registry, request: Request | Prepared, deadline: float | None) -> Prefetch | Refusal:
    """Begin to bring the hit of a request up into the tier before the slow one; a refusal has changed nothing."""
    setup = registry.setup
    if setup.slow_tier < 0:
        raise StateError(say("prefetch", "this cache has no slow tier", "give the coldest tier slow=True"))
    (prepared,) = ready_for(setup, [request], "compute")
    ticks = _ticks(deadline)
    now = setup.now()  # before the first change: a caller's clock may raise
    end, reach = _look_up(setup, prepared)
    pages = [some[tiers > 0] for some, tiers in reach]
    far = [
        some[(tiers == setup.slow_tier) & ~np.isin(some, under_way(registry, group))]
        for group, (some, tiers) in enumerate(reach)
    ]
    lack = _lack(registry, prepared.request, pages)
    if lack is not None:
        return lack
    stamps = [store.keep(place, some) for (store, place), some in zip(setup.pools, pages, strict=True)]
    kept = Prefetching(prepared, end, pages, stamps, ticks)
    lack = _no_room(setup, prepared.request, far)
    if lack is not None:
        let_go(kept)
        return lack
    setup.refresh(now)
    moves = [NO_MOVES]
    for group, ((store, place), some) in enumerate(zip(setup.pools, far, strict=True)):
        taken = store.bring_up(place, some)
        taken[:, MoveColumn.GROUP] = group
        moves.append(taken)
    return Prefetch(registry, kept, registry.take_background(np.concatenate(moves)))


def _ticks(deadline: float | None) -> int | None:
    if deadline is None:
        return None
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not abs(deadline) < 1e12:
        fact = "it is not a time of the cache's clock"
        raise InputError(say(f"deadline {shown(deadline)}", fact, "pass a number of seconds, or None"))
    return to_ticks(float(deadline)) if deadline >= 0 else -1


def _look_up(setup: Setup, prepared: ReadyRequest) -> tuple[int, Reach]:
    """Tokens that could be reused, and what that needs: what a claim will look at, or without device a find."""
    limit = prepared.request.reuse_limit
    usable = prepared.end - (setup.smallest_pool > 0)
    usable = usable if limit is None else min(usable, limit)
    root = setup.roots.find(prepared.scope_key) if prepared.keep else NO_ROOT
    hit = setup.store.walk(prepared.chain, root, usable, 0)
    if prepared.request.redo_blocks and hit.coming and setup.smallest_pool:
        usable = max(0, hit.coming - prepared.request.redo_blocks) * setup.block_size
        hit = setup.store.walk(prepared.chain, root, usable, 0)
    reach = [hit.reach(group) for group in setup.own_groups]
    cross, places = setup.cross, prepared.encoder
    if cross is not None:
        reach += [(NOTHING, NOTHING)] * (len(setup.groups) - len(setup.own_groups))
        if places is not None and places.keep:
            root = cross.roots.find(prepared.request.scope.key)
            across = cross.store.walk(places.chain, root, places.blocks * setup.block_size, 0)
            for group in range(cross.first, setup.groups.stop):
                reach[group] = across.reach(group - cross.first)
    return hit.coming * setup.block_size, reach


def held_pages(registry: Registry, group: int) -> set[int]:
    """Pages that prefetches hold in the tier before the slow one, or that are on their way there."""
    found: set[int] = set()
    for kept in registry.open_prefetches.values():
        found.update(kept.still_there(group))
    return found | set(under_way(registry, group).tolist())


def under_way(registry: Registry, group: int) -> Int32:
    """Pages that open background plans bring up from the slow tier."""
    target = registry.setup.slow_tier - 1
    found = [NOTHING]
    for plan in registry.background.values():
        moves = plan.moves
        mine = (moves[:, MoveColumn.GROUP] == group) & (moves[:, MoveColumn.DST_TIER] == target)
        found.append(moves[mine, MoveColumn.PAGE])
    return np.concatenate(found)


def _lack(registry: Registry, request: Request, pages: list[Int32]) -> Refusal | None:
    """Whether all prefetches together would hold more than their share."""
    config = registry.setup.config
    for groups in registry.setup.sharers:
        wanted = {page for group in groups for page in pages[group].tolist()}  # numbers are the pool's
        if not wanted:
            continue
        most = int(config.prefetch_share * config.slots_of(registry.setup.slow_tier - 1, groups[0]))
        held = set().union(*(held_pages(registry, group) for group in groups))
        new = len(wanted - held)
        if new and len(held) + new > most:
            return Refusal(request, "slots", new, max(0, most - len(held)), never=len(wanted) > most, group=groups[0])
    return None


def _no_room(setup: Setup, request: Request, far: list[Int32]) -> Refusal | None:
    """Whether there are not so many slots to be had above the slow tier."""
    tier = setup.slow_tier - 1
    for groups in setup.sharers:
        wanted, (store, place) = sum(len(far[group]) for group in groups), setup.pools[groups[0]]
        have = store.room_in(place, tier) if wanted else 0
        if wanted > have:
            never = wanted > setup.config.slots_of(tier, groups[0])
            return Refusal(request, "slots", wanted, have, never=never, group=groups[0])
    return None


def expire(registry: Registry) -> None:
    """Prefetches whose deadline has passed hold nothing any more."""
    timed = {ref: kept.deadline for ref, kept in registry.open_prefetches.items() if kept.deadline is not None}
    if timed:
        now = registry.setup.now()
        for ref in [ref for ref, deadline in timed.items() if deadline <= now]:
            let_go(registry.open_prefetches.pop(ref))


def give_back_prefetches(registry: Registry) -> None:
    """What a lost prefetch held is given back. Between two calls only: never inside one."""
    lost = take_lost(registry.open_prefetches, registry.lost_prefetches)
    for kept in lost:
        let_go(kept)
    if lost:
        fact = f"{len(lost)} of them were lost without being closed: their pages are given back"
        warnings.warn(say("prefetches", fact, "close them, or admit their requests"), ResourceWarning, stacklevel=4)
