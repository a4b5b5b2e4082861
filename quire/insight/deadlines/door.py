"""DeadlineDoor: whether a first token can come in time, decided when it is asked for. Knows no clock.

    expected = the costs of all that is computed before it, and of its own prompt, in as many steps as that takes,
               or as answers need to end before it finds a seat
    soonest  = waited + expected + margin x (expected + a full step), if none that comes later goes before it
    bound    = the same with the margin of all, or its deadline if that is sooner

It is accepted when `soonest` is within its deadline, those behind it keep theirs, and, while more is asked for than can
be done, it does not cost more than others do (Rush). Both margins are such that over time a share is kept (Margins).
Before the costs are known all are accepted, without a bound. Knows neither engine nor cache: `Standing` says what is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from quire.insight.deadlines.answer_lengths import AnswerLengths, RunningAnswer
from quire.insight.deadlines.bound_counts import BoundCounts, Fate
from quire.insight.deadlines.margins import Margins
from quire.insight.deadlines.rush import Rush
from quire.insight.deadlines.step_costs import StepCosts, StepWork

SLACK = 1.1  # times what was expected to be computed, above which others came before


@dataclass(frozen=True, slots=True)
class Standing:
    """What an engine has to do before a newcomer is computed."""

    budget: int  # tokens of a step, decoding included
    ahead: StepWork  # of prompts that go first
    behind: float  # tokens of prompts that go later: what steps have room for of them is computed beside it
    seats_ahead: int  # sequences that they take, those that have one left out
    rows: int  # sequences that decode
    context: float  # tokens that those read
    free_seats: int
    free_pages: int  # less those that prompts ahead take
    answers: Sequence[RunningAnswer]  # that decode; none where seats and pages are free
    longest: int = 1  # tokens of its own answers


class DoorVerdict(NamedTuple):
    """What was decided. Seconds count from when it was asked for."""

    accepted: bool
    bound: float | None  # None: not known yet
    soonest: float = 0.0
    steps: float = 0.0
    expected: float = 0.0  # from now on
    scale: float = 1.0  # of how much later it may come
    seat: bool = False  # it has to wait for one
    others: bool = False  # it is refused for the sake of bounds behind it
    cost: float = 0.0  # seconds of computing, answer included
    dear: bool = False  # it would be in time, and is refused for the sake of those that cost less
    idle: bool = False  # nothing is before it
    hopeless: bool = False  # not even then would it be in time


@dataclass(slots=True, eq=False)
class OpenBound:
    """Of one request that was accepted, until its first token comes. Times are of the engine's clock."""

    asked: float
    accepted: float
    latest: float | None  # when its first token comes at the latest; None: it has no bound
    deadline: float
    expected: float  # seconds from when it was accepted
    scale: float
    steps: float
    seat: bool
    soonest: float  # when it comes at the latest, those left out that go before it and came later
    slack: float  # seconds by which those may still delay it
    modelled: float  # of the costs when it was accepted
    delayed: float = 0.0  # seconds that they take


class QueuePlace(NamedTuple):
    """Where a newcomer would stand: with what is ahead of it, and whose bounds are behind it."""

    standing: Standing
    behind: Sequence[OpenBound]


class DeadlineDoor:
    """One engine's."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self.costs, self.lengths, self.counts, self.rush = StepCosts(), AnswerLengths(), BoundCounts(), Rush()
        self.margins, self.own_margins = Margins(share, clock), Margins(share, clock)  # of all / of what was there

    def __repr__(self) -> str:
        return f"DeadlineDoor({self.costs!r}, {self.margins!r}, {self.counts!r})"

    # -- before --------------------------------------------------------------------------------------------------------

    def verdict(self, own: StepWork, pages: int, place: QueuePlace, waited: float, limit: float) -> DoorVerdict:
        """Of a prompt that costs this and needs so many pages. `waited`, `limit`: seconds from when it was asked for.

        Changes nothing. `enter` or `refuse` follows.
        """
        if not self.costs.ready:
            return DoorVerdict(True, None)
        standing = place.standing
        steps, seat = self._steps(own, pages, standing)
        spare = steps * max(1, standing.budget - standing.rows) - standing.ahead.tokens - own.tokens
        beside = min(max(0.0, spare), standing.behind)
        decoding = StepWork(beside, rows=standing.rows * steps, context=standing.context * steps)
        expected = self.costs.seconds(standing.ahead.plus(own).plus(decoding), steps)
        full = StepWork(standing.budget - standing.rows, rows=standing.rows, context=standing.context)
        step = self.costs.seconds(full)  # others may join its steps until they begin
        scale = expected + step
        soonest = waited + expected + self.own_margins.margin(steps, seat) * scale
        bound = max(soonest, min(limit, waited + expected + self.margins.margin(steps, seat) * scale))
        delay = self.delay(own, pages, standing) if place.behind else 0.0
        others = any(0 <= one.slack < delay for one in place.behind)
        in_time, idle = soonest <= limit and not others, not standing.ahead.tokens and not seat
        cost = self._cost(own, standing)
        dear = in_time and not (idle and not standing.rows) and cost > self.rush.limit
        hopeless = not in_time and self._alone(own, standing, step) > limit
        return DoorVerdict(
            in_time and not dear, bound, soonest, steps, expected, scale, seat, others, cost, dear, idle, hopeless
        )

    def _cost(self, own: StepWork, standing: Standing) -> float:
        """Seconds of computing, with its share of the steps in which its answer is made beside others."""
        rows, tokens = standing.rows + 1, self.lengths.left(0, standing.longest)
        turn = self.costs.seconds(StepWork(rows=rows, context=standing.context)) / rows
        return self.costs.seconds(own, own.tokens / max(1, standing.budget - standing.rows)) + tokens * turn

    def _alone(self, own: StepWork, standing: Standing, step: float) -> float:
        """The bound that it would have if nothing were before it."""
        steps = ceil(max(1.0, own.tokens) / max(1, standing.budget - standing.rows))
        expected = self.costs.seconds(own, steps)
        return expected + self.own_margins.margin(steps) * (expected + step)

    def _steps(self, own: StepWork, pages: int, standing: Standing) -> tuple[float, bool]:
        """Until its first token: to compute what comes before and itself, or behind the answers that must end first.

        And whether there are any.
        """
        room = max(1, standing.budget - standing.rows)
        mine = ceil(max(1.0, own.tokens) / room)
        computing = ceil((standing.ahead.tokens + max(1.0, own.tokens)) / room)
        seats = standing.seats_ahead + 1 - standing.free_seats
        lacks = pages - standing.free_pages
        turns = self.lengths.turns(standing.answers, seats, lacks)
        return max(computing, turns + mine), seats > 0 or lacks > 0

    def delay(self, own: StepWork, pages: int, standing: Standing) -> float:
        """Seconds by which those behind it come later: it takes a seat and pages that they may wait for, too."""
        room = max(1, standing.budget - standing.rows)
        seats, lacks = standing.seats_ahead + 1 - standing.free_seats, pages - standing.free_pages
        steps = own.tokens / room
        if seats > 0 or lacks > 0:
            turns, answers = self.lengths.turns, standing.answers
            steps = max(steps, turns(answers, seats + 1, lacks + pages) - turns(answers, seats, lacks))
        rows = StepWork(rows=standing.rows * steps, context=standing.context * steps)
        return self.costs.seconds(own.plus(rows), steps)

    # -- while it is open ----------------------------------------------------------------------------------------------

    def enter(self, verdict: DoorVerdict, asked: float, now: float, limit: float) -> OpenBound:
        """It was accepted."""
        latest = None if verdict.bound is None else asked + verdict.bound
        slack = limit - verdict.soonest
        self.counts.accept(latest is not None)
        if latest is not None:
            self.rush.note(verdict.cost, late=False, idle=verdict.idle)
        found, deadline = verdict, asked + limit
        return OpenBound(
            asked, now, latest, deadline, found.expected, found.scale, found.steps, found.seat,
            asked + verdict.soonest, slack, self.costs.modelled,
        )  # fmt: skip

    def push_back(self, own: StepWork, pages: int, place: QueuePlace) -> None:
        """It goes before those behind it."""
        delay = self.delay(own, pages, place.standing) if place.behind else 0.0
        for one in place.behind:
            one.slack -= delay
            one.delayed += delay

    def refuse(self, verdict: DoorVerdict) -> None:
        """It was not accepted."""
        self.counts.refuse("dear" if verdict.dear else "others" if verdict.others else "own")
        if not verdict.hopeless:
            self.rush.note(verdict.cost, late=not verdict.dear, idle=verdict.idle)

    # -- after ---------------------------------------------------------------------------------------------------------

    def came(self, bound: OpenBound, now: float, *, preempted: bool = False, recomputed: bool = False) -> Fate:
        """Its first token is there; what became of its bound."""
        self.counts.late += now > bound.deadline
        if bound.latest is None:
            return "unbounded"
        kept = now <= bound.latest
        late = (now - bound.accepted - bound.expected) / bound.scale
        self.margins.note(bound.steps, late, kept=kept, seat=bound.seat)
        own_kept = now - bound.delayed <= bound.soonest and (kept or bound.latest < bound.deadline)
        self.own_margins.note(bound.steps, late - bound.delayed / bound.scale, kept=own_kept, seat=bound.seat)
        fate: Fate = "kept"
        if not kept:
            done = self.costs.modelled - bound.modelled
            fate = "preempted" if preempted else "recomputed" if recomputed else "slow"
            if fate == "slow" and done > SLACK * bound.expected:
                fate = "overtaken"
        self.counts.settle(fate)
        return fate

    def left(self, bound: OpenBound, now: float) -> None:
        """It has ended now without a first token: cancelled, or failed."""
        self.counts.late += now > bound.deadline
        if bound.latest is not None:
            self.counts.settle("left")
