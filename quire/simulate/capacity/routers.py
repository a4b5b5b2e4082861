"""Routers: which worker gets a request. They see what a router sees: loads, and for `exact` what each worker holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import ceil
from typing import Literal, NamedTuple

from quire import Request
from quire.simulate.capacity.deadline_worker import DeadlineWorker
from quire.simulate.capacity.simulated_worker import SimulatedWorker
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.trace import TraceRequest

RouterName = Literal["round_robin", "least_loaded", "exact", "deadline"]
ROUTERS: tuple[RouterName, ...] = ("round_robin", "least_loaded", "exact")


class Choice(NamedTuple):
    """A worker, and what it is expected to compute."""

    worker: int  # -1: none would be in time
    tokens: int


Route = Callable[[TraceRequest], Choice]


def open_router(name: RouterName, workers: Sequence[SimulatedWorker], settings: ReplaySettings) -> Route:
    """A router over these workers."""
    if name == "deadline":
        return DeadlineRouter([one for one in workers if isinstance(one, DeadlineWorker)])
    if name == "round_robin":
        return RoundRobin(len(workers))
    kind = LeastLoaded if name == "least_loaded" else ExactRouter
    return kind(workers, settings)


class DeadlineRouter:
    """The one whose bound is smallest; none where that is too late. All are asked."""

    def __init__(self, workers: Sequence[DeadlineWorker]) -> None:
        self._workers, self._turn = workers, 0

    def __call__(self, request: TraceRequest) -> Choice:
        """Of equal bounds, as those of workers that know nothing yet, the next in turn."""
        count, prompt = len(self._workers), self._workers[0].asked(request)
        turn, self._turn = self._turn, (self._turn + 1) % count
        verdicts = [worker.verdict(request, prompt) for worker in self._workers]
        ranked = sorted(range(count), key=lambda nth: (verdicts[nth].soonest, (nth - turn) % count))
        chosen = next((nth for nth in ranked if verdicts[nth].accepted), None)
        if chosen is None:
            self._workers[ranked[0]].door.refuse(verdicts[ranked[0]])
            return Choice(-1, 0)
        return Choice(chosen, self._workers[chosen].accept(request, prompt, verdicts[chosen]))


class RoundRobin:
    """One after the other."""

    def __init__(self, count: int) -> None:
        self._count, self._next = count, 0

    def __call__(self, request: TraceRequest) -> Choice:
        """The next one."""
        chosen, self._next = self._next, (self._next + 1) % self._count
        return Choice(chosen, request.length)


class LeastLoaded:
    """The one that would give the first token soonest, if none held anything."""

    def __init__(self, workers: Sequence[SimulatedWorker], settings: ReplaySettings) -> None:
        self._workers, self._settings = workers, settings
        self._turn = 0  # equal ones take turns

    def __call__(self, request: TraceRequest) -> Choice:
        """Loads as they are now; of equal ones the next in turn."""
        count, length = len(self._workers), request.length
        turn, self._turn = self._turn, (self._turn + 1) % count
        alone = length / self._settings.pace.prefill_tokens_per_second
        costs = [
            (alone if worker.at_rest else self._seconds(worker, length), worker.num_given, (nth - turn) % count, nth)
            for nth, worker in enumerate(self._workers)
        ]
        return Choice(min(costs)[-1], length)

    def _seconds(self, worker: SimulatedWorker, tokens: int) -> float:
        """Until a prompt of so many tokens is computed behind those that wait; every step has a turn of decoding.

        The least that a step takes is left out: where it hides a difference, fewer tokens are still better.
        """
        pace, budget = self._settings.pace, self._settings.token_budget
        every = worker.pending_tokens() + tokens
        turns = 1 if budget is None else ceil(every / budget)
        decoding = worker.num_decoding
        return every / pace.prefill_tokens_per_second + (turns * pace.turn(decoding) if decoding else 0.0)


class ExactRouter(LeastLoaded):
    """The one that would give the first token soonest, by what each holds: tokens held against load.

    What a worker holds is asked of its cache, as events would tell it. Few are asked: what a worker was given before
    bounds what it can hold, and a worker that would be too late even then is not asked.
    """

    def __init__(self, workers: Sequence[SimulatedWorker], settings: ReplaySettings) -> None:
        super().__init__(workers, settings)
        self._given: dict[tuple[object, int, int], int] = {}  # scope, place and part of a prompt -> workers, as bits

    def __call__(self, request: TraceRequest) -> Choice:
        """Ask the most promising ones first."""
        bounds = self._most_held(request)
        count, length = len(self._workers), request.length
        turn, self._turn = self._turn, (self._turn + 1) % count
        resting = [(nth - turn) % count for nth, one in enumerate(self._workers) if one.at_rest and nth not in bounds]
        first = (min(resting) + turn) % count if resting else None  # of those that are all alike
        waiting = [
            (self._seconds(worker, length - bounds.get(nth, 0)), (nth - turn) % count, 0, nth, bounds.get(nth, 0))
            for nth, worker in enumerate(self._workers)
            if nth == first or nth in bounds or not worker.at_rest
        ]
        heapify(waiting)
        prompt: Request | None = None
        while True:
            _, place, asked, nth, held = heappop(waiting)
            if asked or not held:
                self._note(request, nth)
                return Choice(nth, length - held)
            prompt = self._workers[nth].asked(request) if prompt is None else prompt
            held = self._workers[nth].held(prompt)
            heappush(waiting, (self._seconds(self._workers[nth], length - held), place, 1, nth, held))

    def _most_held(self, request: TraceRequest) -> dict[int, int]:
        """By worker: tokens of the leading parts of a prompt that it was ever given, if any."""
        bounds: dict[int, int] = {}
        still = (1 << len(self._workers)) - 1 if request.reuse else 0
        end = 0
        for place, (part, size) in enumerate(zip(request.parts.tolist(), request.sizes.tolist(), strict=True)):
            left = still & self._given.get((request.scope, place, part), 0)
            if end:
                bounds.update(dict.fromkeys(_bits(still & ~left), end))
            still, end = left, end + size
            if not still:
                return bounds
        return {**bounds, **dict.fromkeys(_bits(still), min(end, request.length - 1))}

    def _note(self, request: TraceRequest, worker: int) -> None:
        if not request.reuse:
            return
        for place, part in enumerate(request.parts.tolist()):
            key = (request.scope, place, part)
            self._given[key] = self._given.get(key, 0) | 1 << worker


def _bits(number: int) -> Iterator[int]:
    """Places of its ones."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
