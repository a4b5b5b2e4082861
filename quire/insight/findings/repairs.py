"""Repairs: the prompts of a group as they would be without the fault, chunk by chunk, to be replayed beside them.

    changed     what changes moves to the end
    drift       what is written in several ways is written as in the earlier prompt
    order       pieces stand as they did in the earlier prompt
    cut         the history stays, until the prompt is twice as long as it was; then it is cut as before

A chunk beside a difference has tokens of both; its unchanged ones stay where they are, as a chunk of their own.
"""

from __future__ import annotations

import numpy as np

from quire.core.content.content_chunks import mix
from quire.insight.findings.alignment import SHORT, Alignment, Change, align, start_of
from quire.insight.findings.pairs import Pair, Pairs
from quire.trace.units import Int32, Int64

DRIFT = "drift"
MOST_TIMES = 2  # as long as it was: then a history is cut
Row = tuple[Int32, Int32]


class Repairs:
    """Rows of requests, mended one after the other."""

    def __init__(self, pairs: Pairs, kind: str, width: int) -> None:
        self._pairs, self._width = pairs, 0 if kind == DRIFT else width
        ways = {DRIFT: self._moved_back, Change.CHANGED: self._moved_back, Change.ORDER: self._in_order}
        self._mended = ways.get(kind, self._uncut)
        self._change = Change.CHANGED if kind == DRIFT else Change(kind) if kind in ways else Change.CUT
        self._short = SHORT + 4 * pairs.chunk
        self._rows: dict[int, Row] = {}
        self._mended_rows: set[int] = set()

    def rows(self, requests: Int64) -> list[Row]:
        """Each as it would be; what it is compared with must come before it."""
        log = self._pairs.log
        lost = set(self._pairs.has_lost().tolist())
        for request in requests.tolist():
            self._rows[request] = log.chunks_of(request), log.sizes_of(request)
            pair = self._pairs.pair_of(request) if request in lost else None
            if pair is None or pair.change is not self._change:
                pair = self._continued(request) or (self._beside(request) if request in lost else None)
            if pair is not None and pair.other in self._rows:
                self._rows[request] = self._mended(pair)
                self._mended_rows.add(request)
        return [self._rows[request] for request in requests.tolist()]

    def _continued(self, request: int) -> Pair | None:
        """What it shares a beginning with, if that was mended: then it begins so as well."""
        other = self._pairs.continued(request)
        return self._pairs.beside(request, other, self._change) if other in self._mended_rows else None

    def _beside(self, request: int) -> Pair | None:
        """The prompt that has most of what this one lost, though the two differ in more than the fault."""
        other = self._pairs.predecessor(request)
        in_place = self._change is Change.CHANGED and other in self._rows
        return self._pairs.beside(request, other, self._change) if in_place else None

    def _moved_back(self, pair: Pair) -> Row:
        """As the earlier prompt up to where more than the fault differs, then the rest, then what has changed.

        An earlier prompt that is as it was sent becomes the same: it is the first of those that are mended.
        """
        mine, sizes = self._pairs.log.chunks_of(pair.request), self._pairs.log.sizes_of(pair.request)
        ids, other_sizes = self._rows[pair.other]
        aligned = align(mine, sizes, ids, other_sizes)
        fresh = self._width if pair.other not in self._mended_rows else 0  # tokens that change, still at their place
        widest = max((self._short, *(pair.aligned.gap() if pair.aligned.kept else ())))
        place = there = aligned.common
        front, behind, other_behind = [(ids[:there], other_sizes[:there])], [], []
        for run in aligned.kept:
            gap = start_of(aligned.mine_ends, run.mine) - start_of(aligned.mine_ends, place)
            other_gap = start_of(aligned.other_ends, run.other) - start_of(aligned.other_ends, there)
            if max(gap, other_gap) > widest:
                break
            if not fresh:
                front.append((ids[there : run.other], other_sizes[there : run.other]))
            elif other_gap > fresh:
                front.append(_piece(other_gap - fresh, *ids[there : run.other].tolist()))
            if changed := min(self._width, gap):
                behind.append(_piece(changed, *mine[place : run.mine].tolist()))
            if other_changed := min(fresh, other_gap):
                other_behind.append(_piece(other_changed, *ids[there : run.other].tolist()))
            place, there = run.mine + run.chunks, run.other + run.chunks
            front.append((ids[run.other : there], other_sizes[run.other : there]))
        if fresh:
            self._rows[pair.other] = _joined([*front, (ids[there:], other_sizes[there:]), *other_behind])
            self._mended_rows.add(pair.other)
        return _joined([*front, (mine[place:], sizes[place:]), *behind])

    def _in_order(self, pair: Pair) -> Row:
        mine, sizes = self._pairs.log.chunks_of(pair.request), self._pairs.log.sizes_of(pair.request)
        aligned = align(mine, sizes, *self._rows[pair.other])
        if not aligned.runs:
            return mine, sizes
        edges, seams = _edges(aligned, self._short)
        row, before = [(mine[: aligned.common], sizes[: aligned.common])], -1
        for run in sorted(aligned.runs, key=lambda run: run.other):
            piece = slice(run.mine, run.mine + run.chunks)
            if edges.get(run.mine):
                row.append(_piece(edges[run.mine], before, int(mine[run.mine])))
            row.append((mine[piece], sizes[piece]))
            before = int(mine[piece][-1])
        end = max(run.mine + run.chunks for run in aligned.runs)
        placed = seams.union(*(range(run.mine, run.mine + run.chunks) for run in aligned.runs))
        others = [place for place in range(aligned.common, end) if place not in placed]
        row.append((mine[others], sizes[others]))
        return _joined([*row, (mine[end:], sizes[end:])])

    def _uncut(self, pair: Pair) -> Row:
        log = self._pairs.log
        mine, sizes = log.chunks_of(pair.request), log.sizes_of(pair.request)
        aligned = pair.aligned
        place = there = aligned.common
        if aligned.kept:
            last = aligned.kept[-1]
            place, there = last.mine + last.chunks, last.other + last.chunks
        behind = len(aligned.other) - there
        ids, other_sizes = self._rows[pair.other]
        end = len(ids) - behind
        row = _joined([(ids[:end], other_sizes[:end]), (mine[place:], sizes[place:])])
        return row if row[1].sum() <= MOST_TIMES * sizes.sum() else (mine, sizes)


def _edges(aligned: Alignment, most: int) -> tuple[dict[int, int], set[int]]:
    """Tokens right before each run that are neither equal nor many, the seam of two pieces; and their chunks."""
    found: dict[int, int] = {}
    chunks: set[int] = set()
    place = aligned.common
    for run in aligned.runs:
        gap = start_of(aligned.mine_ends, run.mine) - start_of(aligned.mine_ends, place)
        if 0 < gap <= most:
            found[run.mine] = gap
            chunks.update(range(place, run.mine))
        place = run.mine + run.chunks
    return found, chunks


def _piece(tokens: int, *named: int) -> Row:
    """One chunk of so many tokens that is the same wherever it has this name."""
    name = np.add.reduce(mix(np.arange(len(named), dtype=np.uint64) + mix(np.array(named, np.int64).astype(np.uint64))))
    return np.array([-2 - int(name >> np.uint64(34))], np.int32), np.array([tokens], np.int32)


def _joined(rows: list[Row]) -> Row:
    ids, sizes = (np.concatenate([row[place] for row in rows]) for place in (0, 1))
    return ids, sizes
