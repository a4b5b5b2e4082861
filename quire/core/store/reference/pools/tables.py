"""What an engine copies of the tables of slots: cells that have changed since the last report, or whole rows.

Owns what was reported. Knows nothing of what changes a table.
"""

from collections.abc import Sequence

import numpy as np

from quire.core.store.interface import Int32Array
from quire.core.store.reference.pools.state import State


def take_cells(state: State, group: int) -> Int32Array:
    """Rows, columns and slots of the cells that have changed since the last report, in order; [3, cells]."""
    table = state.table
    slots, told = table.slots[group], table.told[group]
    if told is None:
        told = table.told[group] = np.full_like(slots, -1)
    cells = []
    for row, columns in sorted(table.touched[group].items()):
        for column in columns:
            if told[row, column] != slots[row, column]:
                told[row, column] = slots[row, column]
                cells.append((row, column, int(slots[row, column])))
    table.touched[group].clear()
    return np.array(cells, np.int32).reshape(-1, 3).T.copy()


def copy_rows(state: State, group: int, rows: Sequence[int], out: Int32Array) -> int:
    """Copy the used columns of rows to the front of an array's rows; the width that was copied."""
    table = state.table
    if any(not 0 <= number < len(table.rows) for number in rows):
        raise LookupError(f"one of the rows {list(rows)} is not there")
    width = max((int(table.capacity[group][number]) for number in rows), default=0)
    if out.ndim != 2 or out.shape[0] < len(rows) or out.shape[1] < width:
        raise ValueError(f"{len(rows)} rows of {width} columns do not fit {out.shape}")
    out[: len(rows), :width] = table.slots[group][list(rows), :width]
    return width
