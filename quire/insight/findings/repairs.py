"""Repairs: the prompts of a group as they would be without the fault, chunk by chunk, to be replayed beside them.

    drift       what is written in several ways is written in one (one_way.py)
    order       pieces stand in one order (the same)
    changed     what changes moves to the end, as in the earlier prompt
    cut         the history stays, until it is twice as long as it was sent; then it is cut as before

A chunk beside a difference has tokens of both; its unchanged ones stay where they are, as a chunk of their own.
"""

from __future__ import annotations

from quire.insight.findings.alignment import SHORT, Change, align, start_of
from quire.insight.findings.one_way import PieceOrder, Row, Spellings, joined, piece
from quire.insight.findings.pairs import Pair, Pairs
from quire.trace.units import Int64

DRIFT = "drift"
LEARNED = 500  # pairs, at least, that an order is learned from
MOST_TIMES = 2  # as long as what was sent of it: then a history is cut


class Repairs:
    """Rows of requests, mended one after the other."""

    def __init__(self, pairs: Pairs, kind: str, width: int, place: int) -> None:
        self._pairs, self._width, self._place = pairs, width, place  # tokens of the change, and in front of it
        self._kind = kind
        self._mended = self._moved_back if kind == Change.CHANGED else self._uncut
        self._change = Change.CHANGED if kind == Change.CHANGED else Change.CUT
        self._short = SHORT + 4 * pairs.chunk
        self._rows: dict[int, Row] = {}
        self._mended_rows: set[int] = set()

    def rows(self, requests: Int64) -> list[Row]:
        """Each as it would be; what it is compared with must come before it."""
        log = self._pairs.log
        lost = set(self._pairs.has_lost().tolist())
        if self._kind in (DRIFT, Change.ORDER):
            one_way = self._one_way([request for request in requests.tolist() if request in lost])
            return [one_way.row((log.chunks_of(request), log.sizes_of(request))) for request in requests.tolist()]
        for request in requests.tolist():
            self._rows[request] = log.chunks_of(request), log.sizes_of(request)
            pair = self._pairs.pair_of(request) if request in lost else None
            if pair is None or pair.change is not self._change:
                pair = self._continued(request) or (self._beside(request) if request in lost else None)
            if pair is not None and pair.other in self._rows:
                self._rows[request] = self._mended(pair)
                self._mended_rows.add(request)
        return [self._rows[request] for request in requests.tolist()]

    def _one_way(self, requests: list[int]) -> Spellings | PieceOrder:
        """Learned from these and the prompts that have most of what they lost."""
        made = Spellings if self._kind == DRIFT else PieceOrder
        if made is PieceOrder:  # of few pieces, some tell the order of all
            requests = requests[:: max(len(requests) // LEARNED, 1)]
        others = ((request, self._pairs.predecessor(request)) for request in requests)
        return made((self._pairs.beside(*both, self._change).aligned for both in others), self._short)

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
            is_first = place == aligned.common
            if max(gap, other_gap) > (widest if is_first else self._width + 4 * self._pairs.chunk):
                break
            if not fresh:
                front.append((ids[there : run.other], other_sizes[there : run.other]))
            elif other_gap > fresh:
                front.append(piece(other_gap - fresh, *ids[there : run.other].tolist()))
            # other places may be where prompts are new: then all but the ends of chunks is
            if changed := min(gap, self._width if is_first else max(self._width, gap - 2 * self._pairs.chunk)):
                behind.append(piece(changed, *mine[place : run.mine].tolist()))
            if other_changed := min(fresh, other_gap):
                other_behind.append(piece(other_changed, *ids[there : run.other].tolist()))
            place, there = run.mine + run.chunks, run.other + run.chunks
            front.append((ids[run.other : there], other_sizes[run.other : there]))
        if fresh:
            self._rows[pair.other] = joined([*front, (ids[there:], other_sizes[there:]), *other_behind])
            self._mended_rows.add(pair.other)
        return joined([*front, (mine[place:], sizes[place:]), *behind])

    def _uncut(self, pair: Pair) -> Row:
        """As the earlier prompt up to the longest text that both have, and from there on as it is.

        Not up to the last: that may be the phrase that every prompt ends with, behind what is new.
        """
        log = self._pairs.log
        mine, sizes = log.chunks_of(pair.request), log.sizes_of(pair.request)
        aligned = pair.aligned
        place = there = aligned.common
        if aligned.kept:
            longest = max(aligned.kept, key=lambda run: run.tokens)
            if start_of(aligned.other_ends, longest.other) > start_of(aligned.mine_ends, longest.mine):
                place, there = longest.mine, longest.other
        behind = len(aligned.other) - there
        ids, other_sizes = self._rows[pair.other]
        end = len(ids) - behind
        row = joined([(ids[:end], other_sizes[:end]), (mine[place:], sizes[place:])])
        kept, sent = (max(int(one.sum()) - self._place, 0) for one in (row[1], sizes))
        return row if kept <= MOST_TIMES * sent else (mine, sizes)
