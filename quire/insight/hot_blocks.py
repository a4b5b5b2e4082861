"""HotBlocks: which blocks are used so often that no sample may leave them to chance. Knows no requests.

A first block that every request has is in a sample or is not, and either way the sample is wrong. So while blocks are
sampled, the uses of those outside are counted too, in a small table of counts that several blocks share (a count-min
sketch): a block that was used often enough by both of its counts is hot from then on.
"""

from __future__ import annotations

import numpy as np

from quire.insight.block_table import BlockTable, Bools, Keys

MOST_HOT = 1000  # after a choice; twice as many before the next
FIRST_USES = 8  # that make a block hot, until there are many of them
COUNTS = 1 << 17  # in each of two rows
_SHIFTS = (np.uint64(17), np.uint64(40))  # bits of a key that neither the table nor the sample looks at


class HotBlocks:
    """The threshold, and the counts of blocks that are not tracked."""

    def __init__(self) -> None:
        self.threshold = FIRST_USES
        self._counts = np.zeros((2, COUNTS), np.uint16)

    def count(self, keys: Keys) -> Bools:
        """One more use of blocks that are not tracked; which of them are hot now."""
        found = np.ones(len(keys), np.bool_)
        for row, shift in zip(self._counts, _SHIFTS, strict=True):
            places = ((keys >> shift) & np.uint64(COUNTS - 1)).astype(np.int64)
            numbers = np.minimum(row[places], np.uint16(65534)) + np.uint16(1)
            row[places] = numbers
            found &= numbers > self.threshold
        return found

    def choose(self, table: BlockTable, among: Bools) -> None:
        """The hottest of the blocks in the marked slots are hot, no others; what was counted counts half from now."""
        slots = np.flatnonzero(among & (table.uses > 1))
        if len(slots) > MOST_HOT:
            order = np.argpartition(table.uses[slots], len(slots) - MOST_HOT)
            slots = slots[order[-MOST_HOT:]]
            self.threshold = max(FIRST_USES, int(table.uses[slots].min()))
        table.hot[:] = False
        table.hot[slots] = True
        table.uses >>= 1
        self._counts >>= 1
        self.threshold = max(FIRST_USES, self.threshold // 2)
