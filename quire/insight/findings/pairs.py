"""Pairs: prompts beside the earlier one that has most of their lost text, and groups of them that differ in one way.

A group is an application: its requests have the group's text in common. Knows chunks; no tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quire.core.content.content_chunks import MEAN_BITS
from quire.insight.findings.alignment import LEAST_EQUAL, Alignment, Change, align, change_of
from quire.insight.findings.lost_text import LostText
from quire.insight.findings.prompt_log import PromptLog
from quire.trace.units import Int64

MOST_PAIRS = 2000  # that are looked at, evenly over the log
LEAST_LOST = 0.02  # of a prompt's tokens
LEAST_GROUP = 0.1  # of a way's pairs that have one text in common
NEARLY_ALL, MOST_TEXT = 0.8, 0.5  # of requests, that have a text in common; of this text
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
        self._request_of = log.request_of
        words = log.ids.astype(np.int64) << 32 | self._request_of
        first = np.unique(words, return_index=True)[1]
        self._is_first = np.zeros(len(words), bool)  # of equal chunks in a request
        self._is_first[first] = True
        self._requests_with = np.bincount(log.ids[first], minlength=1)  # of each chunk

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
        """All of the log."""
        wanted = self.has_lost()
        looked = wanted[np.linspace(0, len(wanted) - 1, min(len(wanted), MOST_PAIRS)).astype(np.int64)]
        pairs = [pair for request in looked.tolist() if (pair := self.pair_of(request)) is not None]
        by_change: dict[Change, list[Pair]] = defaultdict(list)
        for pair in pairs:
            by_change[pair.change].append(pair)
        groups = []
        for change, found in by_change.items():
            kept: list[Group] = []
            for members, inner in self._applications(found):
                inner = [pair for pair in inner if change is not Change.CHANGED or self._stays(pair, inner)]
                if members is None:  # any that is of no other
                    mine = np.setdiff1d(looked, np.concatenate([looked[:0], *(group.members for group in kept)]))
                    members = np.union1d(mine, [pair.other for pair in inner])
                if inner:
                    kept.append(Group(change, inner, members, int(np.isin(looked, members).sum())))
            groups += kept
        return groups

    def _applications(self, pairs: list[Pair]) -> Iterator[tuple[Int64 | None, list[Pair]]]:
        """Requests of an application, and the pairs among them; at last pairs of no application that stands out."""
        left = {pair.request: pair for pair in pairs}
        texts = {request: np.unique(self.log.chunks_of(request)) for request in left}
        rest: list[Pair] = []
        while left:
            chunks, counts = np.unique(np.concatenate([texts[request] for request in left]), return_counts=True)
            best = int((counts.astype(np.float64) ** 2 / self._requests_with[chunks]).argmax())
            key = int(chunks[best])
            having = [request for request in left if (texts[request] == key).any()]
            if len(having) < max(LEAST_GROUP * len(pairs), min(2, len(pairs))):
                break
            members = self._like(np.unique(self._request_of[self.log.ids == key]))
            inside = set(members.tolist())
            if found := [pair for request, pair in left.items() if request in inside]:
                yield members, found
            rest += [left[request] for request in having if request not in inside]
            left = {request: left[request] for request in left if request not in inside and request not in having}
        if rest := [*rest, *left.values()]:
            yield None, rest

    def _like(self, some: Int64) -> Int64:
        """Requests that have most of the text that nearly all of some have: their application, if it has any."""
        log = self.log
        texts = np.concatenate([np.unique(log.chunks_of(request)) for request in some.tolist()])
        chunks, counts = np.unique(texts, return_counts=True)
        common = chunks[counts >= NEARLY_ALL * len(some)]
        own = np.zeros(len(self._requests_with), np.int64)
        own[log.ids] = log.sizes
        is_common = np.zeros(len(own), bool)
        is_common[common] = True
        firsts = is_common[log.ids] & self._is_first
        tokens = np.bincount(self._request_of[firsts], log.sizes[firsts], len(log))
        least = MOST_TEXT * int(own[common].sum())
        return np.flatnonzero(tokens >= least) if least >= MOST_TEXT * LEAST_EQUAL else np.empty(0, np.int64)

    def _stays(self, pair: Pair, group: list[Pair]) -> bool:
        """Whether what follows the change stays the same: the whole earlier prompt does, or all prompts have it."""
        if pair.aligned.cover >= STATIC:
            return True
        first = pair.aligned.mine[pair.aligned.kept[0].mine]
        same = sum(1 for other in group if (other.aligned.mine == first).any())
        return same >= STATIC * len(group)
