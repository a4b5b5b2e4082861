"""Histogram: percentiles of any number of values in bounded memory, to within a per cent."""

from __future__ import annotations

from collections import Counter
from typing import Any

EXACT = 7  # bits of a value that are kept: below 128 it is exact
PERCENTILES = (50, 90, 99)


class Histogram:
    """Counts of whole numbers from 0 on, by their leading bits."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self._sum = 0.0
        self._least: int | None = None
        self._most = 0

    def add(self, value: int) -> None:
        """One more."""
        shift = max(value.bit_length() - EXACT, 0)
        self._counts[value >> shift << shift] += 1
        self.count += 1
        self._sum += value
        self._least = value if self._least is None else min(self._least, value)
        self._most = max(self._most, value)

    def percentile(self, percent: float) -> int:
        """The value below which so many of them are; 0 without any."""
        wanted, seen = self.count * percent / 100, 0
        for low in sorted(self._counts):
            seen += self._counts[low]
            if seen >= wanted:
                return min(low + (1 << max(low.bit_length() - EXACT, 0)) // 2, self._most)
        return 0

    def to_json(self, scale: float = 1.0) -> dict[str, Any]:
        """Mean, percentiles and extremes, times `scale`."""
        if not self.count:
            return {"count": 0}
        numbers = {"mean": self._sum / self.count, "least": self._least or 0}
        numbers |= {f"p{percent}": self.percentile(percent) for percent in PERCENTILES}
        numbers["most"] = self._most
        return {"count": self.count, **{name: _round(number * scale) for name, number in numbers.items()}}


def _round(number: float) -> float | int:
    return int(number) if number == int(number) else round(number, 3)
