"""One spare slot for states: of the two that a prompt of whole blocks leaves, that which more likely resumes stays."""

from __future__ import annotations

import numpy as np
import pytest

from quire import Cache, CacheConfig, LayerGroup, Request, TierConfig, check
from quire.core.store import StoreName

from ..conftest import seq


def state_cache(store: StoreName, states: int, inside: bool, below: int = 0) -> Cache:
    """Twenty pages for attention, so many slots for states, and below the device."""
    groups = (LayerGroup(), LayerGroup("state", snapshot_every=0, snapshot_inside=inside))
    tiers = [TierConfig("device", (20, states))] + ([TierConfig("host", (20, below))] if below else [])
    return Cache(CacheConfig(tuple(tiers), 4, max_sequences=8, max_length=256, groups=groups), store=store)


def life(cache: Cache, request: Request, answer: int = 0) -> int:
    """A whole life, step by step; where it started."""
    batch = cache.add_sequence_batch([request])
    (sequence,) = batch.sequences
    start: int = sequence.start
    for _ in range(20):
        cache.finish(batch.plan)
        cache.commit(sequence)
        check(cache)
        if sequence.computed == sequence.prompt_end:
            break
        batch = cache.add_sequence_batch([], continuing=[sequence])
    for token in range(answer):
        plan = cache.grow(sequence, np.array([700 + token], np.int32))
        assert plan is not None
        cache.finish(plan)
        cache.commit(sequence)
    cache.release(sequence)
    check(cache)
    return start


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("answer", [0, 3])
def test_the_identical_prompt_starts_a_block_before_its_end(store: StoreName, inside: bool, answer: int) -> None:
    cache = state_cache(store, 2, inside)
    starts = [life(cache, Request(name, seq(0, 12)), answer) for name in "abc"]
    assert starts == [0, 8, 8]


@pytest.mark.parametrize("inside", [False, True])
def test_with_another_slot_both_are_kept(store: StoreName, inside: bool) -> None:
    cache = state_cache(store, 4, inside)
    life(cache, Request("a", seq(0, 12)), answer=3)
    assert [cache.probe([Request("p", seq(0, length))])[0].start for length in (12, 13)] == [8, 12]


@pytest.mark.parametrize("inside", [False, True])
def test_a_state_that_was_asked_for_by_name_is_kept_all_the_same(store: StoreName, inside: bool) -> None:
    cache = state_cache(store, 2, inside)
    life(cache, Request("a", seq(0, 12), resume_points=[12]), answer=3)
    assert cache.probe([Request("p", seq(0, 13))])[0].start == 12


def test_where_the_one_before_goes_down_both_are_kept(store: StoreName) -> None:
    cache = state_cache(store, 2, False, 4)
    life(cache, Request("a", seq(0, 12)), answer=3)
    assert [cache.probe([Request("p", seq(0, length))])[0].start for length in (12, 13)] == [8, 12]


def test_a_prompt_of_one_block_keeps_its_end(store: StoreName) -> None:
    cache = state_cache(store, 2, False)
    life(cache, Request("a", seq(0, 4)), answer=3)
    assert cache.probe([Request("p", seq(0, 5))])[0].start == 4


def test_a_slot_that_holds_anothers_state_is_taken_for_it(store: StoreName) -> None:
    """Only the one before must stay: what others left there goes, as it always did."""
    cache = state_cache(store, 3, False)
    life(cache, Request("other", seq(500, 5)))
    life(cache, Request("a", seq(0, 12)), answer=3)
    assert [cache.probe([Request("p", seq(0, length))])[0].start for length in (12, 13)] == [8, 12]
