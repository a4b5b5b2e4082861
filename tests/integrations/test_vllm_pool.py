"""Random runs against vLLM's scheduler as closely as it can be had without vLLM, every page looked at."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.integrations.pool_runs import run_seed

SEEN = ("loads", "stores", "early", "flushed", "preemptions", "pages", "done")


@pytest.mark.parametrize("first", range(0, 32, 8))
def test_random_runs_over_one_pool_of_blocks(first: int) -> None:
    seen = Counter[str]()
    for seed in range(first, first + 8):
        seen += run_seed(seed).seen
    assert min(seen[what] for what in SEEN) > 0
