"""Where a prompt may resume, in one pass over its blocks: against the plain definition, on random trees with holes.

Small worlds (two token ids, one to three groups, blocks of 1 to 3 tokens) are filled by committing chains and emptied
by eviction and by losing pages, so that every group has its own holes. The definition goes over all boundaries.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from quire import LayerGroup, Span
from quire.core.records.groups import blocks_kept
from quire.core.store import StoreName, open_store

from ...effort import cases

Tokens = tuple[int, ...]
Path = list[tuple[bool, ...]]  # of the blocks of a prompt that are in the tree: which groups have a page
CASES = {"compiled": cases(40_000, 80_000), "twin": cases(2_000, 4_000)}  # two in three are distinct
QUERIES = 50  # prompts per tree
ROWS, COLUMNS = 2, 12


class World:
    """A store of random groups, and what its tree has, read from its dump."""

    def __init__(self, module: Any, chance: random.Random) -> None:
        self.module, self.chance = module, chance
        self.size = chance.choice((1, 2, 2, 3))
        self.groups = [random_group(chance, self.size, n) for n in range(chance.choice((1, 2, 2, 3)))]
        self.has_state = any(group.current for group in self.groups)
        numbers = [self._numbers(group) for group in self.groups]
        self.store = module.Store(self.size, numbers, ROWS, COLUMNS, 0, True, 30, False, 1, not self.has_state)
        self.root = self.store.new_root(1)
        self.chains: list[Tokens] = [()]
        self.pages: dict[Tokens, tuple[bool, ...]] = {}
        self.children: dict[Tokens, list[tuple[Tokens, bool]]] = {}

    def _numbers(self, group: LayerGroup) -> tuple[Any, ...]:
        reach = (group.tail(self.size), group.sink(self.size), blocks_kept(group, self.size), group.every(self.size))
        return (*reach, 0, group.current, [self.chance.choice((10, 14, 40))])

    def prompt(self) -> Tokens:
        """Tokens that begin like something that was stored."""
        known = self.chance.choice(self.chains)
        more = self.chance.randrange(1, 2 * self.size + 2)
        kept = known[: self.chance.randrange(len(known) + 1) if self.chance.random() < 0.4 else len(known)]
        return (kept + tuple(self.chance.choices((0, 1), k=more)))[: COLUMNS * self.size]

    def chain(self, tokens: Tokens) -> Any:
        return self.module.Chain(self.size, np.array(tokens, np.int32), None)

    def add(self) -> None:
        """Commit a prompt, with a snapshot on its way, and release it; what is evicted for it makes holes."""
        tokens, store, size = self.prompt(), self.store, self.size
        hit = store.walk(self.chain(tokens), self.root, len(tokens), 0)
        store.claim(hit)
        edge = self.chance.randrange(hit.blocks, len(tokens) // size + 1)
        asks = [self._ask(group, hit.blocks, edge, len(tokens)) for group in self.groups]
        takes = [stop - first + group.current for (first, stop, *_), group in zip(asks, self.groups, strict=True)]
        if any(count > store.available(nth) for nth, count in enumerate(takes)):
            store.unclaim(hit)
            return
        store.seat(hit, 0, self.chain(tokens), self.root, True)
        store.settle(0, hit, asks, None, None, 35, -1)
        for computed in (max(edge * size, hit.start), len(tokens)):
            store.commit_row(0, computed)
        store.take_moves()
        store.release(0, self.chance.random() < 0.8, 0)
        self.chains = [*self.chains[-6:], tokens]

    def _ask(self, group: LayerGroup, blocks: int, edge: int, length: int) -> tuple[int, int, int, int]:
        if group.current:
            return (max(blocks, edge - 1), max(blocks, edge), 0, 0)
        return (blocks, -(-length // self.size), 0, 0)

    def lose(self) -> None:
        """Pages of one group go, wherever they are."""
        nth = self.chance.randrange(len(self.groups))
        pages = list(self.store.dump().groups[nth].pages)
        for page in self.chance.sample(pages, min(len(pages), self.chance.randrange(4))):
            self.store.lose(nth, page, self.store.page_info(nth, page).stamp)

    def look(self) -> None:
        """What the tree has now."""
        self.pages, self.children = {}, {}
        dump = self.store.dump()
        for node in dump.nodes:
            if node.tokens:  # not a root
                above = dump.text_to(node.parent)
                self.pages[above + node.tokens] = tuple(page >= 0 for page in node.pages)
                self.children.setdefault(above, []).append((node.tokens, min(node.pages) >= 0))

    def path(self, tokens: Tokens) -> Path:
        """Its blocks in the tree."""
        found: Path = []
        while (len(found) + 1) * self.size <= len(tokens):
            pages = self.pages.get(tokens[: (len(found) + 1) * self.size])
            if pages is None:
                break
            found.append(pages)
        return found


def random_group(chance: random.Random, size: int, nth: int) -> LayerGroup:
    kind = chance.choice(("full", "window", "window", "sinks", "state"))
    if kind == "full":
        return LayerGroup(f"g{nth}")
    if kind == "state":
        return LayerGroup(f"g{nth}", snapshot_every=size * chance.randrange(3))
    sinks = chance.randrange(1, 2 * size + 1) if kind == "sinks" else 0
    return LayerGroup(f"g{nth}", window=chance.randrange(1, 4 * size + 2), sinks=sinks)


def worlds(store: StoreName, num_cases: int, seed: int) -> Iterator[World]:
    """Random worlds, each seen several times while it changes; together they take `num_cases` prompts."""
    module, chance = open_store(store), random.Random(seed)
    for number in range(-(-num_cases // QUERIES)):
        if number % 8 == 0:
            world = World(module, chance)
            for _ in range(6):
                world.add()
        world.add()
        if number % 2:
            world.lose()
        world.look()
        yield world


class Needs:
    """Blocks that a group needs at a boundary, remembered."""

    def __init__(self) -> None:
        self.known: dict[tuple[LayerGroup, int, int], list[int]] = {}

    def __call__(self, group: LayerGroup, blocks: int, size: int) -> list[int]:
        key = (group, blocks, size)
        if key not in self.known:
            spans = group.needs_at(blocks * size, size)
            self.known[key] = [block for span in spans for block in range(span.start, span.end)]
        return self.known[key]


needs = Needs()


def resumes(world: World, path: Path, nth: int, blocks: int) -> bool:
    """One group can resume after so many blocks: all it needs there is there."""
    return all(path[block][nth] for block in needs(world.groups[nth], blocks, world.size))


def defined(world: World, path: Path, tokens: Tokens, usable: int) -> tuple[int, int]:
    """Whole blocks and further tokens that may be reused, from the definition."""
    blocks = min(len(path), usable // world.size)
    while not all(resumes(world, path, nth, blocks) for nth in range(len(world.groups))):
        blocks -= 1
    if world.has_state:
        return blocks, 0
    at = blocks * world.size
    query = tokens[at : min(at + world.size, usable)]
    shared = [common(query, block) for block, whole in world.children.get(tokens[:at], ()) if whole]
    return blocks, max(shared, default=0)


def common(one: Tokens, other: Tokens) -> int:
    """Leading tokens two blocks share."""
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return place
    return min(len(one), len(other))


@pytest.mark.long
def test_the_one_pass_hit_is_the_definition(store: StoreName) -> None:
    bridged = partial = 0
    for world in worlds(store, CASES[store], seed=5):
        for _ in range(QUERIES):
            tokens = world.prompt()
            usable = len(tokens) - (world.chance.random() < 0.5)
            hit = world.store.walk(world.chain(tokens), world.root, usable, 2)
            path = world.path(tokens)
            expected = defined(world, path, tokens, usable)
            assert (hit.blocks, hit.matched) == expected, (world.groups, world.size, tokens, usable, path)
            bridged += not all(map(all, path[: hit.blocks]))
            partial += hit.matched > 0
    assert bridged and partial, "the worlds are too tame"


def test_what_is_found_of_each_group_is_the_definition(store: StoreName) -> None:
    for world in worlds(store, CASES[store] // 10, seed=6):
        for _ in range(QUERIES):
            tokens = world.prompt()
            hit = world.store.walk(world.chain(tokens), world.root, len(tokens), 0)
            path = world.path(tokens)
            for nth, group in enumerate(world.groups):
                found = group.found(hit.present(nth).tolist(), len(tokens), world.size)
                assert blocks_of(found) == found_of(world, path, nth, len(tokens)), (group, tokens, path)


def blocks_of(spans: tuple[Span, ...]) -> list[int]:
    return [block for span in spans for block in range(span.start, span.end)]


def found_of(world: World, path: Path, nth: int, end: int) -> list[int]:
    """Blocks there are of those that `end` needs: a leading run, a window's, or one snapshot exactly there."""
    group, present = world.groups[nth], [pages[nth] for pages in path]
    if group.kind == "full":
        return list(range(present.index(False) if False in present else len(present)))
    if group.kind == "state":
        return [len(path) - 1] if len(path) * world.size == end and present[-1:] == [True] else []
    read = {token // world.size for token in range(max(0, end - (group.window or 0) + 1), end)}
    read |= {token // world.size for token in range(min(group.sink(world.size) * world.size, end))}
    read |= {end // world.size} if end % world.size else set()
    return [block for block, there in enumerate(present) if there and block in read]


def by_the_shortest(world: World, path: Path, usable: int) -> int:
    """Blocks, one number for all: the least of each group's own longest prefix, until all can resume there."""
    limit = min(len(path), usable // world.size)
    while True:
        longest = [
            max(blocks for blocks in range(limit + 1) if resumes(world, path, nth, blocks))
            for nth in range(len(world.groups))
        ]
        if min(longest) == limit:
            return limit
        limit = min(longest)


def test_nothing_more_is_recomputed_than_by_the_shortest_group(store: StoreName) -> None:
    for world in worlds(store, CASES[store] // 10, seed=7):
        for _ in range(QUERIES):
            tokens = world.prompt()
            usable = len(tokens) - 1
            hit = world.store.walk(world.chain(tokens), world.root, usable, 2)
            path = world.path(tokens)
            assert hit.start >= by_the_shortest(world, path, usable) * world.size, (world.groups, tokens, path)
