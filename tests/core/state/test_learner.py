"""The learning step: against its definition written out, cell by cell; and what the stores hand to it."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from quire import CacheConfig, InputError, TierConfig
from quire.core.state.learner import (
    AHEAD,
    EXPECTED,
    LONGEST_WAIT,
    MOST,
    PRIOR,
    SHORTEST_WAIT,
    SPAN,
    STARTS,
    Floats,
    Judge,
    Learner,
    worth_of_all,
)
from quire.core.store import StoreName, open_store
from quire.core.store.interface import Int64Array, Store
from quire.core.store.reuse import (
    ADAPTIVE,
    FIRST_RANK,
    MAX_CENSUS,
    NEVER,
    NUM_AGES,
    NUM_CELLS,
    NUM_REUSE_CLASSES,
)

from ...effort import cases

SHAPE = (NUM_REUSE_CLASSES, NUM_AGES)


def worth_by_definition(every_hit: Floats, every_wait: Floats, first: int) -> Floats:
    """What one more page of a cell brings: every horizon is tried. The ages of a span, those outside at its ends."""
    hits, waiting = np.zeros((NUM_REUSE_CLASSES, SPAN)), np.zeros((NUM_REUSE_CLASSES, SPAN))
    for c in range(NUM_REUSE_CLASSES):
        for age in range(NUM_AGES):
            place = min(max(age - first, 0), SPAN - 1)
            hits[c, place] += every_hit[c, age]
            waiting[c, place] += every_wait[c, age]
    edges = [0, *STARTS[first + 1 : first + SPAN], 2 * STARTS[first + SPAN - 1]]
    hazards = np.zeros((NUM_REUSE_CLASSES, SPAN))
    reached = [
        [sum(hits[c][i:]) + sum(waiting[c][i:]) - waiting[c][i] / 2 for i in range(SPAN)]
        for c in range(NUM_REUSE_CLASSES)
    ]
    for i in range(SPAN):
        seen = sum(hits[c][i] for c in range(NEVER)) + PRIOR * EXPECTED
        of_all = seen / (sum(reached[c][i] for c in range(NEVER)) + PRIOR)
        for c in range(NUM_REUSE_CLASSES):
            expected = 0 if c == NEVER else of_all
            hazards[c, i] = min(MOST, (hits[c][i] + PRIOR * expected) / (reached[c][i] + PRIOR))
    found = np.zeros((NUM_REUSE_CLASSES, SPAN))
    for c in range(NUM_REUSE_CLASSES):
        for i in range(SPAN):
            alive, brought, taken, best = 1.0, 0.0, 0.0, 0.0
            for j in range(i, SPAN):
                brought += alive * hazards[c, j]
                taken += (
                    alive * (edges[j + 1] - edges[j]) * (0.5 if j == i < SPAN - 1 else 1.0) * (1 - hazards[c, j] / 2)
                )
                alive *= 1 - hazards[c, j]
                if (j >= i + AHEAD or j == SPAN - 1) and taken > 0:
                    best = max(best, brought / taken)
            found[c, i] = best
    return np.array(
        [[found[c, min(max(age - first, 0), SPAN - 1)] for age in range(NUM_AGES)] for c in range(NUM_REUSE_CLASSES)]
    )


def order_of(learner: Learner, hits: Int64Array, lost: Int64Array, census: Int64Array) -> list[int]:
    """The order after a step in which LRU did no better."""
    return [int(cell) for cell in learner.order(hits, lost, census, np.zeros(3, np.int64))[0]]


@pytest.mark.parametrize("seed", range(6))
def test_the_step_is_its_definition(seed: int) -> None:
    rng, oldest = np.random.default_rng(seed), (30, 100, NUM_AGES)[seed % 3]
    hits, waiting = (rng.integers(0, most, SHAPE).astype(float) for most in ((1, 30, 2000)[seed % 3] + 1, 500))
    hits[:, oldest:] = waiting[:, oldest:] = 0
    first = min(max(0, oldest + 6 - SPAN), NUM_AGES - SPAN)
    assert np.allclose(worth_of_all(hits, waiting), worth_by_definition(hits, waiting, first), rtol=1e-9)


def test_on_a_clock_of_another_speed_all_is_as_many_ages_further_on() -> None:
    """Ten octaves: what was worth most before is so after; the order of what blocks get to is the same."""
    rng = np.random.default_rng(3)
    counts = [np.zeros(SHAPE, np.int64) for _ in range(3)]
    later = [np.zeros(SHAPE, np.int64) for _ in range(3)]
    for before, after in zip(counts, later, strict=True):
        before[:, 50:80] = rng.integers(0, 1000, (NUM_REUSE_CLASSES, 30))
        after[:, 80:110] = before[:, 50:80]
    one, other = order_of(Learner(), *counts), order_of(Learner(), *later)
    seen = [cell for cell in one if 50 <= cell % NUM_AGES < 80]
    assert [cell - 30 for cell in other if 80 <= cell % NUM_AGES < 110] == seen


def test_an_order_names_every_cell_and_begins_with_the_oldest() -> None:
    order = np.array(order_of(Learner(), *(np.zeros(SHAPE, np.int64) for _ in range(3))))
    assert sorted(order.tolist()) == list(range(NUM_CELLS))
    hopeful = order[order < NEVER * NUM_AGES]  # what is said to come back never goes before all
    assert sorted(order[:NUM_AGES].tolist()) == list(range(NEVER * NUM_AGES, NUM_CELLS))
    ages = [age for age in (hopeful % NUM_AGES).tolist() if age > 6]  # of a tick or two there are hardly three ages
    assert ages == sorted(ages, reverse=True)
    assert sorted(FIRST_RANK) == list(range(NUM_CELLS)) and FIRST_RANK[0] % NUM_AGES == NUM_AGES - 1


def test_what_is_asked_again_late_is_kept_while_it_is_young() -> None:
    learner, hits, waiting = Learner(), np.zeros(SHAPE, np.int64), np.zeros(SHAPE, np.int64)
    hits[0, 80], waiting[0, 80:90] = 4000, 100  # all come back after about a hundred seconds
    waiting[2, :100] = 1000  # of another class nothing does
    order = order_of(learner, hits, np.zeros(SHAPE, np.int64), waiting)
    assert order.index(79) > order.index(60) > order.index(2 * NUM_AGES + 60)


def test_what_was_counted_fades() -> None:
    learner, nothing = Learner(), np.zeros(SHAPE, np.int64)
    many, waiting = nothing.copy(), nothing.copy()
    many[1, 65], waiting[:, 40:80] = 10_000, 100
    few = nothing.copy()
    few[0, 45] = 1  # where nobody asks anything again, pages go by age alone
    before = order_of(learner, many, nothing, waiting)
    for _ in range(1500):
        after = order_of(learner, few, nothing, waiting)
    fresh = order_of(Learner(), few, nothing, waiting)
    hit = NUM_AGES + 65
    assert abs(after.index(hit) - fresh.index(hit)) < 40 < abs(before.index(hit) - fresh.index(hit))


def test_the_judge_is_patient_with_one_step_and_not_with_many() -> None:
    judge = Judge()
    assert not judge.hear(0, 1000, 800)  # one long request
    assert not any(judge.hear(100, 0, 800) for _ in range(50))  # what was gained long ago excuses little
    assert [judge.hear(0, 400, 800) for _ in range(5)] == [False, False, False, True, True]


def test_small_losses_that_last_are_noticed_and_noise_is_not() -> None:
    judge, dice = Judge(), Random(1)
    assert not any(judge.hear(dice.randrange(60), dice.randrange(40), 800) for _ in range(1000))
    assert any(judge.hear(0, 10, 800) for _ in range(60))


def test_who_fails_again_waits_twice_as_long_and_who_does_well_is_forgiven() -> None:
    judge, waits = Judge(), []
    for _ in range(7):
        while not judge.hear(0, 400, 800):
            pass
        waits.append(1)
        while judge.hear(0, 400, 800):
            waits[-1] += 1
    assert waits == [8, 16, 32, 64, 128, 128, 128] and (waits[0], waits[-1]) == (SHORTEST_WAIT, LONGEST_WAIT)
    assert not any(judge.hear(9, 0, 800) for _ in range(40))
    while not judge.hear(0, 400, 800):
        pass
    assert [judge.hear(0, 0, 800) for _ in range(8)] == [True] * 7 + [False]


def test_while_nobody_comes_back_pages_go_by_age_alone() -> None:
    waiting = np.full(SHAPE, 100, np.int64)
    order, by_age = Learner().order(
        np.zeros(SHAPE, np.int64), np.zeros(SHAPE, np.int64), waiting, np.zeros(3, np.int64)
    )
    assert by_age and order.tolist() == list(FIRST_RANK)


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
    slots = MAX_CENSUS + 2048
    names: tuple[StoreName, ...] = ("twin", "compiled")
    counts = [filled(name, slots, 1).take_counts(0) for name in names]
    for one, other in zip(*counts, strict=True):
        assert one.dtype == other.dtype == np.int64 and np.array_equal(one, other)
    assert abs(int(counts[0][2].sum()) - slots - slots // 2) <= 4  # every second stands for two


@pytest.mark.long
def test_ghosts_are_the_same_in_both_stores_over_many_turns_of_their_ring() -> None:
    """Prompts of two blocks that come again and again: ghosts are met, fall out, and are made a second time."""
    names: tuple[StoreName, ...] = ("twin", "compiled")
    modules = [open_store(name) for name in names]
    group = (-1, 0, -1, 1, 0, 0, [48])
    stores = [module.Store(1, [group], 2, 4, ADAPTIVE, False, 0, False, 10, True, bytes(16), 8) for module in modules]
    roots, dice, met = [store.new_root(7) for store in stores], Random(5), 0
    for turn in range(cases(2000, 6000)):
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
    assert met > cases(150, 500)


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
        with pytest.raises(ValueError, match=f"names each of {NUM_CELLS} cells once"):
            store.set_rank(0, np.array(wrong, np.int32), False)
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


def test_of_equal_worth_the_oldest_go_first() -> None:
    """Ages behind the last that is looked at are worth the same."""
    hits, waiting = np.zeros(SHAPE, np.int64), np.zeros(SHAPE, np.int64)
    hits[:, 60], waiting[:, 50:80] = 50, 100
    order = order_of(Learner(), hits, np.zeros(SHAPE, np.int64), waiting)
    assert order.index(159) < order.index(150) < order.index(140)
