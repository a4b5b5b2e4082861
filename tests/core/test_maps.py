"""Maps of a cache: the same numbers from both stores, and those that usage, dump and check know."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, LayerGroup, Request, Scope, TierConfig, check
from quire.core import maps
from quire.core.maps import claimed_ids, eviction_order, live_sequences, slots_of_pool, tree_of
from quire.core.records.config import Eviction
from quire.core.store import StoreName
from quire.core.store.mapped import NodeColumn, SlotColumn, SlotState

from .conftest import seq, serve, small

ORDERS = ("lru", "release_order", "adaptive")


def lived_in(store: StoreName, eviction: str, seed: int = 0) -> tuple[Cache, Any]:
    """A cache after some requests, with sequences alive and a claim open; deterministic, the clock too."""
    rng, time = random.Random(seed), iter(range(10**6))
    tiers = (TierConfig("device", 24), TierConfig("host", 10), TierConfig("disk", 8, slow=True))
    groups = (LayerGroup("full"), LayerGroup("near", window=8))
    config = CacheConfig(
        tiers,
        block_size=4,
        groups=groups,
        max_sequences=6,
        max_length=64,
        eviction=eviction,  # type: ignore[arg-type]
    )
    cache = Cache(config, clock=lambda: float(next(time)), store=store)
    alive = []
    for number in range(40):
        tokens = np.concatenate([seq(100 * rng.randrange(3), 4 * rng.randrange(1, 4)), seq(1000 + 50 * number, 6)])
        batch = cache.add_sequence_batch([Request(number, tokens, Scope(lora=rng.randrange(2)))])
        cache.finish(batch.plan)
        for sequence in batch.sequences:
            cache.commit(sequence)
            alive.append(sequence)
        while len(alive) > rng.randrange(3):
            cache.release(alive.pop(rng.randrange(len(alive))))
        if number % 5 == 0:
            cache.finish(cache.offload(3))
    cache.finish(cache.copy_down(1))
    cache.copy_down(2)  # left open: its slots are on their way
    return cache, cache.claim([Request("next", np.concatenate([seq(0, 8), seq(7000, 5)]), Scope(lora=0))])


@pytest.mark.parametrize("eviction", ORDERS)
def test_states_add_up_to_usage(store: StoreName, eviction: str) -> None:
    seen: Counter[int] = Counter()
    for seed in range(4):
        cache, claims = lived_in(store, eviction, seed)
        for tier in range(3):
            for group in range(2):
                slots, usage = slots_of_pool(cache, tier, group), cache.usage(tier, group)
                by = Counter(slots[:, SlotColumn.STATE].tolist())
                seen += by
                assert len(slots) == usage.capacity and by[SlotState.EMPTY] == usage.empty
                assert by[SlotState.IDLE] + by[SlotState.CLAIMED] == usage.idle
                assert by[SlotState.SHADOW] == usage.shadows and by[SlotState.COMING] == usage.filling
                assert by[SlotState.OPEN] + by[SlotState.HELD] + by[SlotState.COMING] == usage.held
                order = eviction_order(cache, tier, group)
                listed = {SlotState.IDLE, SlotState.CLAIMED, SlotState.SHADOW}
                assert sorted(order) == np.flatnonzero(np.isin(slots[:, 0], list(listed))).tolist()
        claims.close()
        check(cache)
    assert set(seen) == set(SlotState)  # every state has come up


@pytest.mark.parametrize("eviction", ORDERS)
def test_both_stores_draw_the_same_map(eviction: str) -> None:
    pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built")
    stores: tuple[StoreName, StoreName] = ("twin", "compiled")
    for seed in range(4):
        caches = [lived_in(store, eviction, seed)[0] for store in stores]
        for tier in range(3):
            for group in range(2):
                one, two = (slots_of_pool(cache, tier, group) for cache in caches)
                plain = [SlotColumn.STATE, SlotColumn.HOLDERS, SlotColumn.USES]
                np.testing.assert_array_equal(one[:, plain], two[:, plain])
                np.testing.assert_array_equal(one[:, SlotColumn.NODE] < 0, two[:, SlotColumn.NODE] < 0)
                one, two = (eviction_order(cache, tier, group) for cache in caches)
                np.testing.assert_array_equal(one, two)
        facts = [sorted(paths(cache).values()) for cache in caches]
        assert facts[0] == facts[1] and len(facts[0]) > 8


def paths(cache: Cache) -> dict[int, tuple[Any, ...]]:
    """By node: its scope, and the numbers of all nodes from its root down to it."""
    tree = tree_of(cache)
    rows = {row[NodeColumn.NODE]: row for row in tree.nodes.tolist()}

    def way(row: list[int]) -> tuple[Any, ...]:
        if row[NodeColumn.PARENT] < 0:
            return (repr(tree.scopes[row[NodeColumn.NODE]]),)
        return (*way(rows[row[NodeColumn.PARENT]]), tuple(row[NodeColumn.TOKENS :]))

    return {node: way(row) for node, row in rows.items()}


@pytest.mark.parametrize(("eviction", "count"), [("lru", 2), ("release_order", 2), ("adaptive", 1)])
def test_the_order_is_that_of_eviction(store: StoreName, eviction: Eviction, count: int) -> None:
    """As it is now: in the adaptive order a leaf that goes lets its parent go next."""
    config = CacheConfig((TierConfig("device", 8),), 4, max_sequences=8, max_length=256, eviction=eviction)
    cache = Cache(config, store=store, clock=lambda: 0.0)  # nobody grows older between the question and the act
    for first in (100, 200, 300, 400):
        serve(cache, Request(first, seq(first, 8)))
    order = eviction_order(cache, 0, 0).tolist()
    batch = cache.add_sequence_batch([Request("new", seq(900, 4 * count))])
    assert sorted(batch.sequences[0].slots().tolist()) == sorted(order[:count])


def test_uses_are_counted_in_the_adaptive_order_only(store: StoreName) -> None:
    for eviction, uses in (("lru", -1), ("adaptive", 3)):
        cache = small(store, 8, eviction=eviction)
        for number in range(3):
            serve(cache, Request(number, seq(0, 9)))
        slots, nodes = slots_of_pool(cache, 0, 0), tree_of(cache).nodes
        assert slots[:, SlotColumn.USES].max() == uses and nodes[:, NodeColumn.USES].max() == uses


def test_a_map_is_read_in_parts(store: StoreName, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, _ = lived_in(store, "lru")
    whole = slots_of_pool(cache, 0, 0), tree_of(cache).nodes
    monkeypatch.setattr(maps, "PART", 7)
    np.testing.assert_array_equal(slots_of_pool(cache, 0, 0), whole[0])
    parts = tree_of(cache)
    np.testing.assert_array_equal(parts.nodes, whole[1])
    roots = parts.nodes[parts.nodes[:, NodeColumn.PARENT] < 0, NodeColumn.NODE]
    assert sorted(roots) == sorted(parts.scopes) and len(eviction_order(cache, 0, 0)) == 7
    monkeypatch.setattr(maps, "MOST_PARTS", 2)
    assert len(tree_of(cache).nodes) <= 14


def test_nodes_out_of_bounds_are_refused(store: StoreName) -> None:
    inner = small(store, 8)._setup.store
    assert len(inner.map_slots(0, 0, -5, 99)) == 8 and len(inner.map_slots(0, 0, 6, 3)) == 0
    assert len(inner.map_order(0, 0, -1)) == 0
    for first, limit in ((-1, 5), (0, 0)):
        with pytest.raises(ValueError, match="nodes from number"):
            inner.map_nodes(first, limit)


def test_live_sequences_in_the_order_they_came(store: StoreName) -> None:
    cache = small(store, 16, 4)
    serve(cache, Request("before", seq(0, 8)))
    batch = cache.add_sequence_batch([Request("a", seq(0, 10)), Request("b", seq(50, 6))])
    cache.commit(batch.sequences[0])
    found = live_sequences(cache, 1)
    assert found.ids == ["a", "b"] and found.handles == [batch.sequences[0]]
    assert found.numbers.tolist() == [[8, 10, 10, 10, 3], [0, 6, 6, 0, 2]]
    assert found.reused_from.tolist() == [[2, 0]]
    tips = tree_of(cache).nodes
    assert tips[tips[:, NodeColumn.NODE] == found.tips[0], NodeColumn.TIPS].tolist() == [1]
    with cache.claim([Request("c", seq(0, 12))]):
        assert claimed_ids(cache) == [("c", 12, 8)]
    assert claimed_ids(cache) == []
