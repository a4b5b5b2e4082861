"""Orders of eviction behind their interface: a fourth one, written from docs/reference/order.md, and random lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from quire import Request, RetainRange, Retention, check
from quire.core.store.reference.opening import ORDERS
from quire.core.store.reference.orders.adaptive import Adaptive
from quire.core.store.reference.orders.lru import Lru
from quire.core.store.reference.orders.release_order import ReleaseOrder
from quire.core.store.reference.pools.order import Entry, EvictionOrder, idle_level, victims
from quire.core.store.reuse import LRU

from ..conftest import small, text


class Sieve:
    """SIEVE by priority: a hand goes from the oldest key to the newest and takes whoever was not used since it passed.
    A key that comes back was used: it keeps its place, with a mark, until it is away for longer than others take."""

    empties_wait = False

    def __init__(self) -> None:
        self._lists: dict[int, dict[int, bool]] = {}  # number -> keys, oldest first, and whether they are marked
        self._level: dict[int, int] = {}
        self._known: dict[int, int] = {}  # keys that were here, and their lists

    def add(self, key: int, entry: Entry, released: bool = False) -> None:
        """At the end; whoever was here before has its mark."""
        level = idle_level(entry.priority, entry.passed)
        self._level[key] = level
        self._lists.setdefault(level, {})[key] = self._known.pop(key, None) == level

    def remove(self, key: int) -> None:
        """Known, for a while."""
        level = self._level.pop(key)
        del self._lists[level][key]
        self._known[key] = level
        if len(self._known) > 64:
            del self._known[next(iter(self._known))]

    def __iter__(self) -> Iterator[int]:
        for level in sorted(self._lists):
            yield from (key for marked in (False, True) for key, mark in self._lists[level].items() if mark == marked)

    def first(self, spared: Callable[[int], bool]) -> int | None:
        """The first of all that is not spared."""
        return next((key for key in self if not spared(key)), None)

    def spare_no_more(self, key: int) -> None:
        """Nothing is out of sight."""

    def outranks(self, key: int, entry: Entry) -> bool:
        """By list alone."""
        return self._level[key] > idle_level(entry.priority, entry.passed)

    def age(self, now: int) -> None:
        """Marks last until they are used up."""
        for level, keys in self._lists.items():
            self._lists[level] = dict.fromkeys(keys, False)

    def census(self) -> dict[int, list[int]]:
        """As taken."""
        order = list(self)
        return {level: [key for key in order if key in keys] for level, keys in self._lists.items() if keys}


@pytest.mark.parametrize("make", [Lru, ReleaseOrder, Adaptive, Sieve])
def test_a_random_life_of_keys(make: Callable[[], EvictionOrder[int]]) -> None:
    order, dice, entries, spared = make(), Random(7), dict[int, Entry](), set[int]()
    for now in range(3000):
        key = dice.randrange(40)
        if key not in entries:
            flags = (dice.random() < 0.2, make is Adaptive and dice.random() < 0.2)
            entry = Entry(dice.choice((0, 35, 35, 90)), flags[0] and not flags[1], flags[1], dice.randrange(7), now)
            entries[key] = entry
            order.add(key, entry, released=dice.random() < 0.2)
        elif dice.random() < 0.5:
            spared ^= {key}
            if key not in spared:
                order.spare_no_more(key)
        else:
            del entries[key]
            spared.discard(key)
            order.remove(key)
        if now % 50 == 0:
            order.age(now)
        keys = list(order)
        assert sorted(keys) == sorted(entries) == sorted(key for some in order.census().values() for key in some)
        free = [key for key in keys if key not in spared]
        assert order.first(spared.__contains__) == (free[0] if free else None)
        ranks = [(entries[key].covered, 0 if entries[key].covered else entries[key].priority) for key in keys]
        assert ranks == sorted(ranks), "priorities rank before everything else, but for what is covered"
        assert victims(order, 3, spared.__contains__) == (free[:3] if len(free) > 2 else None)


def test_a_stranger_s_order_serves_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ORDERS, LRU, Sieve)
    cache, dice, starts = small("twin", 12, 12, eviction="lru"), Random(3), 0
    for step in range(150):
        kept = Retention((RetainRange(0, 8, dice.choice((10, 35, 80)), dice.choice((None, 2))),))
        number = min(int(dice.paretovariate(0.8)), 12)
        batch = cache.add_sequence_batch([Request(step, text(number), retention=kept if step % 3 else None)])
        for sequence in batch.sequences:
            cache.finish(batch.plan)
            cache.commit(sequence)
            starts += sequence.start
            cache.release(sequence, back=dice.choice((None, "soon", "never")))
        if step % 10 == 0:
            check(cache)
    check(cache)
    assert starts > 150 * 5 and cache.stats().dropped > 20
