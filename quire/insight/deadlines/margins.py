"""Margins: by what factor a first token may come later than was expected, so that a share of all bounds is kept.

factor = the quantile of (how long it took / how long was expected) over the last bounds of about as many steps

This assumes no distribution. The level follows what happens: each broken bound raises it, each kept one lowers it a
little, so that over time the share is kept also where the load changes. It aims a third of the way beyond the share.
Old ratios count no more after a while: an engine that refused all it was asked shall try again. Knows no engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil

from quire.core.records.errors import InputError, say, shown

KEPT = 256  # ratios of one class
CLASSES = 8  # by powers of two of the steps that were expected
FEWEST = 48  # of a class; else all are looked at
FIRST = 2.0  # the factor before there are enough
LEAST = 1.0
MOST_AGE = 900.0  # seconds
BEYOND = 1.05  # of the largest ratio that was seen, where even that is not enough
PACE = 0.05  # how fast the level follows, of what may be broken


class Margins:
    """One engine's, for one share of bounds to keep."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        checked_share(share)
        self.share, self._clock = float(share), clock
        self._aim = share + (1 - share) / 3
        self._level = self._aim
        self._ratios: list[deque[tuple[float, float]]] = [deque(maxlen=KEPT) for _ in range(CLASSES)]  # when, which

    def __repr__(self) -> str:
        return f"Margins({self.share:g}, {sum(map(len, self._ratios))} ratios)"

    def note(self, steps: float, expected: float, took: float, *, kept: bool) -> None:
        """A first token came after so long, and its bound was kept or not."""
        self._ratios[_class_of(steps)].append((self._clock(), took / max(expected, 1e-9)))
        allowed, pace = 1 - self._aim, PACE * (1 - self._aim)
        self._level = min(0.9999, max(self.share, self._level + pace * ((not kept) - allowed)))

    def factor(self, steps: float) -> float:
        """Of a first token that is expected after so many steps."""
        found = self._young(self._ratios[_class_of(steps)])
        if len(found) < FEWEST:
            found = [ratio for some in self._ratios for ratio in self._young(some)]
        if len(found) < FEWEST:
            return max([FIRST, *(BEYOND * ratio for ratio in found)])
        found.sort()
        place = ceil(self._level * (len(found) + 1)) - 1
        return max(LEAST, found[place] if place < len(found) else found[-1] * BEYOND)

    def _young(self, ratios: deque[tuple[float, float]]) -> list[float]:
        oldest = self._clock() - MOST_AGE
        while ratios and ratios[0][0] < oldest:
            ratios.popleft()
        return [ratio for _, ratio in ratios]


def checked_share(share: object) -> None:
    """Refuse what is not a share of bounds that can be aimed at. None: none is kept."""
    if share is None:
        return
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.5 <= share <= 0.999:
        ask = f"deadlines {shown(share)}"
        raise InputError(say(ask, "it is not a share of bounds to keep", "give 0.5 to 0.999, as 0.95, or None"))


def _class_of(steps: float) -> int:
    return min(CLASSES - 1, max(1, ceil(steps)).bit_length() - 1)
