"""Other eviction orders: what a sample says of them is what caches of that size do."""

from __future__ import annotations

import numpy as np
import pytest

from quire.insight.order_sample import ORDERS, OrderSample

from .chains import Walk, lru_hits, walks


def gains(uses: list[Walk], capacity: int, since: float = 0.0) -> dict[str, float]:
    sample = OrderSample()
    for second, use in enumerate(uses):
        sample.add(use.keys, second, use.hittable)
    return [found for found in sample.gains(capacity, since) if found is not None][-1]


def scans(rounds: int) -> list[Walk]:
    """A few prompts that come back, between many that never do: the order decides."""
    rng = np.random.default_rng(0)
    known = [rng.integers(1, 1 << 63, 10, dtype=np.uint64) for _ in range(6)]
    found = []
    for number in range(rounds):
        found.append(Walk(known[number % 6], 10))
        found += [Walk(rng.integers(1, 1 << 63, 10, dtype=np.uint64), 10) for _ in range(3)]
    return found


def test_an_order_that_learns_is_worth_something_where_others_flush() -> None:
    found = gains(scans(120), 150)
    assert found["lru"] == 0 and found["adaptive"] > 0.05
    assert set(found) == set(ORDERS)


def test_with_room_for_all_no_order_is_better() -> None:
    assert gains(walks(0, 200), 100_000) == pytest.approx(dict.fromkeys(ORDERS, 0.0))


def test_only_what_is_asked_in_time_counts() -> None:
    uses = scans(120)
    late, never = gains(uses, 150, 400.0), gains(uses, 150, 1e9)
    assert late["adaptive"] > 0.05 and set(never.values()) == {0.0}


def test_prompts_longer_than_the_cache_are_cut_to_it() -> None:
    long = Walk(np.arange(1, 200, dtype=np.uint64) << np.uint64(30), 198)
    assert set(gains([long, long], 20).values()) == {0.0}
    assert lru_hits([long, long], 20) == 20
