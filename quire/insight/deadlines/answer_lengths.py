"""AnswerLengths: how many tokens an answer still makes, by those that ended lately. Knows no answer."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

KEPT = 512  # answers
FEWEST = 16  # before that an answer is as long as it may be


class RunningAnswer(NamedTuple):
    """One that has pages, and gives them back when it ends."""

    made: int  # tokens
    most: int  # that it may make
    pages: int


class AnswerLengths:
    """Of the last answers."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._sorted: list[int] = []
        self._sums: list[int] = []  # of the sorted ones, from the longest on; made when asked for

    def __repr__(self) -> str:
        return f"AnswerLengths({len(self._order)} answers)"

    def note(self, length: int) -> None:
        """An answer has ended."""
        self._order.append(length)
        insort(self._sorted, length)
        if len(self._order) > KEPT:
            old = self._order.popleft()
            del self._sorted[bisect_right(self._sorted, old) - 1]
        self._sums = []

    def left(self, made: int, most: int) -> float:
        """Tokens that one with so many is going to make, at most `most` in all: the mean of those as long as that."""
        ceiling = max(1, most - made)
        if len(self._order) < FEWEST:
            return ceiling
        if not self._sums:
            self._sums = [*accumulate(reversed(self._sorted))][::-1]
        place = bisect_right(self._sorted, made)
        longer = len(self._sorted) - place
        if not longer:
            return ceiling
        return min(ceiling, self._sums[place] / longer - made)

    def turns(self, answers: Iterable[RunningAnswer], seats: int, pages: int) -> float:
        """Turns of decoding until so many seats and pages have come back. More than there are: several times."""
        if seats <= 0 and pages <= 0:
            return 0.0
        ends = sorted((self.left(one.made, one.most), one.pages) for one in answers)
        for left, held in ends:
            seats, pages = seats - 1, pages - held
            if seats <= 0 and pages <= 0:
                return left
        if not ends:
            return 0.0
        again = max(seats / len(ends), pages / max(1, sum(held for _, held in ends)))
        return ends[-1][0] + again * self.left(0, max(1, int(ends[-1][0])))
