"""The rows of live sequences: the numpy tables that others read, and what only the store knows of a row.

Owns the tables and keeps page ids and device slots in step. Knows nothing of how pages come and go.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.core.store.twin.chain import Chain, IntArray
from quire.core.store.twin.page import DEFAULT_PRIORITY, NEVER, Page
from quire.core.store.twin.pool import NUM_COUNTERS, Pool
from quire.core.store.twin.tree import Node

NO_PAGE = -1


class Row:
    """What the store knows of a live row besides its numbers."""

    __slots__ = ("chain", "duration", "keep", "priority", "spares", "tip", "twins")

    def __init__(self, chain: Chain, tip: Node | None, keep: bool, num_groups: int) -> None:
        self.chain = chain
        self.tip = tip  # deepest committed node; None: commits nothing any more
        self.keep = keep
        self.priority = DEFAULT_PRIORITY  # of pages made while decoding
        self.duration = NEVER
        self.twins = 0  # committed columns whose node had another page
        self.spares: list[list[Page]] = [[] for _ in range(num_groups)]


class Table:
    """Rows by number."""

    __slots__ = (
        "block_size", "capacity", "columns", "committed", "computed", "length",
        "pages", "pools", "row_counters", "rows", "slots",
    )  # fmt: skip

    def __init__(self, block_size: int, rows: int, columns: int, pools: Sequence[Pool]) -> None:
        self.block_size = block_size
        self.columns = columns
        self.pools = pools
        self.rows: list[Row | None] = [None] * rows
        self.pages: list[IntArray] = [np.full((rows, columns), NO_PAGE, np.int32) for _ in pools]
        self.slots: list[IntArray] = [np.full((rows, columns), -1, np.int32) for _ in pools]
        self.length: IntArray = np.zeros(rows, np.int32)
        self.computed: IntArray = np.zeros(rows, np.int32)
        self.committed: IntArray = np.zeros(rows, np.int32)
        self.capacity: list[IntArray] = [np.zeros(rows, np.int32) for _ in pools]
        self.row_counters: list[npt.NDArray[np.int64]] = [np.zeros((rows, NUM_COUNTERS), np.int64) for _ in pools]

    def row(self, number: int) -> Row:
        """A live row."""
        found = self.rows[number] if 0 <= number < len(self.rows) else None
        if found is None:
            raise LookupError(f"row {number} is not live")
        return found

    def check_vacant(self, number: int) -> None:
        if not 0 <= number < len(self.rows):
            raise LookupError(f"row {number} is not one of the {len(self.rows)} rows")
        if self.rows[number] is not None:
            raise ValueError(f"row {number} is live already")

    def occupy(self, number: int, row: Row, computed: int, committed: int) -> None:
        self.rows[number] = row
        self.length[number] = len(row.chain)
        self.computed[number] = computed
        self.committed[number] = committed

    def vacate(self, number: int) -> None:
        self.rows[number] = None
        for numbers in (self.length, self.computed, self.committed, *self.capacity):
            numbers[number] = 0

    def blocks_of(self, tokens: int) -> int:
        """Columns that so many tokens need."""
        return -(-tokens // self.block_size)

    def page(self, group: int, row: int, column: int) -> Page | None:
        """The page in a column, None for a hole."""
        number = int(self.pages[group][row, column])
        return None if number == NO_PAGE else self.pools[group].pages[number]

    def put(self, group: int, row: int, column: int, page: Page) -> None:
        self.pages[group][row, column] = page.number
        self.slots[group][row, column] = page.slots[0]

    def remove(self, group: int, row: int, column: int) -> Page | None:
        """Make a hole; the page that was there."""
        page = self.page(group, row, column)
        self.pages[group][row, column] = NO_PAGE
        self.slots[group][row, column] = -1
        return page
