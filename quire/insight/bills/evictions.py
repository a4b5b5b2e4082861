"""Evictions: how many bytes of each account's pages went to make room for whom. In arrays: a step may evict for many.

Owns only numbers of accounts; what they are called is in the lines. Takes 8 bytes for each pair of accounts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


class Evictions:
    """Since they were last taken."""

    def __init__(self) -> None:
        self._bytes: Int64 = np.zeros((0, 0), np.int64)

    def add(self, lost: Int64, taken: Int64) -> None:
        """Bytes that each account lost, and that were needed for each, one sum: one after the other, in few parts."""
        losers, takers = lost.nonzero()[0], taken.nonzero()[0]
        lost_ends, taken_ends = lost[losers].cumsum(), taken[takers].cumsum()
        ends = np.sort(np.concatenate([lost_ends, taken_ends]))
        parts = ends.copy()
        parts[1:] -= ends[:-1]
        self._grow(max(len(lost), len(taken)))
        whose, whom = losers[lost_ends.searchsorted(ends)], takers[taken_ends.searchsorted(ends)]
        np.add.at(self._bytes, (whose, whom), parts)

    def _grow(self, accounts: int) -> None:
        if accounts > len(self._bytes):
            old = len(self._bytes)
            more = np.zeros((2 * accounts, 2 * accounts), np.int64)
            more[:old, :old] = self._bytes
            self._bytes = more

    def take(self) -> list[tuple[int, int, int]]:
        """Account, for whom, and bytes; they start anew."""
        whose, whom = self._bytes.nonzero()
        told = list(zip(whose.tolist(), whom.tolist(), self._bytes[whose, whom].tolist(), strict=True))
        self._bytes[:] = 0
        return told


def split_array(number: int, weights: Int64) -> Int64:
    """As `split`: a whole number in parts that go by the weights, of which some is not 0."""
    each, rest = divmod(number, int(weights.sum()))
    parts: Int64 = each * weights + rest * weights // weights.sum()
    left = number - int(parts.sum())
    parts[weights.nonzero()[0][:left]] += 1
    return parts
