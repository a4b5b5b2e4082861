"""Which block gets which priority."""

from __future__ import annotations

import numpy as np
import pytest

from quire import InputError, RetainRange, Retention
from quire.core.records.retain import retained_blocks

X = -1


@pytest.mark.parametrize(
    ("block_size", "length", "ranges", "expected"),
    [
        (64, 256, [(0, 64, 80), (64, 128, 50)], [80, 50, X, X]),
        (32, 127, [(0, 63, 80), (63, 127, 30)], [80, 80, 30, 30]),
        (32, 128, [(0, 1, 80), (1, 2, 5)], [80, X, X, X]),
        (64, 192, [(0, 65, 80), (65, 129, 30)], [80, 80, 30]),
        (64, 256, [(0, 64, 80), (129, None, 50)], [80, X, X, 50]),
        (64, 256, [(127, 193, 80)], [X, X, 80, 80]),
        (64, 128, [(1, None, 80)], [X, 80]),
        (256, 192, [(0, 128, 80)], [80]),
    ],
)
def test_a_block_takes_the_range_of_its_first_token(
    block_size: int, length: int, ranges: list[tuple[int, int | None, int]], expected: list[int]
) -> None:
    """retain-table"""
    retention = Retention(tuple(RetainRange(*values) for values in ranges))
    priorities, ticks = retained_blocks(retention, len(expected), length, block_size)
    assert priorities.tolist() == expected
    assert (ticks == X).all()


def test_by_max_takes_the_highest_range_a_block_touches() -> None:
    retention = Retention((RetainRange(1, 2, 5), RetainRange(2, 5, 80, seconds=1.5)), by="max")
    priorities, ticks = retained_blocks(retention, 3, 12, 4)
    assert priorities.tolist() == [80, 80, X]
    assert ticks.tolist() == [1_500_000, 1_500_000, X]


def test_blocks_behind_the_prompt_take_the_decode_values() -> None:
    retention = Retention((RetainRange(0, None, 50),), decode_priority=7, decode_seconds=2)
    priorities, ticks = retained_blocks(retention, 3, 8, 4)
    assert priorities.tolist() == [50, 50, 7]
    assert ticks.tolist() == [X, X, 2_000_000]


@pytest.mark.parametrize("ranges", [[(0, None, 50), (8, 9, 50)], [(0, 8, 50), (7, 9, 50)], [(4, 8, 50), (0, 2, 50)]])
def test_ranges_come_in_order_without_overlap(ranges: list[tuple[int, int | None, int]]) -> None:
    with pytest.raises(InputError, match="order the ranges"):
        Retention(tuple(RetainRange(*values) for values in ranges))


@pytest.mark.parametrize("values", [(5, 4, 50), (-1, 4, 50), (0, 4, 101), (0, 4, -1), (0, 4, 50, -1.0)])
def test_impossible_ranges_are_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(InputError):
        RetainRange(*values)


def test_every_block_of_a_long_prompt_is_covered_once() -> None:
    ranges = tuple(RetainRange(start, start + 10, start % 100) for start in range(0, 1000, 10))
    priorities, _ = retained_blocks(Retention(ranges), 100, 1000, 10)
    assert priorities.tolist() == [start % 100 for start in range(0, 1000, 10)]
    assert priorities.dtype == np.int16
