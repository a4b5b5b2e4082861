"""Pairs: prompts beside the earlier one that has most of their lost text, and groups of them that differ in one way.

A group is an application: its requests have the group's text in common. Knows chunks; no tokens.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from quire.core.content.content_chunks import MEAN_BITS
from quire.insight.findings.alignment import LEAST_EQUAL, Alignment, Change, align, change_of
from quire.insight.findings.applications import Applications
from quire.insight.findings.prompt_rows.lost_text import LostText
from quire.insight.findings.prompt_rows.prompt_log import PromptLog
from quire.trace.units import Int64

MOST_PAIRS = 2000  # that are looked at, evenly over the log
LEAST_LOST = 0.02  # of a prompt's tokens
LEAST_PAIRS = 4  # of an application that differ in one way
MOSTLY = 0.5  # of an application's pairs: what they are beside is the same one
STATIC = 0.5  # of the pairs whose changed text is followed by one and the same


@dataclass(slots=True)
class Pair:
    """A prompt, an earlier one, and how they differ."""

    request: int
    other: int
    change: Change
    aligned: Alignment


@dataclass(slots=True, eq=False)
class Group:
    """Pairs that differ in one way and have text in common."""

    change: Change
    pairs: list[Pair]
    members: Int64  # requests that have this text
    looked: int  # members that were looked at and had lost text


class Pairs:
    """Finds pairs in one log."""

    def __init__(self, log: PromptLog, lost: LostText) -> None:
        self.log, self.lost = log, lost
        self.chunk = 1 << (MEAN_BITS + log.level)

    def pair_of(self, request: int) -> Pair | None:
        """The prompt beside an earlier one, if it lost text and differs in a known way."""
        other = self.predecessor(request)
        if other < 0:
            return None
        pair = self.beside(request, other, Change.CHANGED)
        lost = self.lost
        known = int(lost.lost_tokens[request]) + max(int(lost.hit_tokens[request]) - pair.aligned.place, 0)
        change = change_of(pair.aligned, known, self.chunk)
        return None if change is None else Pair(request, other, change, pair.aligned)

    def beside(self, request: int, other: int, change: Change) -> Pair:
        """Two prompts, side by side."""
        log = self.log
        aligned = align(log.chunks_of(request), log.sizes_of(request), log.chunks_of(other), log.sizes_of(other))
        return Pair(request, other, change, aligned)

    def continued(self, request: int) -> int:
        """The latest earlier request that begins as this one does, for as long as any does; -1: none."""
        first, end = (int(place) for place in self.log.starts[request : request + 2])
        count = int(self.lost.found[first:end].sum())
        return int(self.lost.continued[first + count - 1]) if count else -1

    def has_lost(self) -> Int64:
        """Requests that lost text worth a look."""
        least = np.maximum(LEAST_EQUAL, LEAST_LOST * self.log.lengths)
        return np.flatnonzero(self.lost.lost_tokens >= least)

    def predecessor(self, request: int) -> int:
        """The earlier request that has most of what this one lost, of equals the latest; -1: nothing is lost."""
        bounds = slice(self.log.starts[request], self.log.starts[request + 1])
        which = ~self.lost.found[bounds] & (self.lost.earlier[bounds] >= 0)
        if not which.any():
            return -1
        others, inverse = np.unique(self.lost.earlier[bounds][which], return_inverse=True)
        weights = np.bincount(inverse, self.log.sizes[bounds][which])
        return int(others[len(weights) - 1 - int(weights[::-1].argmax())])

    def groups(self) -> list[Group]:
        """All of the log: by application, and at last those of no application that has several."""
        wanted = self.has_lost()
        looked = wanted[np.linspace(0, len(wanted) - 1, min(len(wanted), MOST_PAIRS)).astype(np.int64)]
        pairs = [pair for request in looked.tolist() if (pair := self.pair_of(request)) is not None]
        of = self._applications(looked, pairs)
        by_change: dict[Change, dict[int, list[Pair]]] = defaultdict(lambda: defaultdict(list))
        for pair in pairs:
            by_change[pair.change][int(of[pair.request])].append(pair)
        groups = []
        for change, found in by_change.items():
            kept: list[Group] = []
            for number, inner in found.items():
                if number >= 0 and len(inner) >= LEAST_PAIRS:
                    kept += self._group(change, inner, np.flatnonzero(of == number), looked)
            rest = [pair for number, inner in found.items() if number < 0 or len(inner) < LEAST_PAIRS for pair in inner]
            others = np.setdiff1d(looked, np.concatenate([looked[:0], *(group.members for group in kept)]))
            groups += kept + self._group(change, rest, np.union1d(others, [pair.other for pair in rest]), looked)
        return groups

    def _applications(self, looked: Int64, pairs: list[Pair]) -> Int64:
        """Numbers of all requests; -1: of none. What lost text of another application belongs to that one."""
        of = np.full(len(self.log), -1, np.int64)
        beside: dict[int, list[int]] = defaultdict(list)  # the applications of what is beside its requests
        for number, members in enumerate(Applications(self.log).of(looked)):
            of[members] = number
        for pair in pairs:
            if of[pair.request] < 0:
                of[pair.request] = of[pair.other]
            beside[int(of[pair.request])].append(int(of[pair.other]))
        for number, others in sorted(beside.items(), key=lambda one: len(one[1])):  # the smallest first
            home, count = Counter(others).most_common(1)[0]
            if number >= 0 and home not in (-1, number) and count > MOSTLY * len(others):
                of[of == number] = home
        return of

    def _group(self, change: Change, pairs: list[Pair], members: Int64, looked: Int64) -> list[Group]:
        """One, if what follows the change stays."""
        stay = self._that_stay(pairs) if change is Change.CHANGED else pairs
        members = members.astype(np.int64)
        return [Group(change, stay, members, int(np.isin(looked, members).sum()))] if stay else []

    def _that_stay(self, pairs: list[Pair]) -> list[Pair]:
        """What follows the change stays the same: the whole earlier prompt does, or most prompts here have it."""
        firsts = np.array([pair.aligned.mine[pair.aligned.kept[0].mine] for pair in pairs], np.int32)
        counts = np.zeros(len(pairs), np.int64)
        for pair in pairs:
            counts += np.isin(firsts, pair.aligned.mine)
        return [
            pair for pair, count in zip(pairs, counts.tolist(), strict=True)
            if pair.aligned.cover >= STATIC or count >= STATIC * len(pairs)
        ]  # fmt: skip
