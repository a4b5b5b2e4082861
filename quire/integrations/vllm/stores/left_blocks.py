"""LeftBlocks: which of vLLM's blocks may have something in them that is still to be stored. Knows their numbers only.

vLLM says with every step which blocks it hands out; mostly none of these is among them, and that is seen at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from quire.integrations.vllm.request_tokens import read_tokens

FIRST_ROOM = 1024  # blocks; more when there are more


class LeftBlocks:
    """Of one engine. What was stored since is among them until nothing is left of anybody."""

    def __init__(self) -> None:
        self._is_empty = True
        self._set_room(FIRST_ROOM)

    def _set_room(self, room: int) -> None:
        self._is_left = np.zeros(room, np.bool_)
        self._read = self._is_left.data  # one of them costs less from it

    def add(self, tables: Sequence[list[int]], first: int, stop: int) -> None:
        """The blocks [first, stop) of these tables are left."""
        self._is_empty = False
        for table in tables:
            numbers = np.empty(stop - first, np.int32)
            read_tokens(table, first, numbers)
            try:
                self._is_left[numbers] = True
            except IndexError:
                before = self._is_left
                self._set_room(max(int(numbers.max()) + 1, 2 * len(before)))
                self._is_left[: len(before)] = before
                self._is_left[numbers] = True

    def clear(self) -> None:
        """Nothing is left of anybody."""
        if not self._is_empty:
            self._is_left.fill(False)
            self._is_empty = True

    def among(self, taken: AbstractSet[int]) -> list[int]:
        """Those of these blocks that may be left of somebody."""
        read, room = self._read, len(self._read)
        return [block for block in taken if block < room and read[block]]
