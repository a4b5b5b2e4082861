"""A reference store with one root, and short ways to say things to it: small pools, small blocks, all read back through
the interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.core.store.reference import Chain, Hit, Store

T = 4
ONBOARD, OFFLOAD, COPY, EXCHANGE = range(4)
CREATED, STORED, MOVED, RETAINED, REMOVED, CLEARED = range(6)
TOTAL, NEW, FULL, PARTIAL, MISSED, ONBOARDED, OFFLOADED, COPIED, DROPPED, DEMOTED, GROWN, COPIED_TOKENS = range(12)


def full(*slots: int) -> tuple[Any, ...]:
    return -1, 0, -1, 1, 0, 0, list(slots)


def window(tail: int, *slots: int, sink: int = 0, extra: int = 0) -> tuple[Any, ...]:
    return tail, sink, tail, 1, extra, 0, list(slots)


def state(every: int, *slots: int) -> tuple[Any, ...]:
    return 1, 0, 0, every, 0, 1, list(slots)


@dataclass
class Rig:
    """A store with one root, and short ways to say things."""

    store: Store
    root: int
    groups: Sequence[tuple[Any, ...]] = ()

    def chain(self, tokens: list[int], extras: Any = None) -> Chain:
        return Chain(T, np.array(tokens, np.int32), extras)

    def claim(self, tokens: list[int], policy: int = 2, usable: int | None = None) -> Hit:
        hit = self.store.walk(self.chain(tokens), self.root, len(tokens) if usable is None else usable, policy)
        self.store.claim(hit)
        return hit

    def settle(self, row: int, hit: Hit, tokens: list[int], **ask: Any) -> None:
        """Pages for all tokens, or what `asks` says: one tuple (first, stop[, peak]) per group."""
        self.store.seat(hit, row, self.chain(tokens), self.root, ask.get("keep", True))
        blocks = ask.get("blocks", -(-len(tokens) // T))
        asks = ask.get("asks", [(hit.blocks, blocks)] * len(self.store.pages))
        priority = ask.get("priority")
        priorities = None if priority is None else np.full(blocks, priority, np.int16)
        durations = None if priority is None else np.full(blocks, ask.get("duration", -1), np.int64)
        self.store.settle(row, hit, whole(asks, ask.get("spare", 0)), priorities, durations, ask.get("decode", 35), -1)

    def extend(self, row: int, *asks: tuple[int, ...]) -> int:
        return self.store.extend(row, whole(asks), None, None)

    def admit(self, row: int, tokens: list[int], **ask: Any) -> Hit:
        hit = self.claim(tokens, ask.get("policy", 2), ask.get("usable"))
        self.settle(row, hit, tokens, **ask)
        return hit

    def commit(self, *rows: int) -> int:
        return self.store.commit(np.array(rows, np.int32), None)

    def cache(self, tokens: list[int], now: int = 0, **ask: Any) -> list[int]:
        """Admit, compute, release: the pages are idle then, deepest first. Returns page ids."""
        self.admit(0, tokens, **ask)
        self.commit(0)
        pages = [page for page in self.store.pages[0][0].tolist() if page >= 0]
        self.store.release(0, True, now)
        return pages

    def moves(self) -> list[list[int]]:
        found: list[list[int]] = self.store.take_moves().tolist()
        return found

    def events(self) -> list[list[int]]:
        found: list[list[int]] = self.store.take_events()[0].tolist()
        return found

    def kinds(self) -> list[int]:
        return [record[0] for record in self.events()]

    def order(self, tier: int = 0) -> dict[int, list[int]]:
        return self.store.dump().groups[0].orders[tier]

    def place(self, page: int) -> tuple[int, ...]:
        return self.store.page_slots(0, page)

    def counter(self, index: int) -> int:
        return int(self.store.counters[0][index])


def whole(asks: Sequence[tuple[int, ...]], spare: int = 0) -> list[tuple[int, int, int, int]]:
    return [(first, stop, rest[0] if rest else 0, spare) for first, stop, *rest in asks]


def rig(*slots: int, groups: list[Any] | None = None, **options: Any) -> Rig:
    shape = groups or [full(*slots)]
    settings = {"order": 0, "shadows": True, "offload_min": 35, "events": True, "max_events": 10_000} | options
    store = Store(T, shape, 8, 32, **settings)
    store.take_events()
    return Rig(store, store.new_root(7), shape)


def block(start: int, blocks: int = 1) -> list[int]:
    return list(range(start, start + T * blocks))


def offloaded(r: Rig, tokens: list[int]) -> int:
    """Cache one block, push it to tier 1 by filling the device, free the device again."""
    page = r.cache(tokens)[0]
    r.admit(7, block(1000, int(r.store.available(0))), policy=0)
    r.store.release(7, False, 0)
    r.moves(), r.events()
    return page


def stake(r: Rig, row: int, group: int = 0) -> dict[str, int]:
    """What the store says of a row in one group."""
    facts = r.store.dump().rows[row]
    names = ("front", "shown", "base", "own", "peak", "current")
    return {name: getattr(facts, f"{name}s")[group] for name in names}


def columns(r: Rig, row: int, group: int = 0) -> list[int]:
    """Columns that have a page."""
    return np.flatnonzero(r.store.pages[group][row] >= 0).tolist()
