"""Fences, compactions, puts and forgets in the order that dice say. By hand there are more."""

from __future__ import annotations

import pytest

from ...effort import cases
from .interleave import case
from .world import APART, POOLED


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 150, 25))
def test_threads_in_any_order_lose_nothing(first: int) -> None:
    for seed in range(first, first + cases(12, 25)):
        case(seed, POOLED if seed % 3 == 2 else APART, lives=1, acts=3)


@pytest.mark.parametrize("seed", [9, 42, 447, 11675])
def test_orders_that_have_shown_a_fault(seed: int) -> None:
    """A record during a compaction that nobody noted; a later fence overtaken; a block told again too late; a page
    whose block a power cut has taken, which is no damage."""
    case(seed, POOLED if seed % 3 == 2 else APART)
