"""Copies in the background by definition: down into the slow tier, up from it for requests to come. Knows no bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuzzing.oracle import admission, claims, reach, writers
from fuzzing.oracle.early import turn
from fuzzing.oracle.model import Model, encoder_ask
from fuzzing.oracle.page import Page
from fuzzing.oracle.pools import COPIED_DOWN, EXCHANGE, OFFLOAD, ONBOARD, PREFETCHED, Pools
from fuzzing.oracle.state import Done, State
from fuzzing.oracle.tree import path_of
from fuzzing.world.plain import TICKS, Ask, Move, PlanFacts

Lack = tuple[int, int, int]


@dataclass(eq=False, slots=True)
class Prefetch:
    """Pages that stay for a request, per group of the cache."""

    ask: Ask
    end: int
    pages: list[list[Page]]
    deadline: float | None


def copy_down(model: Model, limit: int) -> PlanFacts:
    """Idle pages without a copy in the slow tier get one: the last to be evicted first, of the coldest tier first."""
    done: list[Done] = []
    for stream, place in model.groups():
        pools, taken = stream.pools[place], 0
        for tier in reversed(model.world.fast):
            mine = [page for page in pools.owner[tier] if page and page.group == place]
            waiting = [page for page in mine if page.idle and page.hottest == tier]
            bare = [page for page in waiting if model.world.slow_tier not in page.copies and not page.copying]
            coming = [page for _, (page, *_) in stream.moves]  # snapshots that the next plan copies
            worthy = [page for page in bare if pools.is_worth_copying(page) and page not in coming]
            for page in sorted(worthy, key=lambda page: turn(pools, page), reverse=True):
                room = slow_room(pools, page) if taken < limit else None
                if room is None:
                    break
                fast = pools.fast_copies(page)
                done.append(
                    begin(pools, page, OFFLOAD, (fast[-1] if stream.trusted else fast[0], model.world.slow_tier), room)
                )
                taken += 1
            else:
                continue
            break
    open_moves = [move for plan in model.plans.values() for move, _ in plan]
    doubtful = [copy for copy in done if any(writes(model, move, copy[0]) for move in open_moves)]
    land(model, doubtful, set(range(len(doubtful))))  # a step's plan may still fail to write what they would read
    return model.take_background([copy for copy in done if copy not in doubtful])


def writes(model: Model, move: Move, copy: Move) -> bool:
    """Whether a step's move writes what a copy reads."""
    written = [move[4:6], move[2:4]] if move[0] == EXCHANGE else [move[4:6]]
    return model.world.home(move[1]) == model.world.home(copy[1]) and copy[2:4] in written


def slow_room(pools: Pools, page: Page) -> int | None:
    """A slot of the slow tier for a page: empty, or of one that shall make way; a shadow stays."""
    tier = pools.world.slow_tier
    slot = pools.victim(tier, shadows=False)
    there = None if slot is None else pools.owner[tier][slot]
    if slot is None or there is None:
        return slot
    if pools.is_outranked(page, there, tier):
        return None
    pools.evict(tier, slot)
    return slot


def begin(pools: Pools, page: Page, kind: int, tiers: tuple[int, int], slot: int) -> Done:
    """A copy is being made: its page stays, and is claimed; the slot is nobody's."""
    source, target = tiers
    page.claims, page.stays, page.copying = page.claims + 1, page.stays + 1, True
    pools.filling.add((target, slot))
    size = pools.world.block_size
    return (kind, pools.number, source, page.copies[source], target, slot, size, page.number, -1), (page,)


def land(model: Model, done: list[Done], failed: set[int]) -> None:
    """Copies have been made, or not."""
    for nth, (move, (page,)) in enumerate(done):
        stream, place = model.place(move[1])
        pools, tier, slot = stream.pools[place], move[4], move[5]
        pools.filling.remove((tier, slot))
        page.copying = False
        if nth in failed or page.path is None or tier in page.copies:
            pools.restamp(tier, slot)
        elif tier == model.world.slow_tier:
            pools.put(page, tier, slot)
            pools.count(COPIED_DOWN)
        else:
            slow = page.hottest
            pools.put(page, tier, slot)
            pools.restamp(slow, page.copies[slow])
            pools.arrived(page)
            pools.count(PREFETCHED)
        page.stays -= 1
        pools.unclaim(page)


def needs(state: State, ask: Ask, usable: int) -> tuple[int, list[list[Page]]]:
    """Blocks that could be reused with what is in the slow tier, and per group the pages that takes."""
    size = state.world.block_size
    path = path_of(ask.root, ask.identities[: usable // size * size], size)
    there = claims.pages_along(state, path, slow=True)
    blocks = claims.longest(state, there, state.tree.depth(path))
    return blocks, [
        [there[g][b] for b in reach.needed(kind, blocks * size, size)] for g, kind in enumerate(state.kinds)
    ]


def prefetch(model: Model, key: str, ask: Ask, deadline: float | None) -> tuple[int, PlanFacts] | Lack:
    """Bring up what a request needs, and hold it; or what that lacks."""
    world, usable = model.world, ask.compute_end - any(model.world.tiers[0])
    usable = usable if ask.reuse_limit is None else min(usable, ask.reuse_limit)
    found: list[list[Page]] = [[] for _ in model.groups()]
    blocks = 0
    if world.reuse and ask.keeps:
        blocks, found[: world.num_own] = needs(model.own, ask, max(0, usable))
        if ask.redo and blocks and any(model.world.tiers[0]):
            blocks, found[: world.num_own] = needs(model.own, ask, max(0, blocks - ask.redo) * world.block_size)
    if model.cross is not None and world.reuse and ask.keeps and ask.encoder is not None:
        found[world.num_own :] = needs(model.cross, encoder_ask(ask), len(ask.places))[1]
    pages = [[page for page in some if page.hottest > 0] for some in found]
    lack = over_share(model, pages) or no_room(model, pages)
    if lack is not None:
        return lack
    for stream, place in model.groups():
        stream.pools[place].refresh(stream.now())
    for some in pages:
        for page in some:
            page.stays += 1
    done: list[Done] = []
    for (stream, place), some in zip(model.groups(), pages, strict=True):
        done += [bring(stream.pools[place], page) for page in some if is_far(model, page)]
    model.prefetches[key] = Prefetch(ask, blocks * world.block_size, pages, deadline)
    return blocks * world.block_size, model.take_background(done)


def is_far(model: Model, page: Page) -> bool:
    """In the slow tier only, and not on its way up."""
    return not page.is_near(model.world) and not page.copying


def bring(pools: Pools, page: Page) -> Done:
    """A page is on its way from the slow tier to the next."""
    slow = pools.world.slow_tier
    slot = pools.victim(slow - 1)
    assert slot is not None
    if not pools.soft(slow - 1, slot):
        pools.evict(slow - 1, slot)
    return begin(pools, page, ONBOARD, (slow, slow - 1), slot)


def over_share(model: Model, pages: list[list[Page]]) -> Lack | None:
    """Whether prefetches would hold more than their share."""
    host = model.world.tiers[model.world.slow_tier - 1]
    for groups in model.sharers:
        held = {p for one in model.prefetches.values() for group in groups for p in one.pages[group] if not p.gone}
        coming = [(move, page) for done in model.background.values() for move, (page,) in done if move[1] in groups]
        held |= {page for move, page in coming if move[0] == ONBOARD}
        wanted = {page for group in groups for page in pages[group]}
        most, new = int(model.world.share * host[groups[0]]), len(wanted - held)
        if new and len(held) + new > most:
            return groups[0], new, max(0, most - len(held))
    return None


def no_room(model: Model, pages: list[list[Page]]) -> Lack | None:
    """Whether the tier above has not so many slots, when what is there of the request stays."""
    for some in pages:
        for page in some:
            page.stays += 1
    lacks = []
    for groups in model.sharers:
        stream, place = model.place(groups[0])
        far = sum(is_far(model, page) for group in groups for page in pages[group])
        lacks.append((groups[0], far, writers.room(stream, place, model.world.slow_tier - 1)))
    for some in pages:
        for page in some:
            page.stays -= 1
    return next((lack for lack in lacks if lack[1] > lack[2]), None)


def close(model: Model, key: str) -> None:
    """Nothing is held for it any more."""
    for some in model.prefetches.pop(key).pages:
        for page in some:
            page.stays -= not page.gone


def end(model: Model, names: set[str]) -> None:
    """Requests of these names have been served."""
    for key in [key for key, one in model.prefetches.items() if one.ask.name in names]:
        close(model, key)


def expire(model: Model) -> None:
    """Deadlines that have passed."""
    now = int(model.own.clock() * TICKS)
    due = [(key, one.deadline) for key, one in model.prefetches.items()]
    for key in [key for key, deadline in due if deadline is not None and round(deadline * TICKS) <= now]:
        close(model, key)


class Answers:
    """The calls of the oracle that speak of the background."""

    model: Model

    def copy_down(self, limit: int) -> PlanFacts:
        """Copies in the slow tier, ahead."""
        return copy_down(self.model, limit)

    def prefetch(self, key: str, ask: Ask, deadline: float | None) -> tuple[Any, PlanFacts | None]:
        """Bring up what a request will need, under a key; or what that lacks."""
        admission.check_ask(self.model, ask)
        told = prefetch(self.model, key, ask, deadline)
        return told if len(told) == 2 else (told, None)

    def close_prefetch(self, key: str) -> None:
        """Its request is cancelled."""
        if key in self.model.prefetches:
            close(self.model, key)

    def open_prefetches(self) -> tuple[str, ...]:
        """Those that hold something."""
        return tuple(self.model.prefetches)
