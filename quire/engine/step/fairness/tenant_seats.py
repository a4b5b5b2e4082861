"""Seats: who may have a sequence, and who gives one up. A seat is a row of the block tables, with pages.

    rank of a branch      the number of seats that its tenant has before it
    who comes in          by (granted priority, rank, round, ...): the first of every tenant before the second of any
    who gives way         the last of the tenant with most seats, of the least urgent ones; of equal ones the youngest
    who is given way to   a waiting branch, by one that is less urgent, or has a higher rank than it will have

A seat is kept, a token is not: so seats are counted, and virtual time decides between equals. Taking one from a tenant
with at least two more evens them out, so it is not taken back: two tenants never preempt each other in turn. Knows no
pages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush

from quire.engine.step.fairness.tenant_rounds import Rounds
from quire.engine.step.runs.branch import Branch
from quire.engine.step.runs.tenant import Tenant, TokenKey

SeatKey = tuple[int, int, TokenKey, int]


def first_to_give_way(holders: Collection[Branch]) -> Branch:
    """Whose pages go first. Of equally urgent ones the first branch of the oldest is the last."""
    counts = seats_of(holders)
    last: dict[Tenant, Branch] = {}
    for branch in holders:
        tenant = branch.run.tenant
        if tenant not in last or branch.age > last[tenant].age:
            last[tenant] = branch
    return max(last.values(), key=lambda one: (one.run.tenant.granted, counts[one.run.tenant], one.run.arrival))


def giver(holders: Collection[Branch], asking: Branch, more: int = 0) -> Branch | None:
    """Who gives way to a branch whose tenant has `more` seats than those here; None: no branch has to."""
    own = asking.run.tenant
    others = [branch for branch in holders if branch.run.tenant is not own]
    if not others:
        return None
    last = first_to_give_way(others)
    theirs = last.run.tenant
    rank = sum(branch.run.tenant is theirs for branch in others) - 1
    seats = len(holders) - len(others) + more
    return last if (theirs.granted, rank) > (own.granted, seats) else None


def mate_of(held: Iterable[Branch], beam: Branch) -> Branch | None:
    """The last beam of the same search that has delivered, and can do without its seat."""
    mates = [branch for branch in held if branch.run is beam.run]
    return max(mates, key=lambda one: one.age) if mates else None


def seats_of(holders: Iterable[Branch]) -> Counter[Tenant]:
    """How many each tenant has."""
    return Counter([branch.run.tenant for branch in holders])


def all_equal(seats: Counter[Tenant], rounds: Rounds) -> bool:
    """No tenant has two seats, and none is more urgent than others: no branch gives way. So it is in most full engines,
    and this costs less than to find out whose turn it would be.
    """
    return max(seats.values(), default=0) < 2 and len({tenant.granted for tenant in rounds.inside.values()}) == 1


class Line:
    """Waiting branches in the order in which they come in."""

    def __init__(self, waiting: Iterable[Branch], seats: Counter[Tenant], rounds: Rounds) -> None:
        self._rounds, self._seats = rounds, seats
        self._queues: defaultdict[Tenant, list[Branch]] = defaultdict(list)
        for branch in waiting:
            self._queues[branch.run.tenant].append(branch)
        for queue in self._queues.values():
            queue.reverse()  # the next one is at the end

    def _key(self, tenant: Tenant, number: int) -> SeatKey:
        key = self._rounds.token_key(self._queues[tenant][-1].run)
        return tenant.granted, self._seats.get(tenant, 0), key, number

    def pick(self, rows: int, most: int) -> list[Branch]:
        """At most so many that can have a seat: in free rows, and where others give way."""
        picked: list[Branch] = []
        heads = [(*self._key(tenant, nth), tenant) for nth, tenant in enumerate(self._queues)]
        heapify(heads)
        while heads and len(picked) < most:
            granted, rank, _, number, tenant = heappop(heads)
            if rows > 0:
                rows -= 1
            elif not self._give_way(granted, rank):
                break  # nor to any behind
            self._seats[tenant] += 1
            picked.append(self._queues[tenant].pop())
            if self._queues[tenant]:
                heappush(heads, (*self._key(tenant, number), tenant))
        return picked

    def _give_way(self, granted: int, rank: int) -> bool:
        seated = [tenant for tenant, count in self._seats.items() if count]
        last = max(seated, key=lambda tenant: (tenant.granted, self._seats[tenant]), default=None)
        if last is None or (last.granted, self._seats[last] - 1) <= (granted, rank):
            return False
        self._seats[last] -= 1
        return True
