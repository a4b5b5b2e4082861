"""Margins: by how much a first token may come later than was expected, so that a share of all bounds is kept.

margin = the quantile of (took - expected) / (expected + a full step) over the last bounds of about as many steps,
         those that had to wait for a seat apart: how long answers are is known less well than what prompts cost

This assumes no distribution. What happens corrects it: each broken bound adds to all margins, each kept one takes a
little of that back, so that over time the share is kept also where the load changes and bounds break together. It aims
a little beyond the share (`AHEAD`).
Old ones count no more after a while: an engine that refused all it was asked shall try again. Knows no engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil, log

from quire.core.records.errors import InputError, say, shown

KEPT = 256  # of one class
CLASSES = 8  # by powers of two of the steps that were expected; twice, with and without a wait for a seat
FEWEST = 48  # of a class; else all with, or without, such a wait are looked at
FIRST = 1.0  # the margin before there are enough; more for shares above 0.95
LEAST = 0.0
MOST_AGE = 900.0  # seconds
MOST_MORE = 20.0
MORE = 1.05  # times the largest that was seen, before there are enough
TAIL = 0.8  # of those seen: behind it they are taken for exponential, where too few were seen to say more
GAIN = 0.4  # of a margin, that a broken bound adds
AHEAD = 0.15  # of the way from the share to all of them
SMALLEST = 0.1  # a margin that this is added to, even where all came early


class Margins:
    """One engine's, for one share of bounds to keep."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        checked_share(share)
        self.share, self._clock = float(share), clock
        self._aim = share + (1 - share) * AHEAD
        self._first = FIRST * max(1.0, log(1 - share) / log(0.05))
        self._more = 0.0  # of a margin, by what was broken lately
        self._late: list[deque[tuple[float, float]]] = [deque(maxlen=KEPT) for _ in range(2 * CLASSES)]  # when, which

    def __repr__(self) -> str:
        return f"Margins({self.share:g}, {sum(map(len, self._late))} latenesses)"

    def note(self, steps: float, late: float, *, kept: bool, seat: bool = False) -> None:
        """A first token came so much later than expected, by what was expected and a full step. Its bound was kept?"""
        self._late[_class_of(steps, seat)].append((self._clock(), late))
        self._more = min(MOST_MORE, max(0.0, self._more + GAIN * ((not kept) - (1 - self._aim))))

    def margin(self, steps: float, seat: bool = False) -> float:
        """Of a first token that is expected after so many steps, and behind a wait for a seat or not."""
        found = self._young(self._late[_class_of(steps, seat)])
        if len(found) < FEWEST:
            alike = self._late[CLASSES:] if seat else self._late[:CLASSES]
            found = [late for some in alike for late in self._young(some)]
        if len(found) < FEWEST:
            return max([self._first, *(MORE * late for late in found)])
        margin = max(LEAST, quantile(found, self._aim))
        if len(found) + 1 < 1 / (1 - self._aim):  # so few that it may lie beyond all of them, and nobody has seen it
            margin = max(margin, self._first)
        return margin + self._more * max(SMALLEST, margin)

    def _young(self, latenesses: deque[tuple[float, float]]) -> list[float]:
        oldest = self._clock() - MOST_AGE
        while latenesses and latenesses[0][0] < oldest:
            latenesses.popleft()
        return [late for _, late in latenesses]


def quantile(found: list[float], share: float) -> float:
    """Of what was seen; of so few that none or one would lie beyond it, at least as their tail goes on."""
    found.sort()
    count, begin = len(found), int(TAIL * len(found))
    place = ceil(share * (count + 1)) - 1
    if place < count - 2:
        return found[place]
    excess = sum(found[begin:]) / (count - begin) - found[begin - 1]
    tail = found[begin - 1] + excess * log((1 - begin / count) / (1 - share))
    return max(tail, found[min(place, count - 1)])


def checked_share(share: object) -> None:
    """Refuse what is not a share of bounds that can be aimed at. None: none is kept."""
    if share is None:
        return
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.5 <= share <= 0.999:
        ask = f"deadlines {shown(share)}"
        raise InputError(say(ask, "it is not a share of bounds to keep", "give 0.5 to 0.999, as 0.95, or None"))


def _class_of(steps: float, seat: bool) -> int:
    return min(CLASSES - 1, max(1, ceil(steps)).bit_length() - 1) + CLASSES * seat
