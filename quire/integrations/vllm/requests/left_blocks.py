"""LeftBlocks: which of vLLM's blocks may have something in them that is still to be stored. Knows their numbers only,
and in which groups that was.

vLLM says with every step which blocks it hands out; mostly none of these is among them, and that is seen at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from quire.integrations.vllm.common.request_tokens import read_tokens

FIRST_ROOM = 1024  # blocks; more when there are more


class LeftBlocks:
    """Of one engine. What was stored since is among them until none is left of any stay."""

    def __init__(self, groups: int) -> None:
        self._is_empty = True
        self._set_room(groups, FIRST_ROOM)

    def _set_room(self, groups: int, room: int) -> None:
        self._is_left = np.zeros((groups, room), np.bool_)  # in several groups: left in one, and in another before
        self._read = [row.data for row in self._is_left]  # one of them costs less from it

    def add(self, tables: Sequence[list[int]], first: int, stop: int) -> None:
        """The blocks [first, stop) of these tables, one of each group, are left."""
        self._is_empty = False
        for group, table in enumerate(tables):
            numbers = np.empty(stop - first, np.int32)
            read_tokens(table, first, numbers)
            try:
                self._is_left[group][numbers] = True
            except IndexError:
                before = self._is_left
                groups, room = before.shape
                self._set_room(groups, max(int(numbers.max()) + 1, 2 * room))
                self._is_left[:, :room] = before
                self._is_left[group][numbers] = True

    def clear(self) -> None:
        """No stay has left blocks."""
        if not self._is_empty:
            self._is_left.fill(False)
            self._is_empty = True

    def among(self, taken: AbstractSet[int]) -> dict[int, list[int]]:
        """Those of these blocks that may be left of a stay, by group."""
        found: dict[int, list[int]] = {}
        room = len(self._read[0])
        for block in taken:
            if block < room:
                for group, read in enumerate(self._read):
                    if read[block]:
                        found.setdefault(group, []).append(block)
        return found
