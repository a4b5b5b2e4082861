"""Pairs: prompts beside the earlier one that has most of their lost text, and groups of them that differ in one way.

A group is an application: its requests have the group's text in common. Knows chunks; no tokens.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from quire.core.content.content_chunks import MEAN_BITS
from quire.insight.findings.alignment import LEAST_EQUAL, Alignment, Change, align, change_of
from quire.insight.findings.lost_text import LostText
from quire.insight.findings.prompt_log import PromptLog
from quire.trace.units import Int32, Int64

MOST_PAIRS = 2000  # that are looked at, evenly over the log
LEAST_LOST = 0.02  # of a prompt's tokens
LEAST_GROUP = 0.1  # of a way's pairs that have one text in common
UNITED = 0.5  # of the smaller group's requests
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
        self._uses = np.bincount(log.ids)

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
            for key, inner in self._by_text(found).items():
                inner = [pair for pair in inner if change is not Change.CHANGED or self._stays(pair, inner)]
                if inner:
                    members = self._members(key, inner)
                    groups.append(Group(change, inner, members, 0))
        return [_counted(group, looked) for group in _united(groups)]

    def _by_text(self, pairs: list[Pair]) -> dict[int, list[Pair]]:
        """By the text they have in common: what was lost, or what is before it, or none that many have."""
        lost = Counter(keys := [self._commonest(self._lost_chunks(pair)) for pair in pairs])
        before = [self._commonest(pair.aligned.mine[: pair.aligned.common]) for pair in pairs]
        least = LEAST_GROUP * len(pairs)
        found: dict[int, list[Pair]] = defaultdict(list)
        for pair, key, other in zip(pairs, keys, before, strict=True):
            found[key if lost[key] >= least else other].append(pair)
        kept = {key: inner for key, inner in found.items() if len(inner) >= least}
        rest = [pair for key, inner in found.items() if key not in kept for pair in inner]
        return kept | ({-1: [*kept.get(-1, []), *rest]} if rest else {})

    def _lost_chunks(self, pair: Pair) -> Int32:
        runs = pair.aligned.runs
        return np.concatenate([pair.aligned.mine[run.mine : run.mine + run.chunks] for run in runs])

    def _commonest(self, ids: Int32) -> int:
        return int(ids[self._uses[ids].argmax()]) if len(ids) else -1

    def _members(self, key: int, pairs: list[Pair]) -> Int64:
        if key < 0:
            return np.unique([request for pair in pairs for request in (pair.request, pair.other)])
        chunks = np.flatnonzero(self.log.ids == key)
        return np.unique(np.searchsorted(self.log.starts, chunks, side="right") - 1)

    def _stays(self, pair: Pair, group: list[Pair]) -> bool:
        """Whether what follows the change stays the same: the whole earlier prompt does, or all prompts have it."""
        if pair.aligned.cover >= STATIC:
            return True
        first = pair.aligned.mine[pair.aligned.kept[0].mine]
        same = sum(1 for other in group if (other.aligned.mine == first).any())
        return same >= STATIC * len(group)


def _united(groups: list[Group]) -> list[Group]:
    """Groups of one way that have most of their requests in common are one."""
    kept: list[Group] = []
    for group in sorted(groups, key=lambda one: -len(one.pairs)):
        for other in kept:
            both = len(np.intersect1d(group.members, other.members, assume_unique=True))
            if other.change is group.change and both >= UNITED * min(len(group.members), len(other.members)):
                other.pairs = sorted(other.pairs + group.pairs, key=lambda pair: pair.request)
                other.members = np.union1d(other.members, group.members)
                break
        else:
            kept.append(group)
    return kept


def _counted(group: Group, looked: Int64) -> Group:
    group.looked = int(np.isin(looked, group.members).sum())
    return group
