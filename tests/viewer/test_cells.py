"""Cells: what a pool's slots become in the picture."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.store.mapped import SlotState
from quire.viewer.cells import IN_USE, MOST_CELLS, ages, cells_of, uses

NO_SHADES = np.empty(0, np.uint8)


def slots(*states: int, holders: int = 0, counted: int = -1) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    return np.array([[state, -1, holders, counted] for state in states], np.int32).reshape(-1, 4)


def test_a_small_pool_has_a_cell_for_each_slot() -> None:
    made = cells_of(slots(0, 4, 2, 2, 6), NO_SHADES, "state")
    assert (made.num_slots, made.slots_per_cell) == (5, 1)
    assert made.counts == [1, 0, 2, 0, 1, 0, 1]
    assert made.states.tolist() == [0, 4, 2, 2, 6] and made.shades.tolist() == [0, 255, 255, 255, 255]


def test_a_large_pool_is_joined() -> None:
    states = [SlotState.EMPTY] * 2 * MOST_CELLS
    states[0] = states[3] = states[4] = SlotState.IDLE
    states[5] = SlotState.HELD
    states += [SlotState.HELD]  # one more than two for every cell
    made = cells_of(slots(*states), NO_SHADES, "state")
    assert made.slots_per_cell == 3 and len(made.states) == -(-len(states) // 3) <= MOST_CELLS
    assert made.states[:3].tolist() == [SlotState.IDLE, SlotState.IDLE, SlotState.EMPTY]
    assert made.shades[:3].tolist() == [85, 255, 0] and made.states[-1] == SlotState.HELD
    assert sum(made.counts) == len(states) and made.counts[SlotState.IDLE] == 3


def test_shades_of_a_joined_cell() -> None:
    many = slots(*[SlotState.IDLE] * (2 * MOST_CELLS + 2))
    shades = np.zeros(len(many), np.uint8)
    shades[:3] = 3, 9, 9
    shades[3:6] = 1, 1, 7
    assert cells_of(many, shades, "uses").shades[:3].tolist() == [9, 7, 0]  # the highest
    assert cells_of(many, shades % 8, "scope").shades[:3].tolist() == [1, 1, 0]  # the most frequent that is one


@pytest.mark.parametrize("number", [1, MOST_CELLS, MOST_CELLS + 1, 100_000, 1_000_003])
def test_there_are_never_more_cells_than_that(number: int) -> None:
    made = cells_of(slots(*[SlotState.IDLE]).repeat(number, axis=0), NO_SHADES, "state")
    assert len(made.states) == len(made.shades) <= MOST_CELLS and made.counts[SlotState.IDLE] == number
    assert (made.states == SlotState.IDLE).all() and (made.shades == 255).all()


def test_ages_are_places_in_the_order() -> None:
    assert ages(5, np.array([3, 0, 1], np.int32)).tolist() == [127, 254, IN_USE, 0, IN_USE]
    assert ages(2, np.array([1], np.int32)).tolist() == [IN_USE, 0]
    assert ages(2, np.empty(0, np.int32)).tolist() == [IN_USE, IN_USE]


def test_uses_where_they_are_counted_and_holders_elsewhere() -> None:
    assert uses(slots(2, holders=3)).tolist() == [3]
    assert uses(slots(2, holders=3, counted=40)).tolist() == [40]
    assert uses(slots(2, holders=700)).tolist() == [255]
