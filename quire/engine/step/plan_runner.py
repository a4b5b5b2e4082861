"""Plans on their way between cache and mover. A step waits for all of them; failures come back as setbacks."""

from __future__ import annotations

from collections import deque

from quire.core.cache import Cache
from quire.core.records.errors import StateError, say
from quire.core.records.plan import Plan
from quire.core.sequences.setbacks import Finished, Setback
from quire.tiers.mover import Mover, Ticket


class PlanRunner:
    """Plans submitted in the order they were made, and not finished yet."""

    def __init__(self, cache: Cache, mover: Mover) -> None:
        self._cache, self._mover = cache, mover
        self._open: deque[tuple[Plan, Ticket]] = deque()

    def carry(self, plan: Plan) -> None:
        """Let it run."""
        if len(plan):
            self._open.append((plan, self._mover.submit(plan)))

    def run(self, plan: Plan) -> Finished:
        """Let it run, now, and say how it went. Requires: nothing else is under way."""
        if self._open:
            fact = f"{len(self._open)} earlier plans are still under way"
            raise StateError(say(f"plan {plan.number}", fact, "plans run in the order they were made: settle first"))
        failed = self._mover.run(plan) if len(plan) else []
        finished = self._cache.finish(plan, failed)
        if failed:
            self._mover.settle(plan.number)
        if finished.plan is not None:
            self.carry(finished.plan)
        return finished

    def settle(self) -> list[Setback]:
        """Wait for every move; what had to be given up."""
        setbacks: list[Setback] = []
        while self._open:
            plan, ticket = self._open.popleft()
            failed = ticket.wait()
            finished = self._cache.finish(plan, failed)
            if failed:
                self._mover.settle(plan.number)
                setbacks.extend(finished.setbacks)
            if finished.plan is not None:
                self.carry(finished.plan)
        return setbacks
