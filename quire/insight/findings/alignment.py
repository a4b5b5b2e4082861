"""Alignment: two prompts side by side, chunk by chunk: what is equal, in which order, and what stands between.

earlier   S  9:00  I  J  K             prompt   S  9:05  I  J  K  new
common: S     runs: I J K at one place each     gap: 9:05 for 9:00
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.trace.units import Int32, Int64

MOST_RUNS = 200  # the longest ones are looked at
LEAST_EQUAL = 32  # tokens that are equal again
LEAST_MOVED = 16  # tokens of a piece
LEAST_CUT = 48  # tokens by which a history got shorter
LEAST_COVER = 0.4  # of an earlier history that is still there: one document of several is none
SHORT = 64  # tokens of a change that is a word, a time or an id


class Change(StrEnum):
    """How a prompt differs from an earlier one that has the same text."""

    CHANGED = "changed"  # some tokens are others, what follows is equal
    ORDER = "order"  # the same pieces in another order
    CUT = "cut"  # what stood in front is gone, or something shorter stands in its place


class EqualRun(NamedTuple):
    """Equal chunks: where they begin in both, and how many they are."""

    mine: int
    other: int
    chunks: int
    tokens: int


@dataclass(slots=True)
class Alignment:
    """What two prompts have in common."""

    mine: Int32
    other: Int32
    common: int  # leading chunks
    runs: list[EqualRun]  # behind them, in the order of `mine`
    kept: list[EqualRun]  # those of them that stand in one order in both: as many tokens as can
    mine_ends: Int64  # tokens up to the end of each chunk
    other_ends: Int64

    @property
    def place(self) -> int:
        """Tokens of the common beginning."""
        return int(self.mine_ends[self.common - 1]) if self.common else 0

    @property
    def equal_after(self) -> int:
        """Tokens of the runs."""
        return sum(run.tokens for run in self.runs)

    @property
    def moved(self) -> int:
        """Tokens of runs that stand in another order and are no mere word or two."""
        kept = set(self.kept)
        return sum(run.tokens for run in self.runs if run.tokens >= LEAST_MOVED and run not in kept)

    def gap(self) -> tuple[int, int]:
        """Tokens between the common beginning and the first run in both."""
        first = self.kept[0]
        return start_of(self.mine_ends, first.mine) - self.place, start_of(self.other_ends, first.other) - self.place

    @property
    def rest_of_other(self) -> int:
        """Tokens of the earlier prompt behind its last equal chunk."""
        last = self.kept[-1]
        return int(self.other_ends[-1] - self.other_ends[last.other + last.chunks - 1])

    @property
    def swapped(self) -> list[EqualRun]:
        """Runs that change places with another."""
        others = np.array([run.other for run in self.runs])
        before = np.maximum.accumulate(np.append(-1, others[:-1]))  # the last of those in front
        behind = np.minimum.accumulate(np.append(others[1:], len(self.other))[::-1])[::-1]
        is_swapped = (before > others) | (behind < others)
        return [self.runs[place] for place in np.flatnonzero(is_swapped).tolist()]

    @property
    def dense(self) -> float:
        """The equal part of where runs change places, in the prompt that has less of it."""
        swapped = self.swapped
        mine = max(int(self.mine_ends[run.mine + run.chunks - 1]) for run in swapped)
        mine -= min(start_of(self.mine_ends, run.mine) for run in swapped)
        other = max(int(self.other_ends[run.other + run.chunks - 1]) for run in swapped)
        other -= min(start_of(self.other_ends, run.other) for run in swapped)
        return sum(run.tokens for run in swapped) / max(mine, other)

    @property
    def cover(self) -> float:
        """The part of what the earlier prompt had behind the common beginning that is here."""
        return self.equal_after / max(int(self.other_ends[-1]) - self.place, 1)


def start_of(ends: Int64, chunk: int) -> int:
    """The first token of a chunk."""
    return int(ends[chunk - 1]) if chunk else 0


def align(mine: Int32, my_sizes: Int32, other: Int32, other_sizes: Int32) -> Alignment:
    """A prompt and an earlier one."""
    count = min(len(mine), len(other))
    same = mine[:count] == other[:count]
    common = count if same.all() else int(same.argmin())
    mine_ends, other_ends = (np.cumsum(sizes, dtype=np.int64) for sizes in (my_sizes, other_sizes))
    at, there = _matches(mine[common:], other[common:])
    aligned = Alignment(mine, other, common, [], [], mine_ends, other_ends)
    aligned.runs = _runs(at + common, there + common, aligned)
    aligned.kept = _longest_order(aligned.runs)
    return aligned


def _matches(mine: Int32, other: Int32) -> tuple[Int64, Int64]:
    """Places of chunks that stand once in both, in the order of `mine`."""
    names, at, mine_count = np.unique(mine, return_index=True, return_counts=True)
    others, there, other_count = np.unique(other, return_index=True, return_counts=True)
    _, left, right = np.intersect1d(
        names[mine_count == 1], others[other_count == 1], assume_unique=True, return_indices=True
    )  # fmt: skip
    at, there = at[mine_count == 1][left], there[other_count == 1][right]
    order = np.argsort(at)
    return at[order], there[order]


def _runs(at: Int64, there: Int64, aligned: Alignment) -> list[EqualRun]:
    """Places in a row, and the equal chunks beside them: those that stand there several times."""
    if not len(at):
        return []
    breaks: NDArray[np.bool_] = (np.diff(at) != 1) | (np.diff(there) != 1)
    firsts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    counts = np.diff(np.append(firsts, len(at)))
    mine, other, runs = aligned.mine.tolist(), aligned.other.tolist(), list[EqualRun]()
    least, place = aligned.common, 0  # where the run before ends
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        begin, there_begin = int(at[first]), int(there[first])
        end = begin + count
        if end <= place:
            continue
        cut = max(place - begin, 0)
        begin, there_begin = begin + cut, there_begin + cut
        while begin > max(least, place) and there_begin > least and mine[begin - 1] == other[there_begin - 1]:
            begin, there_begin = begin - 1, there_begin - 1
        shift = there_begin - begin
        while end < len(mine) and end + shift < len(other) and mine[end] == other[end + shift]:
            end += 1
        place = end
        tokens = int(aligned.mine_ends[end - 1]) - start_of(aligned.mine_ends, begin)
        runs.append(EqualRun(begin, there_begin, end - begin, tokens))
    if len(runs) > MOST_RUNS:
        runs = sorted(sorted(runs, key=lambda run: -run.tokens)[:MOST_RUNS])
    return runs


def _longest_order(runs: list[EqualRun]) -> list[EqualRun]:
    """Runs that stand in one order in both prompts, with the most tokens."""
    ends: list[tuple[int, int, int]] = []  # best orders so far: where they end in the other, tokens, their last run
    before: list[int] = []
    for number, run in enumerate(runs):
        place = bisect_left(ends, (run.other,))
        _, tokens, prior = ends[place - 1] if place else (0, 0, -1)
        before.append(prior)
        tokens += run.tokens
        end = place
        while end < len(ends) and ends[end][1] <= tokens:  # they end later and have no more
            end += 1
        ends[place:end] = [(run.other, tokens, number)]
    kept = []
    number = ends[-1][2] if ends else -1
    while number >= 0:
        kept.append(runs[number])
        number = before[number]
    return kept[::-1]


def change_of(pair: Alignment, known: int, chunk: int) -> Change | None:
    """How they differ, if it is one of the known ways.

    `known`: tokens of the prompt behind the common beginning that any earlier prompt had; `chunk`: tokens of a chunk in
    the mean: what stands beside a difference counts as different up to the next cut.
    """
    short = SHORT + 4 * chunk
    after = pair.equal_after
    if not pair.runs or after < LEAST_EQUAL:
        return None
    if pair.moved >= LEAST_EQUAL:
        return Change.ORDER if after >= 0.5 * known and pair.dense >= 0.7 else None
    mine, other = pair.gap()
    if other - mine >= LEAST_CUT and pair.rest_of_other <= short and pair.cover >= LEAST_COVER:
        return Change.CUT
    if max(mine, other) <= short or (pair.cover >= 0.5 and after >= max(mine, other)):
        return Change.CHANGED
    return None
