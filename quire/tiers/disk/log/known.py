"""KnownBlocks: which blocks a manifest still has. Owns what compaction has left out; knows no file.

A cache reports a block once. When compaction leaves it out, because nothing on disk rests on it any more, and the cache
later stores one of its pages again, that page cannot be recorded: it is on disk for this process and no longer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.records.lasting import BlockNodes

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
HALF = 32  # bits


class FewNumbers:
    """A set of numbers in four bytes each: their low halves, ascending, by their high ones."""

    __slots__ = ("_low",)

    def __init__(self, numbers: Numbers) -> None:
        ascending = np.sort(numbers)
        high, starts = np.unique(ascending >> HALF, return_index=True)
        parts = np.split(ascending.astype(np.uint32), starts[1:])
        self._low = dict(zip(high.tolist(), parts, strict=True)) if len(ascending) else {}

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return sum(low.nbytes for low in self._low.values())

    def has(self, numbers: Numbers) -> Mask:
        """Whether each is in it."""
        found = np.zeros(len(numbers), np.bool_)
        for high, low in self._low.items():
            ours = np.flatnonzero(numbers >> HALF == high)
            wanted = numbers[ours].astype(np.uint32)
            found[ours] = low[np.minimum(np.searchsorted(low, wanted), len(low) - 1)] == wanted
        return found

    def more(self, numbers: Numbers) -> FewNumbers:
        """With these, of which it has none."""
        parts = [low.astype(np.int64) | np.int64(high << HALF) for high, low in self._low.items()]
        return FewNumbers(np.concatenate([*parts, np.unique(numbers)]))


class KnownBlocks:
    """Numbers above the last compaction are known, and of those before it the ones that it kept."""

    __slots__ = ("_before", "_kept", "_missing")

    def __init__(self) -> None:
        self._kept = FewNumbers(np.empty(0, np.int64))
        self._before = 0  # numbers up to this one are known only if kept
        self._missing: set[int] = set()  # above that, and not recorded: something over them was left out

    @property
    def index_bytes(self) -> int:
        """Memory that it takes."""
        return self._kept.nbytes

    def compacted(self, kept: Numbers, before: int) -> None:
        """Of the blocks up to a number only these are left."""
        self._kept, self._before = FewNumbers(kept), max(before, self._before)
        self._missing = {number for number in self._missing if number > self._before}

    def has(self, numbers: Numbers) -> Mask:
        """Whether each can be named in a record."""
        known: Mask = numbers > self._before
        if not known.all():
            known |= self._kept.has(numbers)
        if self._missing:
            known &= ~np.isin(numbers, list(self._missing))
        return known

    def take(self, nodes: BlockNodes) -> Mask:
        """Reported blocks: whether each can be recorded. Those that cannot are missing from now on."""
        known = (nodes.parent < 0) | self.has(nodes.parent)
        if not known.all() or self._missing:
            reported: set[int] = set()
            for index, (number, parent) in enumerate(zip(nodes.number.tolist(), nodes.parent.tolist(), strict=True)):
                known[index] = parent in reported or (known[index] and parent not in self._missing)  # one of these, too
                (reported if known[index] else self._missing).add(number)
            self._missing -= reported
        again = nodes.number[known]
        again = again[~self.has(again)]
        if len(again):
            self._kept = self._kept.more(again)
        return known
