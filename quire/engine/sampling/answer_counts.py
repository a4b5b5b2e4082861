"""AnswerCounts: how often each token stands in one answer, kept as it grows. Knows no penalties and no branch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.records.request import Int32

Counts = tuple[Int32, NDArray[np.int64]]  # token ids, each once, and how often each stands there


class AnswerCounts:
    """A step adds the tokens that are new: its cost does not grow with the answer's length."""

    __slots__ = ("_counts", "_ids", "_length", "_place")

    def __init__(self) -> None:
        self._length = 0
        self._place: dict[int, int] = {}  # of each token among those below
        self._ids: Int32 = np.empty(16, np.int32)
        self._counts: NDArray[np.int64] = np.zeros(16, np.int64)

    def behind(self, answer: Int32, drafts: Int32) -> Counts:
        """Of an answer that has grown since the last call, and of drafts behind it, which are not kept."""
        if len(answer) < self._length:  # it was taken back
            self._length, self._place = 0, {}
            self._counts[:] = 0
        for token in answer[self._length :].tolist():
            place = self._place_of(token)  # which may need larger arrays
            self._counts[place] += 1
        self._length = len(answer)
        if not len(drafts):
            return self._ids[: len(self._place)], self._counts[: len(self._place)]
        known = len(self._place)
        places = [self._place_of(token) for token in drafts.tolist()]
        ids, counts = self._ids[: len(self._place)].copy(), self._counts[: len(self._place)].copy()
        np.add.at(counts, places, 1)
        for token in ids[known:].tolist():
            del self._place[token]
        return ids, counts

    def _place_of(self, token: int) -> int:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty(place, np.int32)])
            self._counts = np.concatenate([self._counts, np.zeros(place, np.int64)])
        self._ids[place] = token
        return place
