"""A plan that its caller loses before it was finished is a wrong answer to come: the next call says so, once."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import numpy as np
import pytest

from quire import Batch, Cache, CacheConfig, Plan, Request, TierConfig, check
from quire.core.store import StoreName

LOST = "plans: {} of them were lost and never finished, the first is plan {}; run the moves .*, then call finish"


@pytest.fixture
def cache(store: StoreName) -> Cache:
    """Two pages on the device: each prompt pushes the one before it down."""
    tiers = (TierConfig("device", 2), TierConfig("host", 8))
    return Cache(CacheConfig(tiers, block_size=4, max_length=16), store=store)


def served(cache: Cache, first: int) -> Batch:
    batch = cache.add_sequence_batch([Request(first, np.arange(first, first + 5, dtype=np.int32))])
    cache.commit(batch.sequences)
    cache.release(batch.sequences[0])
    return batch


def lost(cache: Cache, first: int) -> int:
    """The number of a plan that nobody has."""
    plan = served(cache, first).plan
    assert plan
    return plan.number


def test_a_lost_plan_is_told_by_the_next_call_where_that_stands(cache: Cache) -> None:
    assert not served(cache, 0).plan
    number = lost(cache, 10)
    with pytest.warns(RuntimeWarning, match=LOST.format(1, number)) as heard:
        cache.num_free()
    assert [Path(warning.filename).name for warning in heard] == [Path(__file__).name]
    check(cache)


def test_it_is_said_once_and_the_plan_can_still_be_run(cache: Cache) -> None:
    served(cache, 0)
    plans = [served(cache, 10).plan, served(cache, 20).plan]
    numbers = [plan.number for plan in plans]
    del plans
    with pytest.warns(RuntimeWarning, match=LOST.format(2, numbers[0])):
        cache.num_free()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [plan.number for plan in cache.open_plans()] == numbers
        for plan in cache.open_plans():
            assert not cache.finish(plan).setbacks
        assert cache.open_plans() == [] and cache.num_free() == 2
    check(cache)


def test_one_that_was_said_is_not_said_again_with_the_next(cache: Cache) -> None:
    served(cache, 0)
    lost(cache, 10)
    with pytest.warns(RuntimeWarning):
        cache.num_free()
    number = lost(cache, 20)
    with pytest.warns(RuntimeWarning, match=LOST.format(1, number)):
        cache.num_free()


def test_a_plan_that_is_kept_or_finished_is_not_lost(cache: Cache) -> None:
    served(cache, 0)
    kept: Plan | None = served(cache, 10).plan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.num_free()
        assert kept is not None and cache.open_plans() == [kept]
        cache.finish(kept)
        kept = None
        gc.collect()
        cache.num_free()
        batch = served(cache, 20)
        cache.finish(batch.plan, failed=range(len(batch.plan)))
        del batch
        cache.num_free()
    check(cache)


def test_a_warning_that_is_an_error_leaves_the_cache_as_it_is(cache: Cache) -> None:
    served(cache, 0)
    number = lost(cache, 10)
    with pytest.raises(RuntimeWarning), warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.num_free()
    assert [plan.number for plan in cache.open_plans()] == [number] and cache.num_free() == 2
    check(cache)
