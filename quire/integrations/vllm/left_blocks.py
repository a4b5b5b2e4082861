"""LeftBlocks: which of vLLM's blocks have something in them that is still to be stored. Knows numbers of blocks only.

vLLM says with every step which blocks it hands out; mostly none of these is among them, and that is seen at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from quire.integrations.vllm.request_tokens import read_tokens

FIRST_ROOM = 1024  # blocks; more when there are more
Numbers = NDArray[np.int32]


class LeftBlocks:
    """Of one engine: what is left of all stays; two of them may share a block."""

    def __init__(self) -> None:
        self._stays = np.zeros(FIRST_ROOM, np.uint16)  # by vLLM's block: stays of which it is left
        self._read = self._stays.data  # one number costs less from it

    def _make_room(self, least: int) -> None:
        more = max(least, 2 * len(self._stays)) - len(self._stays)
        self._stays = np.concatenate([self._stays, np.zeros(more, np.uint16)])
        self._read = self._stays.data

    def add(self, tables: Sequence[list[int]], first: int, stop: int) -> Numbers:
        """The blocks [first, stop) of a stay are left; returns vLLM's numbers for them, for `remove`."""
        numbers: Numbers = np.empty((len(tables), stop - first), np.int32)
        for table, row in zip(tables, numbers, strict=True):
            read_tokens(table, first, row)
        most = int(numbers.max(initial=0))
        if most >= len(self._stays):
            self._make_room(most + 1)
        self._stays[numbers] += 1  # a number that is there twice, as the null block, counts once
        return numbers

    def remove(self, numbers: Numbers) -> None:
        """They are stored, or will not be."""
        self._stays[numbers] -= 1

    def among(self, taken: AbstractSet[int]) -> list[int]:
        """Those of these blocks that are left of somebody."""
        read, room = self._read, len(self._read)
        return [block for block in taken if block < room and read[block]]
