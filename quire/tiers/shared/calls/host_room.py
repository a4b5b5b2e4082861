"""HostRoom: how many host slots the pages of requests that are not claimed yet may take. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock


class HostRoom:
    """Slots per pool, taken all or none."""

    def __init__(self, slots: Sequence[int]) -> None:
        self._left, self._lock = list(slots), Lock()

    def take(self, counts: Sequence[int]) -> bool:
        """Whether so many are left; they are taken then."""
        with self._lock:
            if any(count > left for count, left in zip(counts, self._left, strict=True)):
                return False
            self._left = [left - count for count, left in zip(counts, self._left, strict=True)]
            return True

    def give_back(self, counts: Sequence[int]) -> None:
        """They are free again."""
        with self._lock:
            self._left = [left + count for count, left in zip(counts, self._left, strict=True)]
