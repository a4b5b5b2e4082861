"""RunningSums: a row of numbers whose sums up to a place are known at once (a Fenwick tree). Knows no blocks."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray


class RunningSums:
    """Numbers at places 0, 1, ...; `add` and `after` take time by the logarithm of their number."""

    def __init__(self, numbers: NDArray[np.int64], room: int) -> None:
        """The first ones; `room` places in all, rounded up to a power of two."""
        size = 1
        while size < room:
            size *= 2
        sums = np.zeros(size + 1, np.int64)
        sums[1 : len(numbers) + 1] = numbers
        np.cumsum(sums, out=sums)
        places = np.arange(size + 1)
        self.total = int(sums[-1])
        self._tree = array("q", (sums - sums[places - (places & -places)]).tobytes())
        self._size = size

    def __len__(self) -> int:
        return self._size

    def add(self, place: int, number: int) -> None:
        """To the number at a place."""
        tree, size = self._tree, self._size
        self.total += number
        place += 1
        while place <= size:
            tree[place] += number
            place += place & -place

    def after(self, place: int) -> int:
        """The sum of all numbers behind a place."""
        tree, found = self._tree, self.total
        place += 1
        while place:
            found -= tree[place]
            place &= place - 1
        return found
