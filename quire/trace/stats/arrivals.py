"""Arrivals: how many requests come, and how unevenly. Knows only their times, in the order of the file."""

from __future__ import annotations

from math import floor, sqrt
from typing import Any

WINDOWS = (1, 10, 60)  # seconds


class Arrivals:
    """Gaps between requests, and the fullest second, ten seconds and minute."""

    def __init__(self) -> None:
        self.count = 0
        self.unordered = 0  # that stand behind a later one
        self._first = self._last = 0.0
        self._mean = self._squares = 0.0  # of gaps, as Welford adds them up
        self._windows = dict.fromkeys(WINDOWS, (0, 0, 0))  # which one, how many in it, most so far

    def add(self, time: float) -> None:
        """One more, in seconds."""
        if self.count:
            self.unordered += time < self._last
            gap = max(time - self._last, 0.0)
            off = gap - self._mean
            self._mean += off / self.count
            self._squares += off * (gap - self._mean)
        else:
            self._first = time
        self._first, self._last = min(self._first, time), max(self._last, time) if self.count else time
        self.count += 1
        for width, (place, number, most) in self._windows.items():
            here = floor((time - self._first) / width)
            number = number + 1 if here == place else 1
            self._windows[width] = here, number, max(most, number)

    @property
    def seconds(self) -> float:
        """From the first to the last."""
        return self._last - self._first

    def to_json(self) -> dict[str, Any]:
        """Rates per second; `burstiness` is the gaps' standard deviation over their mean: 1 for a Poisson stream."""
        facts: dict[str, Any] = {"requests": self.count, "seconds": round(self.seconds, 3)}
        if self.unordered:
            facts["out_of_order"] = self.unordered
        if self.count < 2 or not self.seconds:
            return facts
        facts["per_second"] = round((self.count - 1) / self.seconds, 4)
        facts["burstiness"] = round(sqrt(self._squares / (self.count - 1)) / max(self._mean, 1e-12), 3)
        facts["most_per_second"] = {
            f"{width}_s": round(most / width, 3) for width, (_, _, most) in self._windows.items()
        }  # fmt: skip
        return facts
