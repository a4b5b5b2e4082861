"""one_way: prompts as they would be if the same text were always written in one way, or its pieces in one order.

What stands for what is learned from pairs of all of them, and then done to each by itself: two prompts that began
equally do so afterwards, and no prompt rests on how another one was mended.

    spellings   S "a" I J "b" K   S "A" I J "B" K     "a" and "A" are one, "b" and "B" are one
    order       S P Q R T         S R P Q U           P Q R are pieces, in this order: S P Q R T, S P Q R U
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from quire.core.content.content_chunks import mix
from quire.insight.findings.alignment import Alignment, EqualRun, start_of
from quire.trace.units import Int32

FEW_SPELLINGS, SOME_SPELLINGS = 8, 0.7  # of one text, or of its pairs: what has more is another text each time
LEAST_SWAPPED = 0.2  # of the pairs that have a chunk: then it is one of the pieces
INSIDE = 0.6  # as often there as its neighbours: else it has tokens of two pieces
TIMES = 3  # a text is written in one way: what comes of it may be part of another
Row = tuple[Int32, Int32]
Text = tuple[int, ...]  # chunks


class Spellings:
    """Short texts that stand for one another between equal ones."""

    def __init__(self, pairs: Iterable[Alignment], most: int) -> None:
        self._most = most  # tokens of a text that is written in several ways
        self._first: dict[Text, Text] = {}  # towards the one that was seen first
        self._sizes: dict[int, int] = {}
        self._pairs = Counter[Text]()  # that differ in a text, by the later one
        for aligned in pairs:
            self._learn(aligned)
        every = list(self._first)
        ways = Counter(self._one(text) for text in every)
        uses = Counter[Text]()
        for text, count in self._pairs.items():
            uses[self._one(text)] += count
        self._written = dict[Text, Text]()  # as the first of them
        self._lengths: dict[int, list[int]] = {}  # of texts with this first chunk, the shortest first
        for text in sorted(every, key=len):
            one = self._one(text)
            if 1 < ways[one] <= max(FEW_SPELLINGS, SOME_SPELLINGS * uses[one]):
                self._written[text] = one
                lengths = self._lengths.setdefault(text[0], [])
                if lengths[-1:] != [len(text)]:
                    lengths.append(len(text))

    def _learn(self, aligned: Alignment) -> None:
        mine, other = aligned.mine.tolist(), aligned.other.tolist()
        self._sizes |= zip(mine, np.diff(aligned.mine_ends, prepend=0).tolist(), strict=True)
        self._sizes |= zip(other, np.diff(aligned.other_ends, prepend=0).tolist(), strict=True)
        place = there = aligned.common
        for run in aligned.kept:
            one, two = tuple(mine[place : run.mine]), tuple(other[there : run.other])
            place, there = run.mine + run.chunks, run.other + run.chunks
            if max(self._tokens(one), self._tokens(two)) > self._most or one == two:
                continue
            if not one or not two:  # a text and none: with what follows
                one, two = (*one, mine[run.mine]), (*two, mine[run.mine])
            self._first.setdefault(two, two)
            self._first.setdefault(one, one)
            self._first[self._one(one)] = self._one(two)
            self._pairs[one] += 1

    def _tokens(self, text: Text) -> int:
        return sum(self._sizes[chunk] for chunk in text)

    def _one(self, text: Text) -> Text:
        while (first := self._first[text]) != text:
            self._first[text] = self._first[first]  # the way is half as long the next time
            text = first
        return text

    def row(self, row: Row) -> Row:
        """A prompt, written in one way."""
        ids = row[0].tolist()
        self._sizes |= zip(ids, row[1].tolist(), strict=True)
        for _ in range(TIMES):
            ids = self._in_one_way(ids)
        return np.array(ids, np.int32), np.array([self._sizes[chunk] for chunk in ids], np.int32)

    def _in_one_way(self, ids: list[int]) -> list[int]:
        """The shortest text counts: a longer one may have several differences. Of one text's spellings the longest."""
        place, written = 0, list[int]()
        while place < len(ids):
            count, first = 1, None
            for length in self._lengths.get(ids[place], ()):
                one = self._written.get(tuple(ids[place : place + length]))
                if one is not None and first in (None, one):
                    count, first = length, one
            written += first or ids[place : place + 1]
            place += count
        return written


class PieceOrder:
    """Pieces that change places, in the order in which they were seen first."""

    def __init__(self, pairs: Iterable[Alignment], most: int) -> None:
        self._most = most  # tokens between two pieces: their seam
        had, swapped, seams = Counter[int](), Counter[int](), set[int]()
        ranks: dict[int, int] = {}
        next_to: dict[int, int] = {}  # how often the commonest neighbour was there
        phrases = set[int]()  # they stand at several places, and not always at all of them
        every = list(pairs)
        for aligned in every:
            moved = set(aligned.swapped)
            times = Counter(aligned.mine.tolist())
            had.update(times.keys())
            phrases.update(chunk for chunk, count in times.items() if count > 1)
            for run in sorted(aligned.runs, key=lambda one: one.other):
                chunks = aligned.mine[run.mine : run.mine + run.chunks].tolist()
                if run in moved:
                    swapped.update(set(chunks))
                    for chunk in chunks:
                        ranks.setdefault(chunk, len(ranks))
            seams.update(self._beside(aligned, moved))
        for aligned in every:
            ids = aligned.mine.tolist()
            for one, two in pairwise(ids[aligned.common :]):
                if one in ranks and two in ranks:
                    next_to[one] = max(next_to.get(one, 0), had[two])
                    next_to[two] = max(next_to.get(two, 0), had[one])
        self._ranks = {
            chunk: rank for chunk, rank in ranks.items()
            if chunk not in phrases and swapped[chunk] >= LEAST_SWAPPED * had[chunk]
            and had[chunk] >= INSIDE * next_to.get(chunk, 0)
        }  # fmt: skip
        self._seams = {chunk for chunk in [*seams, *ranks] if chunk not in self._ranks}

    def _beside(self, aligned: Alignment, moved: set[EqualRun]) -> Iterable[int]:
        """Chunks right before and behind pieces, in both: they have tokens of what stands there by chance."""
        mine = [(run.mine, run.chunks, run in moved) for run in aligned.runs]
        other = [(run.other, run.chunks, run in moved) for run in aligned.runs]
        sides = ((aligned.mine, aligned.mine_ends, mine), (aligned.other, aligned.other_ends, other))
        for ids, ends, equal in sides:
            place, was_moved = aligned.common, False
            for first, chunks, is_moved in [*sorted(equal), (len(ids), 0, False)]:
                if first == len(ids):  # the rest is nowhere else; its first chunk has the end of a piece
                    yield from ids[place : place + was_moved].tolist()
                elif (is_moved or was_moved) and start_of(ends, first) - start_of(ends, place) <= self._most:
                    yield from ids[place:first].tolist()
                place, was_moved = first + chunks, is_moved

    def row(self, row: Row) -> Row:
        """A prompt with its pieces in order, and what was between them behind them."""
        ids, sizes = row
        ends = np.cumsum(sizes, dtype=np.int64)
        places = [place for place, chunk in enumerate(ids.tolist()) if chunk in self._ranks]
        taken: list[Row] = []
        done = 0
        while places:
            count = 1  # pieces with no more than a seam between them
            while count < len(places):
                gap = start_of(ends, places[count]) - int(ends[places[count - 1]])
                if gap > self._most:
                    break
                count += 1
            some, places = places[:count], places[count:]
            first, end = some[0], some[-1] + 1
            while first > done and int(ids[first - 1]) in self._seams:
                first -= 1
            while end < len(ids) and int(ids[end]) in self._seams:
                end += 1
            ranked = sorted(some, key=lambda place: self._ranks[int(ids[place])])
            seam = int(ends[end - 1]) - start_of(ends, first) - int(sizes[some].sum())
            taken += [(ids[done:first], sizes[done:first]), (ids[ranked], sizes[ranked])]
            taken += [piece(seam, *ids[ranked].tolist())] if seam else []
            done = end
        return joined([*taken, (ids[done:], sizes[done:])])


def piece(tokens: int, *named: int) -> Row:
    """One chunk of so many tokens that is the same wherever it has this name."""
    name = np.add.reduce(mix(np.arange(len(named), dtype=np.uint64) + mix(np.array(named, np.int64).astype(np.uint64))))
    return np.array([-2 - int(name >> np.uint64(34))], np.int32), np.array([tokens], np.int32)


def joined(rows: list[Row]) -> Row:
    """One behind the other."""
    ids, sizes = (np.concatenate([row[place] for row in rows]) for place in (0, 1))
    return ids, sizes
