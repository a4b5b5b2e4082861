"""WaitingLine: requests that wait while an incident is played on another cache, and who goes first. Knows no cache.

fcfs     first come, first served: one that there is no room for holds up all behind it
fits     the same, but who fits passes one that does not
fair     the tenant that got the fewest prompt tokens goes first; without a tenant a request is one of its own
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from quire.core.records.request import Request

Order = Literal["fcfs", "fits", "fair"]


class LooseRequest(NamedTuple):
    """One of the line."""

    number: int
    request: Request
    since: float

    @property
    def tenant(self) -> Hashable:
        """Whose turns it takes."""
        return self.number if self.request.tenant is None else self.request.tenant


class WaitingLine:
    """In the order in which they came; `first` says who is next."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.waiting: dict[int, LooseRequest] = {}
        self._served: dict[Hashable, int] = {}  # prompt tokens, by tenant

    def enter(self, number: int, request: Request, now: float) -> None:
        """It waits from now on, if it does not already. A tenant that comes begins beside those that wait."""
        one = LooseRequest(number, request, now)
        if self.order == "fair" and one.tenant not in {other.tenant for other in self.waiting.values()}:
            least = min((self._served[other.tenant] for other in self.waiting.values()), default=0)
            self._served[one.tenant] = max(least, self._served.get(one.tenant, 0))
        self.waiting.setdefault(number, one)

    def leave(self, number: int) -> None:
        """It wants nothing any more."""
        self.waiting.pop(number, None)

    def admitted(self, number: int) -> float:
        """It waits no more; since when it did."""
        one = self.waiting.pop(number)
        if self.order == "fair":
            self._served[one.tenant] += len(one.request.tokens)
        return one.since

    def first(self, count: int) -> list[LooseRequest]:
        """Who goes next, so many at most."""
        if self.order != "fair":
            return list(self.waiting.values())[:count]
        queues: dict[Hashable, list[LooseRequest]] = {}
        for one in reversed(self.waiting.values()):
            queues.setdefault(one.tenant, []).append(one)
        turns = [(self._served[tenant], some[-1].since, some[-1].number) for tenant, some in queues.items()]
        heapify(turns)
        found: list[LooseRequest] = []
        while turns and len(found) < count:
            served, _, number = heappop(turns)
            one = self.waiting[number]
            found.append(one)
            left = queues[one.tenant]
            left.pop()
            if left:
                heappush(turns, (served + len(one.request.tokens), left[-1].since, left[-1].number))
        return found
