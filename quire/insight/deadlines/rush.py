"""Rush: while more is asked for than can be done, what costs too much to be taken. Knows no engine and no clock.

cost = seconds of computing that a request takes: its prompt, less what is cached, and an answer of usual length

    of requests up to the limit some come too late    the limit sinks: fewer, and cheaper ones, come in
    they are in time                                  it rises, and soon all come in again

The limit is a share of all costs that were asked for lately, so it needs no model of the load. Where all cost the same,
it refuses none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil, inf

KEPT = 512  # requests
FEWEST = 64  # before that nothing is too dear
STEP = 0.02  # of all costs, that the limit moves by
LATE = 0.03  # of requests up to the limit that may be too late while it stands still
IDLE = 0.1  # of a step, that it rises by where a request finds nothing before it
LEAST = 0.05  # of all costs: so many are always taken, if they can be in time


class Rush:
    """One engine's."""

    def __init__(self) -> None:
        self.level = 1.0  # of all costs, those that are not too dear
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def __repr__(self) -> str:
        return f"Rush({self.level:.0%} of {len(self._order)} costs are not too dear)"

    @property
    def limit(self) -> float:
        """Seconds above which a request is too dear now."""
        if self.level >= 1.0 or len(self._sorted) < FEWEST:
            return inf
        return self._sorted[max(0, ceil(self.level * len(self._sorted)) - 1)]

    def note(self, cost: float, *, late: bool, idle: bool = False) -> None:
        """One was asked for, and would be too late; or it was not, and found nothing before it (`idle`)."""
        if cost <= self.limit or idle:
            change = IDLE if idle and not late else LATE - late
            self.level = min(1.0, max(LEAST, self.level + STEP * change))
        self._order.append(cost)
        insort(self._sorted, cost)
        if len(self._order) > KEPT:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
