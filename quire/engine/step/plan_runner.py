"""Plans on their way between cache and mover. A step waits for the moves that touch what it reads and writes; those of
others go on beside it. Failures come back as setbacks.

    plan 7    offload a   offload b   onboard c      the step reads c and writes b's slot: it waits for b and c
    plan 8    offload d                              not for a, and not for plan 8
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from quire.core.cache import Cache
from quire.core.records.errors import StateError, say
from quire.core.records.plan import Plan
from quire.core.sequences.setbacks import Finished, Setback
from quire.engine.step.step_slots import StepSlots
from quire.tiers.move_queue import Ticket
from quire.tiers.mover import Mover


class PlanRunner:
    """Plans submitted in the order they were made, and not finished yet. They are finished in that order too."""

    def __init__(self, cache: Cache, mover: Mover) -> None:
        self._cache, self._mover = cache, mover
        self._open: deque[tuple[Plan, Ticket]] = deque()

    def __len__(self) -> int:
        return len(self._open)

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
            setbacks += self._finish_first()
        return setbacks

    def settle_for(self, slots: Callable[[], StepSlots]) -> list[Setback]:
        """Wait for the moves that a step must not overtake. If a move has failed, as few do, wait for every one: the
        step is another one then."""
        setbacks: list[Setback] = []
        while self._open and self._open[0][1].done:
            setbacks += self._finish_first()
        if setbacks or not self._open:
            return setbacks + self.settle()
        touched = slots()
        awaited = [(ticket, moves) for plan, ticket in self._open if (moves := touched.awaited(plan.moves))]
        for ticket, moves in awaited:
            self._mover.hurry(ticket, moves)
        failed = [ticket for ticket, moves in awaited if ticket.wait_for(moves)]
        return self.settle() if failed else []

    def _finish_first(self) -> list[Setback]:
        """The oldest plan, once it has run."""
        plan, ticket = self._open.popleft()
        failed = ticket.wait()
        finished = self._cache.finish(plan, failed)
        if failed:
            self._mover.settle(plan.number)
        if finished.plan is not None:
            self.carry(finished.plan)
        return list(finished.setbacks)
