"""The learning step: against its definition written out, cell by cell; and what the stores hand to it."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from quire import CacheConfig, InputError, TierConfig
from quire.core.state.learner import AHEAD, EXPECTED, MOST, PRIOR, WIDTHS, Floats, Learner, worth
from quire.core.store import StoreName, open_store
from quire.core.store.interface import Store
from quire.core.store.reuse import (
    ADAPTIVE,
    FIRST_RANK,
    MAX_CENSUS,
    NUM_AGES,
    NUM_CELLS,
    NUM_REUSE_CLASSES,
)

SHAPE = (NUM_REUSE_CLASSES, NUM_AGES)


def worth_by_definition(hits: Floats, waiting: Floats) -> Floats:
    """What one more page of a cell brings: every horizon is tried."""
    hazards = np.zeros(SHAPE)
    reached = [[sum(hits[c][i:]) + sum(waiting[c][i:]) - waiting[c][i] / 2 for i in range(NUM_AGES)] for c in range(4)]
    for i in range(NUM_AGES):
        seen = sum(hits[c][i] for c in range(4)) + PRIOR * EXPECTED[i]
        of_all = seen / (sum(reached[c][i] for c in range(4)) + PRIOR)
        for c in range(4):
            hazards[c, i] = min(MOST, (hits[c][i] + PRIOR * of_all) / (reached[c][i] + PRIOR))
    found = np.zeros(SHAPE)
    for c in range(4):
        for i in range(NUM_AGES):
            alive, brought, taken, best = 1.0, 0.0, 0.0, 0.0
            for j in range(i, NUM_AGES):
                brought += alive * hazards[c, j]
                taken += alive * WIDTHS[j] * (0.5 if j == i else 1.0) * (1 - hazards[c, j] / 2)
                alive *= 1 - hazards[c, j]
                if j >= i + AHEAD or j == NUM_AGES - 1:
                    best = max(best, brought / taken)
            found[c, i] = best
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_step_is_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hits, waiting = (rng.integers(0, most, SHAPE).astype(float) for most in ((1, 30, 2000)[seed % 3] + 1, 500))
    assert np.allclose(worth(hits, waiting), worth_by_definition(hits, waiting), rtol=1e-9)


def test_an_order_names_every_cell_and_begins_with_the_oldest() -> None:
    order = Learner().order(*(np.zeros(SHAPE, np.int64) for _ in range(3)))
    assert sorted(order.tolist()) == list(range(NUM_CELLS))
    ages = order % NUM_AGES
    middle = [age for age in ages.tolist() if 8 < age <= 36]
    assert middle == sorted(middle, reverse=True)
    assert order[0] % NUM_AGES >= NUM_AGES - 2 and order[-1] % NUM_AGES < 3
    assert sorted(FIRST_RANK) == list(range(NUM_CELLS)) and FIRST_RANK[0] % NUM_AGES == NUM_AGES - 1


def test_what_is_asked_again_late_is_kept_while_it_is_young() -> None:
    learner, hits, waiting = Learner(), np.zeros(SHAPE, np.int64), np.zeros(SHAPE, np.int64)
    hits[0, 21], waiting[0, 21:30] = 4000, 100  # all come back after about a hundred seconds
    waiting[2, :], hits[2, :] = 1000, 0  # of another class nothing does
    order = learner.order(hits, np.zeros(SHAPE, np.int64), waiting).tolist()
    assert order.index(20) > order.index(0) > order.index(2 * NUM_AGES)


def test_what_was_counted_fades() -> None:
    learner, nothing = Learner(), np.zeros(SHAPE, np.int64)
    many = nothing.copy()
    many[1, 5] = 10_000
    before = learner.order(many, nothing, nothing).tolist()
    for _ in range(1500):
        after = learner.order(nothing, nothing, nothing).tolist()
    fresh = Learner().order(nothing, nothing, nothing).tolist()
    hit = NUM_AGES + 5
    assert abs(after.index(hit) - fresh.index(hit)) < NUM_REUSE_CLASSES <= abs(before.index(hit) - fresh.index(hit))


def filled(name: StoreName, slots: int, ghosts: int) -> Store:
    """A store of so many slots, all of them used, and half of them evicted again."""
    module = open_store(name)
    store = module.Store(
        1, [(-1, 0, -1, 1, 0, 0, [slots])], 2, 4096, ADAPTIVE, False, 0, False, 10, True, bytes(16), ghosts
    )
    root, now = store.new_root(7), 0
    for first in range(0, slots + slots // 2, 1024):
        now += 3_000_000
        chain = module.Chain(1, np.arange(first, min(first + 1024, slots + slots // 2), dtype=np.int32))
        hit = store.walk(chain, root, len(chain), 0)
        store.claim(hit)
        store.refresh(now)
        store.seat(hit, 0, chain, root, True)
        store.settle(0, hit, [(hit.blocks, len(chain), 0, 0)], None, None, 35, -1)
        store.commit_row(0, len(chain))
        store.release(0, True, now)
    return store


def test_of_many_pages_a_census_looks_at_some_the_same_in_both_stores() -> None:
    slots = 2 * MAX_CENSUS + 4096
    names: tuple[StoreName, ...] = ("twin", "compiled")
    counts = [filled(name, slots, 1).take_counts(0) for name in names]
    for one, other in zip(*counts, strict=True):
        assert one.dtype == other.dtype == np.int64 and np.array_equal(one, other)
    assert abs(int(counts[0][2].sum()) - slots - slots // 2) <= 6  # every third stands for three


def test_ghosts_are_the_same_in_both_stores_over_many_turns_of_their_ring() -> None:
    """Prompts of two blocks that come again and again: ghosts are met, fall out, and are made a second time."""
    names: tuple[StoreName, ...] = ("twin", "compiled")
    modules = [open_store(name) for name in names]
    group = (-1, 0, -1, 1, 0, 0, [48])
    stores = [module.Store(1, [group], 2, 4, ADAPTIVE, False, 0, False, 10, True, bytes(16), 8) for module in modules]
    roots, dice, met = [store.new_root(7) for store in stores], Random(5), 0
    for turn in range(6000):
        prompt = np.array([dice.randrange(40), dice.randrange(100, 140), 999], np.int32)
        for module, store, root in zip(modules, stores, roots, strict=True):
            chain = module.Chain(1, prompt)
            hit = store.walk(chain, root, 2, 0)
            store.claim(hit)
            store.refresh(turn * 100_000)
            store.seat(hit, 0, chain, root, True)
            store.settle(0, hit, [(hit.blocks, 3, 0, 0)], None, None, 35, -1)
            store.commit_row(0, 2)
            store.release(0, True, turn * 100_000)
        if turn % 500 == 499:
            one, other = (store.dump().groups[0].cells for store in stores)
            assert one is not None and one == other
            met += sum(ghost is None for ghost in one.ghosts)
    assert met > 500


@pytest.mark.parametrize("name", ["twin", "compiled"])
def test_ghosts_take_at_most_32_bytes_and_are_bounded(name: StoreName) -> None:
    store = filled(name, 4096, 8)
    number, size = store.ghost_room(0)
    assert number == 2048
    assert name == "twin" or size <= 32 * 8 * 4096 + 64
    assert filled(name, 4096, 0).ghost_room(0)[0] == 0
    small = filled(name, 1024, 1)
    assert small.ghost_room(0)[0] == 512


@pytest.mark.parametrize("name", ["twin", "compiled"])
def test_an_order_that_is_none_is_refused(name: StoreName) -> None:
    store = filled(name, 1024, 1)
    before = store.dump()
    for wrong in ([], [0] * NUM_CELLS, list(range(NUM_CELLS - 1)), [*range(1, NUM_CELLS), NUM_CELLS]):
        with pytest.raises(ValueError, match="names each of 160 cells once"):
            store.set_rank(0, np.array(wrong, np.int32))
    assert store.dump() == before
    plain = open_store(name).Store(4, [(-1, 0, -1, 1, 0, 0, [4])], 2, 4, 0, False, 0, False, 10)
    assert not plain.is_due(0) and plain.ghost_room(0) == (0, 0)
    with pytest.raises(ValueError, match="learns no order"):
        plain.take_counts(0)


def test_the_old_name_of_an_order_is_read_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="'empty_first' is called 'lru' since 0.2"):
        config = CacheConfig((TierConfig("device", 4),), eviction="empty_first")  # type: ignore[arg-type]
    assert config.eviction == "lru"


@pytest.mark.parametrize(
    "wrong", [{"eviction": "newest"}, {"eviction": []}, {"ghosts": -1}, {"ghosts": 65}, {"ghosts": 1.0}]
)
def test_what_is_no_order_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        CacheConfig((TierConfig("device", 4),), **wrong)
