"""Lasting: what somebody keeps who hears only of changes in the slow tier, and whether a new cache comes out of it.

Owns blocks by number and pages by slot, as told; knows nothing else of the cache.
"""

from __future__ import annotations

from dataclasses import replace
from warnings import catch_warnings, simplefilter

import numpy as np

from fuzzing.compare import Mismatch, same
from fuzzing.world import build
from fuzzing.world.plain import Path, World
from quire import Cache, ConfigWarning, check
from quire.core.records.encoder import scope_over
from quire.core.records.events import EventBatch, Stored
from quire.core.records.lasting import BlockNodes, LastingChanges, LastingPages
from quire.core.store import StoreName

Place = tuple[int, int]  # group, slot
Text = tuple[tuple[int, int, int, int], ...]


class Lasting:
    """Blocks and pages of one cache's slow tier."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.blocks: dict[int, tuple[int | bytes, Text]] = {}  # number -> parent, or digest of the root; tokens
        self.pages: dict[Place, int] = {}

    def take(self, told: LastingChanges) -> None:
        """What changed."""
        nodes = told.nodes
        words = np.zeros((len(nodes.tokens), 3), np.uint64)
        words[nodes.word_at] = nodes.words
        for place, (number, parent) in enumerate(zip(nodes.number.tolist(), nodes.parent.tolist(), strict=True)):
            part = slice(int(nodes.start[place]), int(nodes.start[place + 1]))
            text = tuple((t, *w) for t, w in zip(nodes.tokens[part].tolist(), words[part].tolist(), strict=True))
            if number in self.blocks or (parent > 0 and parent not in self.blocks):
                raise Mismatch(f"block {number} under {parent}: it is known, or its parent is not")
            self.blocks[number] = (nodes.roots[-1 - parent] if parent < 0 else parent, text)
        for gone in zip(told.freed_group.tolist(), told.freed_slot.tolist(), strict=True):
            if self.pages.pop(gone, None) is None:
                raise Mismatch(f"{gone} was freed, and nothing was there")
        named = zip(told.pages.group.tolist(), told.pages.slot.tolist(), told.pages.node.tolist(), strict=True)
        for group, slot, number in named:
            same(f"what was told of {group}, {slot} before", self.pages.setdefault((group, slot), number), number)

    def paths(self) -> dict[Place, Path]:
        """Every page with the digest of its scope and its blocks."""
        return {place: self.path(number) for place, number in self.pages.items()}

    def path(self, number: int) -> Path:
        """The way to a block."""
        parent, text = self.blocks[number]
        return (parent, text) if isinstance(parent, bytes) else (*self.path(parent), text)

    def arrays(self) -> tuple[BlockNodes, LastingPages]:
        """All of it, as a cache takes it back: only blocks that lead to pages."""
        used: dict[int, None] = {}
        for number in self.pages.values():
            way = [number]
            while isinstance(parent := self.blocks[way[-1]][0], int):
                way.append(parent)
            used.update(dict.fromkeys(reversed(way)))
        numbers = list(used)
        roots = list(dict.fromkeys(parent for number in numbers if isinstance(parent := self.blocks[number][0], bytes)))
        parents = [
            -1 - roots.index(parent) if isinstance(parent := self.blocks[number][0], bytes) else parent
            for number in numbers
        ]
        tokens = [token for number in numbers for token in self.blocks[number][1]]
        at = [place for place, token in enumerate(tokens) if any(token[1:])]
        starts = np.cumsum([0, *(len(self.blocks[number][1]) for number in numbers)], dtype=np.int64)
        nodes = BlockNodes(
            np.array(numbers, np.int64), np.array(parents, np.int64), starts,
            np.array([token[0] for token in tokens], np.int32),
            np.array([tokens[place][1:] for place in at], np.uint64).reshape(-1, 3),
            np.array(at, np.int64), tuple(roots),
        )  # fmt: skip
        places = np.array(list(self.pages), np.int32).reshape(-1, 2)
        pages = LastingPages(places[:, 0].copy(), places[:, 1].copy(), np.array(list(self.pages.values()), np.int64))
        return nodes, pages

    def restored(self, store: StoreName) -> Lasting:
        """A new cache that takes all of it back has it all, and tells nothing new; then it is all forgotten again."""
        with catch_warnings():
            simplefilter("ignore", ConfigWarning)  # small worlds are hopeless in many ways
            cache = Cache(replace(build.config(self.world), max_events=1 << 20), store=store)
        cache.take_events()
        same("pages restored", cache.restore(*self.arrays()), len(self.pages))
        if cache.config.events:
            told = _stored(cache.take_events())
            same("pages told after a restore", len(told), len(self.pages))
            same("the same as a whole state", _stored(cache.take_events(whole=True)), told)
        check(cache)
        again = Lasting(self.world)
        again.blocks = dict(self.blocks)
        again.pages = dict(self.pages)
        again.take(cache.lasting_changes())
        same("pages after a restore", again.paths(), self.paths())
        firsts = {self.world.home(group): group for group in reversed(range(self.world.num_groups))}.values()
        idle = [cache.usage(len(self.world.tiers) - 1, group).idle for group in firsts]
        same("idle pages after it", sum(idle), len(self.pages))
        same("pages forgotten after it", cache.clear(), len(self.pages))
        again.take(cache.lasting_changes())
        same("pages left after that", again.pages, {})
        check(cache)
        return again


def _stored(events: EventBatch) -> dict[tuple[int, int], tuple[int, int]]:
    """(group, hash) of every page that is told as stored -> its tier and the name of its scope."""
    return {
        (event.group, name): (event.tier, event.scope.event_hash(build.SEED))
        for event in events
        if isinstance(event, Stored) and event.scope is not None
        for name in event.hashes
    }


def digest_of(root: int, across: bool) -> bytes:
    """The digest of the scope that events name so."""
    scope, given = (build.ROOTS.index(root), None) if across else build.ORIGINS[root]
    read = build.encoder(given)
    named = build.SCOPES[scope] if read is None else scope_over(read, build.SCOPES[scope])
    assert named is not None
    return named.digest
