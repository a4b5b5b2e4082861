"""AnswerLengths: how many tokens an answer still makes, by those that ended lately. Knows no answer."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

KEPT = 512  # answers
REFIT = 8  # answers
FEWEST = 16  # before that an answer is as long as it may be


class RunningAnswer(NamedTuple):
    """One that has pages, and gives them back when it ends."""

    made: int  # tokens
    most: int  # that it may make
    pages: int


class AnswerLengths:
    """Of the last answers. One that was cut at its limit says only that it would have been longer (Kaplan, Meier)."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, bool]] = deque(maxlen=KEPT)  # tokens, and whether it was cut
        self._fresh = 0  # since these were made:
        self._ends: list[int] = []  # their lengths, ascending
        self._share: list[float] = []  # of all answers, those longer than that
        self._area: list[float] = []  # tokens up to there that answers make on average

    def __repr__(self) -> str:
        return f"AnswerLengths({len(self._kept)} answers)"

    def note(self, length: int, *, cut: bool = False) -> None:
        """An answer has ended, or was cut at its limit."""
        self._kept.append((length, cut))
        self._fresh += 1

    def left(self, made: int, most: int) -> float:
        """Tokens that one with so many is going to make on average, at most `most` in all."""
        ceiling = max(1, most - made)
        if len(self._kept) < FEWEST:
            return ceiling
        if self._fresh >= REFIT or not self._ends:
            self._fit()
        area, longer = self._up_to(made)
        return min(ceiling, (self._up_to(made + ceiling)[0] - area) / longer) if longer > 0 else ceiling

    def _up_to(self, tokens: int) -> tuple[float, float]:
        """Tokens that an answer has on average, if it is cut there, and the share of those that are longer."""
        place = bisect_right(self._ends, tokens) - 1
        if place < 0:
            return tokens, 1.0
        return self._area[place] + (tokens - self._ends[place]) * self._share[place], self._share[place]

    def _fit(self) -> None:
        self._ends, self._share, self._area, self._fresh = [], [], [], 0
        before, area, share = 0, 0.0, 1.0
        count = len(self._kept)
        for nth, (length, cut) in enumerate(sorted(self._kept)):
            area, before = area + (length - before) * share, length
            share *= 1.0 if cut else 1.0 - 1.0 / (count - nth)
            self._ends.append(length)
            self._area.append(area)
            self._share.append(share)

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
