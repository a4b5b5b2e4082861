"""Window: a part of a log that is replayed, requests one after the other, with other scopes or without some of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.insight.findings.prompt_rows.memory import Rows, hits, prefixes
from quire.insight.findings.prompt_rows.prompt_log import PromptLog
from quire.trace.units import Int32, Int64

REPLAYED = 20_000  # requests


class Window:
    """Requests of a log from `first` on, at most REPLAYED, in an LRU cache of so many tokens."""

    def __init__(self, log: PromptLog, capacity: int, weights: Int64) -> None:
        count = min(len(log), REPLAYED)
        sums = np.concatenate([[0], np.cumsum(weights)])
        first = int((sums[count:] - sums[: len(sums) - count]).argmax())  # where most of the weight is
        self.requests = slice(first, first + count)
        self.capacity = capacity
        self.lengths = log.lengths[self.requests]
        self.scopes, self.names = log.scopes[self.requests], log.names[self.requests]
        self.times = log.times[self.requests]
        self.lines = log.lines[self.requests, 0]
        bounds = log.starts[first : first + count + 1]
        chunks = slice(int(bounds[0]), int(bounds[-1]))
        self._rows = Rows(log.ids[chunks], log.sizes[chunks], bounds - bounds[0], self.scopes)
        self._plain: Int64 | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def hits(self, apart: Int32 | None = None, kept: NDArray[np.bool_] | None = None) -> Int64:
        """Tokens that each request finds, with other scopes, or if only `kept` requests were stored."""
        if apart is not None or kept is not None:
            return hits(self._with(apart), self.capacity, kept)
        if self._plain is None:
            self._plain = hits(self._rows, self.capacity)
        return self._plain

    def hits_in(self, capacity: int) -> Int64:
        """Tokens that each request finds in another memory."""
        return hits(self._rows, capacity)

    def beginnings(self, apart: Int32 | None = None) -> Int32:
        """A number for the first chunk of each request, in its scope."""
        rows = self._with(apart)
        return prefixes(rows)[rows.starts[:-1]]

    def rate(self, found: Int64, which: NDArray[np.bool_]) -> float:
        """Tokens found, of all that some requests asked."""
        return float(found[which].sum() / max(int(self.lengths[which].sum()), 1))

    def _with(self, apart: Int32 | None) -> Rows:
        rows = self._rows
        return rows if apart is None else Rows(rows.ids, rows.sizes, rows.starts, apart)
