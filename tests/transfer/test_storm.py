"""Random schedules of everything that can go wrong: nothing leaks, nothing hangs, no page is reused early."""

from __future__ import annotations

from collections import Counter

import pytest

from .storm import Storm


def play(first: int, last: int, twice_every: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(first, last):
        try:
            outcomes = Storm(seed).run()
            if seed % twice_every == 0:
                again = Storm(seed, backwards=True).run()
                assert again == outcomes, "the outcome depends on who was polled first"
        except AssertionError as wrong:
            raise AssertionError(f"seed {seed}: {wrong}") from wrong
        for outcome in outcomes.values():
            seen[outcome.split("'")[1] if "'" in outcome else "died"] += 1
    return seen


def test_some_hundred_schedules() -> None:
    seen = play(0, 300, 10)
    assert min(seen["delivered"], seen["failed"], seen["cancelled"]) > 30, seen


@pytest.mark.slow
def test_a_hundred_thousand_schedules() -> None:
    seen = play(100_000, 200_000, 5)
    assert min(seen["delivered"], seen["failed"], seen["cancelled"]) > 10_000, seen
