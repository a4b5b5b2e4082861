"""Cells: a pool as a picture of at most 4,096 cells, each one slot or a run of slots. Numbers only.

Owns how slots become cells and what a cell's second byte says, by what the page colours it with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quire.core.store.interface import Int32Array
from quire.core.store.mapped import SlotColumn, SlotState

Colour = Literal["state", "age", "uses", "scope"]
COLOURS: tuple[Colour, ...] = get_args(Colour)
Bytes = NDArray[np.uint8]

MOST_CELLS = 4096
STATES = len(SlotState)
IN_USE = 255  # in place of an age: it may not be evicted
WIDTH = 16  # of a table with a column per state, or per scope and one for none
MOST_SCOPES = WIDTH - 1  # that have a number of their own


@dataclass(frozen=True, slots=True)
class PoolCells:
    """One pool: how its slots are used, and two bytes per cell."""

    num_slots: int
    slots_per_cell: int
    counts: list[int]  # slots by state
    states: Bytes  # the state that most of a cell's used slots have
    shades: Bytes  # what is coloured; see `shades_of`


def cells_of(slots: Int32Array, shades: Bytes, colour: Colour) -> PoolCells:
    """Slots, and a shade for each, as cells."""
    per_cell = max(1, -(-len(slots) // MOST_CELLS))
    states = slots[:, SlotColumn.STATE]
    if per_cell == 1:
        counts = np.bincount(states, minlength=STATES).tolist()
        own = np.where(states == SlotState.EMPTY, 0, 255).astype(np.uint8) if colour == "state" else shades
        return PoolCells(len(slots), 1, counts, states.astype(np.uint8), own)
    table = _table(states, per_cell)
    used = table[:, 1:STATES]
    states_of_cells = np.where(used.any(axis=1), 1 + used.argmax(axis=1), SlotState.EMPTY).astype(np.uint8)
    joined = _full(table) if colour == "state" else _joined(shades, per_cell, colour)
    return PoolCells(len(slots), per_cell, table.sum(axis=0)[:STATES].tolist(), states_of_cells, joined)


def _table(numbers: NDArray[np.integer], per_cell: int) -> NDArray[np.int64]:
    """How often each number from 0 to 15 comes up, by cell."""
    count = -(-len(numbers) // per_cell)
    places = np.repeat(np.arange(0, WIDTH * count, WIDTH, dtype=np.int32), per_cell)[: len(numbers)]
    return np.bincount(places + numbers, minlength=WIDTH * count).reshape(count, WIDTH)


def _full(table: NDArray[np.int64]) -> Bytes:
    """How much of each cell is used: 255 is all of it."""
    used, size = table[:, 1:STATES].sum(axis=1), np.maximum(1, table.sum(axis=1))
    full: Bytes = (used * 255 // size).astype(np.uint8)
    return full


def _joined(shades: Bytes, per_cell: int, colour: Colour) -> Bytes:
    """One shade per cell: of ages and uses the highest, of scopes that of most slots."""
    if colour == "scope":
        named = _table(shades, per_cell)[:, 1:]
        return np.where(named.any(axis=1), 1 + named.argmax(axis=1), 0).astype(np.uint8)
    count = -(-len(shades) // per_cell)
    padded = np.zeros(count * per_cell, np.uint8)
    padded[: len(shades)] = shades
    highest: Bytes = padded.reshape(count, per_cell).max(axis=1)
    return highest


def ages(num_slots: int, order: Int32Array) -> Bytes:
    """By slot: its place in the order of eviction, 0 is next, 254 last; 255 is none."""
    found = np.full(num_slots, IN_USE, np.uint8)
    if len(order):
        found[order] = np.arange(len(order)) * 254 // max(1, len(order) - 1)
    return found


def uses(slots: Int32Array) -> Bytes:
    """By slot: how often its page was used, where that is counted; else how many use it now."""
    counted = slots[:, SlotColumn.USES]
    return np.minimum(255, np.where(counted >= 0, counted, slots[:, SlotColumn.HOLDERS])).astype(np.uint8)
