"""Columns: a table of numbers that grows at its end and is cut at its beginning. Knows no meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST = 1 << 8


class Columns:
    """Rows of numbers by column name; `columns[name]` is a view, good until the next `add` or `drop`."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._rows = np.zeros(_LEAST, [(name, kind) for name, kind in kinds.items()])
        self._count = 0
        self.width = len(kinds)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> NDArray[Any]:
        found: NDArray[Any] = self._rows[name][: self._count]
        return found

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return self._rows.nbytes

    def add(self, *numbers: float) -> None:
        """One more row."""
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[self._count] = numbers
        self._count += 1

    def drop(self, count: int) -> None:
        """The first rows go."""
        kept = self._rows[count : self._count]
        size = _LEAST
        while size < len(kept):
            size *= 2
        rows = np.zeros(size, self._rows.dtype)
        rows[: len(kept)] = kept
        self._rows, self._count = rows, len(kept)

    def copied(self, first: int = 0) -> dict[str, NDArray[Any]]:
        """The columns from a row on, as arrays of their own."""
        names = self._rows.dtype.names
        assert names is not None
        return {name: np.ascontiguousarray(self._rows[name][first : self._count]) for name in names}
