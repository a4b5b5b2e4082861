"""Memory of what is gone: it is taken as pages go, and both stores remember the same however much of it there is."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
import pytest

from quire import Cache, CacheConfig, Request, TierConfig, check
from quire.core.store import StoreName
from tests.effort import slow

STATM = Path("/proc/self/statm")  # the second number: pages of memory this process has
ORDERS: tuple[Literal["lru", "adaptive"], ...] = ("lru", "adaptive")


class Clock:
    """Goes on by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def made(store: StoreName, slots: int, ghosts: int, order: Literal["lru", "adaptive"], clock: Clock) -> Cache:
    device = (TierConfig("device", slots),)
    config = CacheConfig(device, 1, max_sequences=2, max_length=2000, receipts=True, ghosts=ghosts, eviction=order)
    return Cache(config, clock=clock, store=store)


def serve(cache: Cache, first: int, length: int) -> list[tuple[str, int, int]]:
    """A text from admission to release, and what its receipt says."""
    batch = cache.add_sequence_batch([Request(first, np.arange(first, first + length, dtype=np.int32))])
    (sequence,) = batch.sequences
    cache.commit(sequence)
    cache.release(sequence)
    return [(miss.cause, miss.start, miss.stop) for miss in batch.receipts[0].misses]


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_gone_takes_memory_as_it_goes(order: Literal["lru", "adaptive"]) -> None:
    pytest.importorskip("quire.core.store._compiled")
    cache = made("compiled", 1000, 8, order, Clock())
    told = [cache.usage()]
    for number in range(12):
        serve(cache, 10_000 * number, 1000)
        told.append(cache.usage())
        metadata, _ = cache._setup.store.nbytes()
        assert metadata > told[-1].ghost_bytes
    assert [(one.ghosts, one.ghost_bytes) for one in told[:2]] == [(0, 0), (0, 0)]  # nothing has gone yet
    for before, after in pairwise(told):
        assert 28 * after.ghosts <= after.ghost_bytes <= 28 * (after.ghosts + 512) + 4 * 8000
        assert after.ghost_bytes >= before.ghost_bytes
    assert (told[-1].ghosts, told[-1].ghost_bytes) == (8000, 256 * 1000)
    cache.clear()
    assert cache.usage().ghosts == 0 and cache.usage().ghost_bytes == 256 * 1000  # it is not given back
    check(cache)


@pytest.mark.skipif(not STATM.exists(), reason="the system does not say how much memory a process has")
@pytest.mark.parametrize("order", ORDERS)
def test_a_cache_that_nothing_has_left_takes_no_memory_for_it(order: Literal["lru", "adaptive"]) -> None:
    """205 MB, had it; all else of this cache is 10."""
    pytest.importorskip("quire.core.store._compiled")
    before = int(STATM.read_text().split()[1])
    cache = made("compiled", 100_000, 64, order, Clock())
    serve(cache, 0, 2000)
    taken = int(STATM.read_text().split()[1]) - before
    assert taken * 4096 < 100_000_000
    assert cache.usage().ghosts == cache.usage().ghost_bytes == 0


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_a_ring_that_goes_round_before_anybody_looks_keeps_what_is_there(store: StoreName) -> None:
    """It fills in one admission, and memory for it is not written to when it has gone round."""
    cache = made(store, 300, 1, "lru", Clock())
    for first, length in ((0, 300), (1000, 300), (2000, 10)):  # the first text goes, and ten blocks of the second
        serve(cache, first, length)
    misses = cache.explain(Request("asked", np.arange(291, dtype=np.int32))).misses
    assert [(miss.cause, miss.stop) for miss in misses] == [("evicted", 290), ("last_token", 291)]
    check(cache)


# more than a large page of the system; with a census that looks at every second ghost; what malloc gives; fewer ghosts
# than get their links at once
@pytest.mark.parametrize(
    ("order", "slots", "ghosts", "rounds"),
    [("lru", 1210, 64, 90), slow("lru", 300, 64, 90), ("adaptive", 300, 64, 108), ("adaptive", 200, 8, 60),
     ("lru", 300, 1, 20), ("adaptive", 300, 1, 20)],
)  # fmt: skip
def test_both_stores_remember_the_same_while_the_memory_grows(
    order: Literal["lru", "adaptive"], slots: int, ghosts: int, rounds: int
) -> None:
    """Until the ring has gone round, after it, and again from the beginning."""
    pytest.importorskip("quire.core.store._compiled")
    clock, dice = Clock(), Random(f"{slots} {ghosts} {order}")
    names: tuple[StoreName, ...] = ("twin", "compiled")
    pair = [made(name, slots, ghosts, order, clock) for name in names]
    length, seen = slots * 9 // 10, [0]
    for turn in range(rounds):
        clock.now += 0.4
        again = dice.random() < 0.2
        first = dice.choice(seen) if again else 10_000 * (turn + 1)
        seen.append(first)
        one, other = (serve(cache, first, length) for cache in pair)
        assert one == other
        assert len({(cache.usage().ghosts, cache.usage().idle) for cache in pair}) == 1
        if order == "adaptive" and turn % 10 == 9:
            counts = [cache._setup.store.take_counts(0) for cache in pair]
            assert all(map(np.array_equal, *counts))
        if turn == (rounds // 2 if ghosts <= 8 else rounds * 9 // 10):  # or it goes round again
            assert pair[1].usage().ghost_bytes == 32 * slots * ghosts  # it has gone round
            assert pair[0]._setup.store.dump() == pair[1]._setup.store.dump()
            for cache in pair:
                cache.clear()
    assert pair[0].usage().ghosts > 0
    assert pair[0]._setup.store.dump() == pair[1]._setup.store.dump()
    for cache in pair:
        check(cache)
