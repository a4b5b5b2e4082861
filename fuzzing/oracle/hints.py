"""Hints by definition: which pages they speak of, and what a page is then. Knows no lists.

A row's own text goes from its end up to where another text goes on, or was asked for without it.
"""

from __future__ import annotations

from typing import NamedTuple

from fuzzing.oracle.cells import FEW, MANY, ONCE
from fuzzing.oracle.page import Page
from fuzzing.oracle.pools import Pools
from fuzzing.oracle.state import Row, State
from fuzzing.oracle.tree import path_of
from fuzzing.world.plain import Identity, Path

SOON, LATER, NEVER = 1, 2, 3
CLASS = 3  # from a hint to its class
TOLD, FOUND, SUPERSEDED = 31, 34, 38  # counts


class End(NamedTuple):
    """Where the last row of a session ended."""

    path: Path
    begun: int
    ended: int


def hear(pools: Pools, page: Page, back: int) -> None:
    """Somebody says when a page comes back, or that nobody knows."""
    before = page.reuse, page.unwanted
    if pools.cells is None:
        page.unwanted = back == NEVER and not pools.world.release_order
    elif back:
        page.reuse = back + CLASS
    elif page.reuse > CLASS:
        page.reuse = ONCE if page.uses == 1 else FEW if page.uses <= 3 else MANY
    if before != (page.reuse, page.unwanted) and page.idle:
        pools.restamp(page.hottest, page.copies[page.hottest])


def use(pools: Pools, page: Page) -> None:
    """An admission uses a page; what was said of it is over."""
    hint = NEVER * page.unwanted if pools.cells is None else max(0, page.reuse - CLASS)
    if hint:
        pools.count(FOUND + hint)
        pools.room.reached["hinted page reused"] += 1
    if page.unwanted:
        hear(pools, page, 0)
    if pools.cells is not None:
        pools.cells.use(page)


def along(state: State, root: int, identities: list[Identity], keep: int, back: int) -> int:
    """The blocks along some tokens that start at `keep` or later come back then; pages there are."""
    size, paths = state.world.block_size, list[Path]()
    whole = path_of(root, identities[: len(identities) // size * size], size)
    depth = state.tree.depth(whole)
    paths += [whole[: block + 2] for block in range(depth)]
    rest = [tuple(identities[depth * size : end]) for end in range(depth * size + 1, len(identities) + 1)]
    ends = [(*whole[: depth + 1], block) for block in rest if len(block) < size]
    paths += [path for path in ends if path in state.tree.exists()][-1:]
    count, below, alone = 0, None, True
    for path in reversed([path for path in paths if (len(path) - 2) * size >= keep]):
        others = [other for other in state.tree.next_blocks(path) if other != below]
        alone = alone and len(others) <= 1 and not any(len(other[-1]) == size for other in others)
        below = path
        for pools in state.pools:
            page = state.tree.page(path, pools.group)
            if page is not None and (alone or back != NEVER or pools.cells is not None):
                pools.count(TOLD + back, int(back > 0))
                hear(pools, page, back)
                count += 1
    return count


def own_text(
    state: State, pools: Pools, ends: tuple[Path, Path | None], tips: int, floor: int, latest: int | None
) -> list[Page]:
    """Pages of a text from its end up."""
    (path, below), found, size, uses = ends, list[Page](), state.world.block_size, 0
    found += [page] if below is not None and (page := state.tree.page(below, pools.group)) is not None else []
    while len(path) - 1 > floor and sum(tip == path for tip in state.tree.tips()) <= tips:
        others = [other for other in state.tree.next_blocks(path) if other != below]
        if len(others) > 1 or any(len(other[-1]) == size for other in others):
            break
        page = state.tree.page(path, pools.group)
        if page is not None and pools.cells is not None:
            if (uses and page.uses > uses + 4) or (latest is not None and page.used > latest):
                break
            uses = page.uses
        found += [page] if page is not None else []
        path, below, tips = path[:-1], path, 0
    return found


def end_row(state: State, row: Row, back: int) -> None:
    """A row ends: its own text comes back then; where that was is known to the next of its session."""
    tip, size = row.tip, state.world.block_size
    tail = None if tip is None else (*tip, tuple(row.tokens[row.committed * size : row.computed]))
    below = tail if tail is not None and tail in state.tree.exists() and len(tail[-1]) < size else None
    for pools in state.pools if back and tip is not None and row.keep else ():
        floor = row.begun if pools.cells is None else 0
        for page in own_text(state, pools, (tip or (), below), 1, floor, None):
            pools.count(TOLD + back)
            pools.room.reached["page hinted at a request's end"] += 1
            if back != LATER or pools.cells is None or row.followed[pools.group]:
                hear(pools, page, back)
    if row.ask.session is None or state.groups.start:
        return
    key = (row.ask.root, row.ask.session)
    state.tree.ends.pop(key, None)
    if tip is not None and len(tip) > 1 and row.keep:
        clocks = [pools.cells.now for pools in state.pools if pools.cells is not None]
        state.tree.ends[key] = End(tip, row.begun, max(clocks, default=0))


def supersede(state: State, row: Row) -> None:
    """The next of a session is admitted: what the last one left and this one does not go on from comes back never."""
    end = state.tree.ends.pop((row.ask.root, row.ask.session), None) if row.ask.session is not None else None
    if end is None or row.tip is None or not row.keep or end.path not in state.tree.exists():
        return  # what it ended with may have gone in this very call
    mine = path_of(row.ask.root, row.tokens, state.world.block_size)
    shared = next((n for n, block in enumerate(end.path) if mine[n : n + 1] != (block,)), len(end.path)) - 1
    gone_on = shared == len(end.path) - 1
    state.pools[0].room.reached["session that goes on" if gone_on else "session that leaves text"] += 1
    if gone_on:
        return
    below = state.tree.next_blocks(end.path)
    tail = below[0] if len(below) == 1 and len(below[0][-1]) < state.world.block_size else None
    for pools in state.pools:
        floor = shared if pools.cells is not None else max(shared, end.begun)
        for page in own_text(state, pools, (end.path, tail), 0, floor, end.ended):
            pools.count(SUPERSEDED)
            pools.room.reached["superseded page"] += 1
            hear(pools, page, NEVER)
