"""WhatIf: what caches of other sizes would have hit over a stretch of traffic. A copy of it: asking changes nothing.

Two caches are asked about: one that evicts what was used longest ago (lru), for all sizes at once, and the best one
that there could be, which knows what comes, for one size at a time. Hits are counted in whole blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from quire.insight.traffic import HOT, PASSED, SAMPLED, Traffic

Floats = NDArray[np.float64]
PAUSE = 512  # uses after which the thread may do something else


class WhatIf:
    """The uses of the last `window` seconds before `now`; those before them are only remembered."""

    def __init__(self, traffic: Traffic, now: float) -> None:
        self.one_in = traffic.one_in
        self.num_distinct = traffic.num_distinct
        self.num_uses = len(traffic.uses)
        times = traffic.uses["time"]
        self.first = int(np.searchsorted(times, now - traffic.window))
        asked = traffic.uses["tokens"][self.first :]
        self.num_requests = int(np.count_nonzero(asked))
        self.prompt_tokens = int(asked.sum(dtype=np.int64))
        self.hittable = int(traffic.uses["hittable"][self.first :].sum(dtype=np.int64))  # blocks
        self.seconds = now - float(times[self.first]) if self.first < len(times) else 0.0
        names = [f"hits{tier}" for tier in range(traffic.uses.width - 5)]
        self.hit_tokens = tuple(int(traffic.uses[name][self.first :].sum(dtype=np.int64)) for name in names)
        plain = int(traffic.uses["plain"][self.first :].sum(dtype=np.int64))
        stood = int(traffic.uses["stood"][self.first :].sum(dtype=np.int64))
        self.correction = plain / stood if stood else 1.0  # blocks that are not hot, by what the sample made of them
        self._pieces = traffic.pieces.copied()

    def _weights(self) -> Floats:
        """What a block of each piece counts, if it is hit."""
        kinds = np.zeros(3)
        kinds[SAMPLED], kinds[HOT], kinds[PASSED] = self.correction, 1.0, 0.0
        weights: Floats = kinds[self._pieces["kind"]]
        weights[self._pieces["use"] < self.first] = 0.0
        return weights

    def ceiling(self) -> float:
        """Blocks that would have been hit if nothing had been forgotten."""
        return float(self._weights() @ self._pieces["size"])

    def lru(self, capacities: Floats) -> Floats:
        """Blocks that would have been hit by a cache of each size that evicts what was used longest ago."""
        weights = self._weights()
        starts = self._pieces["start"].astype(np.float64)
        wanted = np.asarray(capacities, np.float64)
        return _ramps(starts, weights, wanted) - _ramps(starts + self._pieces["size"], weights, wanted)

    def best(self, capacity: int) -> Iterator[float | None]:
        """Blocks that the best cache of one size would have hit: the last that it yields; before it None, to pause.

        Between two uses it keeps at most `capacity` of the blocks that it had and that the last use left. Dropping
        those that are wanted last, the deepest first, is best (Belady). Pieces are in order of use and depth, so the
        piece with the largest number is the next to go.
        """
        uses, sizes = (array("i", self._pieces[name].tobytes()) for name in ("use", "size"))
        weights = array("d", self._weights().tobytes())
        hittable = array("b", (self._pieces["kind"] != PASSED).astype(np.int8).tobytes())
        left = _by_owner(self._pieces["before"], self.num_uses)
        order, firsts = (array("i", column.tobytes()) for column in left)
        kept = array("i", bytes(4 * len(sizes)))
        shelf = [-piece for piece in order[: firsts[0]] if hittable[piece]]  # left by uses that are forgotten
        heapify(shelf)
        room, total, place = capacity, 0.0, 0
        for piece in (-entry for entry in shelf):
            kept[piece] = sizes[piece]
            room -= sizes[piece]
        for use in range(self.num_uses):
            room = _evict(shelf, kept, room)
            while place < len(uses) and uses[place] == use:  # what is kept of a prompt is its head
                total += kept[place] * weights[place]
                room, kept[place] = room + kept[place], 0
                place += 1
            for piece in order[firsts[use] : firsts[use + 1]]:
                if hittable[piece]:
                    kept[piece] = sizes[piece]
                    room -= sizes[piece]
                    heappush(shelf, -piece)
            if use % PAUSE == 0:
                yield None
        yield total


def _evict(shelf: list[int], kept: array[int], room: int) -> int:
    """Drop what is wanted last until everything fits; what is on the shelf and used up is nothing."""
    while room < 0 and shelf:
        there = kept[-shelf[0]]
        gone = min(there, -room)
        kept[-shelf[0]] = there - gone
        room += gone
        if gone == there:
            heappop(shelf)
    return room


def _ramps(places: Floats, slopes: Floats, wanted: Floats) -> Floats:
    """The sum over all places of slope x (wanted - place), where that is above 0."""
    order = np.argsort(places, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(slopes[order])])
    moments = np.concatenate([[0.0], np.cumsum(slopes[order] * places[order])])
    below = np.searchsorted(places[order], wanted)
    found: Floats = sums[below] * wanted - moments[below]
    return found


def _by_owner(before: NDArray[np.int32], num_uses: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Pieces sorted by the use that left them, and where those of each use begin; forgotten uses come first."""
    order = np.argsort(before, kind="stable").astype(np.int32)
    firsts = np.searchsorted(before[order], np.arange(num_uses + 1)).astype(np.int32)
    return order, firsts
