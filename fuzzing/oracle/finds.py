"""Finds by definition: what is there for somebody who reads pages himself, and what telling of it teaches."""

from __future__ import annotations

from typing import Any

from fuzzing.oracle import claims, hints, reach
from fuzzing.oracle.model import Model, encoder_ask
from fuzzing.oracle.page import Page
from fuzzing.oracle.state import Claim, State
from fuzzing.oracle.tree import path_of
from fuzzing.world.plain import Ask, FoundFacts, Path


def find(model: Model, ask: Ask, first: int) -> Claim:
    """The last edge at which all could resume who have the first blocks themselves, less the blocks that are computed
    all the same; held is what lies behind those."""
    state, size = model.own, model.world.block_size
    hit = Claim(ask, "find", pages=[{} for _ in state.pools], first=first)
    if model.world.reuse and ask.keeps:
        usable = min(ask.compute_end, model.world.max_length)
        usable = usable if ask.reuse_limit is None else min(usable, ask.reuse_limit)
        path = path_of(ask.root, ask.identities[: usable // size * size], size)
        there = written_along(state, path)
        hit.blocks = last_edge(state, there, state.tree.depth(path), first)
        if ask.redo and hit.blocks > first:
            hit.blocks = last_edge(state, there, max(first, hit.blocks - ask.redo), first)
        for group, kind in enumerate(state.kinds):
            needed = [block for block in reach.needed(kind, hit.blocks * size, size) if block >= first]
            hit.pages[group] = {block: there[group][block] for block in needed}
    if model.cross is not None and ask.encoder is not None:
        hit.across = claims.find(model.cross, encoder_ask(ask), "encoder")
    hit.good = hit.blocks
    return hit


def last_edge(state: State, there: claims.Found, most: int, first: int) -> int:
    """The last of so many block edges at which all groups could resume who have the first blocks themselves."""
    groups = range(len(there))
    return next(n for n in range(most, -1, -1) if all(can_resume(state, there, group, n, first) for group in groups))


def written_along(state: State, path: Path) -> claims.Found:
    """Pages along a path, less snapshots that the next plan copies: nobody could know when to read them."""
    coming = [page for _, (page, *_) in state.moves]
    there = claims.pages_along(state, path)
    return [
        {block: page for block, page in pages.items() if kind.kind != "state" or page not in coming}
        for kind, pages in zip(state.kinds, there, strict=True)
    ]


def can_resume(state: State, there: claims.Found, group: int, blocks: int, first: int) -> bool:
    """Whether a group has all it needs after so many blocks, of which the first are elsewhere."""
    size = state.world.block_size
    needed = reach.needed(state.kinds[group], blocks * size, size)
    return all(block in there[group] for block in needed if block >= first)


def facts(model: Model, hit: Claim) -> FoundFacts:
    """What a find shows: from where, to where, and per group the blocks with their places."""
    size, groups = model.world.block_size, list[Any]()
    for stream, place in model.groups():
        mine = hit if stream is model.own else hit.across
        held = sorted(mine.pages[place].items()) if mine is not None else []
        groups.append(tuple((block, page.hottest, page.copies[page.hottest]) for block, page in held))
    hit.places = hit.places or groups  # what was found below the device is read there, whatever comes up
    return hit.first * size, max(hit.first, hit.good) * size, tuple(hit.places)


def keep(model: Model, hit: Claim, change: int) -> None:
    """Its pages stay where they are, or (-1) need not any more; with one tier they cannot go anywhere."""
    for mine in (hit, hit.across) if len(model.world.tiers) > 1 else ():
        for page in mine.held if mine is not None else ():
            page.stays += change


def use(model: Model, hit: Claim) -> None:
    """All that its first blocks need counts as used, the last of it to be evicted first; ghosts behind it are met."""
    if hit.told:
        return
    hit.told = True
    for stream in model.streams:
        for pools in stream.pools:
            pools.refresh(stream.now())
    use_in(model.own, hit)
    if model.cross is not None and hit.across is not None:
        use_in(model.cross, hit.across)
    for stream, place in model.groups():
        cells = stream.pools[place].cells
        if cells is not None:
            cells.learn(stream.pools[place].pages.values())


def use_in(state: State, hit: Claim) -> None:
    """The same in one stream, as far as its blocks are there now."""
    size, ask = state.world.block_size, hit.ask
    if not (state.world.reuse and ask.keeps) or ask.root not in state.roots:
        return
    path = path_of(ask.root, ask.identities[: ask.compute_end // size * size], size)
    blocks = min(hit.blocks, state.tree.depth(path))
    there = claims.pages_along(state, path[: blocks + 1], slow=True)
    for pools, kind in zip(state.pools, state.kinds, strict=True):
        needed = [there[pools.group].get(block) for block in reach.needed(kind, blocks * size, size)]
        pages: list[Page] = [page for page in needed if page is not None]
        for page in pages:
            hints.use(pools, page)
        for page in reversed(pages):
            if page.idle:
                pools.restamp(page.hottest, page.copies[page.hottest])
        behind = blocks
        while (
            pools.cells is not None and behind + 1 < len(path) and behind < state.world.blocks(state.world.max_length)
        ):
            if not pools.cells.meet(path[: behind + 2], pools.group):
                break
            behind += 1


def spoil(model: Model, hit: Claim, spoilt: list[Page]) -> tuple[int, int] | None:
    """What a find holds is good up to where it could still resume; its end before and now, if pages of it are bad."""
    held = [page for mine in (hit, hit.across) if mine is not None for page in mine.held]
    if not any(page in spoilt for page in held):
        return None
    size, old = model.world.block_size, max(hit.first, hit.good)
    for pages in hit.pages:
        hit.lost |= {page for page in pages.values() if page in spoilt}
    good = [{block: page for block, page in pages.items() if page not in hit.lost} for pages in hit.pages]
    edges = range(hit.good, -1, -1)
    hit.good = next(n for n in edges if all(can_resume(model.own, good, g, n, hit.first) for g in range(len(good))))
    return old * size, max(hit.first, hit.good) * size
