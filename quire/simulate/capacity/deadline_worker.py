"""DeadlineWorker: a simulated worker whose requests want their first token in time, with the engine's own DeadlineDoor.

    with a door       bounds, by what it holds and what waits here; hits are held; the earliest deadline first
    without           all are taken; a client whose time is over leaves, waiting or while its prompt is computed

Knows nothing of other workers.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappush
from typing import NamedTuple

from quire import InputError, Request
from quire.core.outside.find import Found
from quire.core.records.errors import say
from quire.insight.deadlines.answer_lengths import RunningAnswer
from quire.insight.deadlines.door import DeadlineDoor, DoorVerdict, OpenBound, QueuePlace, Standing
from quire.insight.deadlines.margins import checked_share
from quire.insight.deadlines.step_costs import StepWork, prompt_work
from quire.simulate.capacity.simulated_worker import SimulatedWorker
from quire.simulate.play.admission import AdmissionResult
from quire.simulate.play.decoders import RunningRequest
from quire.simulate.play.trace_player import PlayedTrace
from quire.simulate.play.waiting import QueueEntry, WaitingQueue, WaitingRequest
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.trace import Trace, TraceRequest

HELD = 0.25  # of the device's pages, for requests that wait
LONGEST_ANSWER = 4096  # tokens, before it is known how long answers are


class FleetDeadlines(NamedTuple):
    """When first tokens are wanted: seconds, of one request after the other in turn. `share`: of bounds to keep."""

    seconds: tuple[float, ...]
    share: float = 0.95

    def of(self, number: int) -> float:
        """Seconds that a request has."""
        return self.seconds[number % len(self.seconds)]

    def check(self) -> None:
        """Refuse what is no time, or no share."""
        checked_share(self.share)
        if not self.seconds or not all(0 < one <= 3600 for one in self.seconds):
            raise InputError(say("first tokens in time", "a time is not above 0 or over an hour", "give 500,5000"))


class DeadlineQueue(WaitingQueue):
    """By priority, then by deadline."""

    def __init__(self, deadline: Callable[[int], float]) -> None:
        super().__init__()
        self._deadline = deadline

    def put(self, waiting: WaitingRequest) -> None:
        """Behind those of its priority that want their first token sooner."""
        request = waiting.request
        heappush(self, QueueEntry(-request.priority, self._deadline(request.number), waiting))

    def outranks(self, request: TraceRequest) -> bool:
        """Whether it would come to the head."""
        head = self[0] if self else None
        return head is None or (-request.priority, self._deadline(request.number)) < (head.rank, head.order)


class DeadlineWorker(SimulatedWorker):
    """One worker."""

    def __init__(
        self, trace: Trace | PlayedTrace, settings: ReplaySettings, wanted: FleetDeadlines, *, has_door: bool
    ) -> None:
        super().__init__(trace, settings)
        self.wanted, self.has_door = wanted, has_door
        self.door = DeadlineDoor(wanted.share, lambda: self._now)
        self.num_left = 0  # requests whose time was over
        self._needs: dict[int, int] = {}  # pages of those that wait
        self._bounds: dict[int, OpenBound] = {}
        self._held: dict[int, tuple[Found, int]] = {}  # with its pages
        self._room = int(HELD * self.cache.config.slots_of(0, 0))
        self._first = float("inf")  # when the next one's time is over
        if has_door:
            self._queue = DeadlineQueue(self.deadline)

    def deadline(self, number: int) -> float:
        """When a request wants its first token; no two are equal."""
        return self._times[number] + self.wanted.of(number) + 1e-9 * number

    # -- at the door -------------------------------------------------------------------------------------------------

    def verdict(self, request: TraceRequest, prompt: Request) -> DoorVerdict:
        """What it would say to a request that comes now."""
        (probe,) = self.cache.inner.probe([prompt])
        own, pages = prompt_work(probe.start, request.length, probe.onboard_bytes), probe.slots_now[0]
        waited = max(0.0, self._now - self._times[request.number])
        return self.door.verdict(own, pages, self._place(request, pages), waited, self.wanted.of(request.number))

    def accept(self, request: TraceRequest, prompt: Request, verdict: DoorVerdict) -> int:
        """It comes in; tokens that it should have to compute."""
        own = prompt_work(self._hold(request.number, prompt), request.length)
        (probe,) = self.cache.inner.probe([prompt])
        pages, asked = probe.slots_now[0], self._times[request.number]
        place = self._place(request, pages)
        self._needs[request.number] = pages
        self.door.push_back(own, pages, place)
        limit = self.wanted.of(request.number)
        self._bounds[request.number] = self.door.enter(verdict, asked, max(asked, self._now), limit)
        return int(own.tokens)

    def _hold(self, number: int, prompt: Request) -> int:
        start = self.held(prompt)
        found = self.cache.inner.find(prompt)
        pages = len(found.blocks(0))
        if not pages or sum(count for _, count in self._held.values()) + pages > self._room:
            found.close()
            return 0 if pages else start
        self._held[number] = found, pages
        return start

    def _place(self, request: TraceRequest, need: int) -> QueuePlace:
        mine = self.deadline(request.number)
        ahead, behind, later, seats, pages = 0.0, list[OpenBound](), 0.0, 0, 0
        for number, tokens in self._waiting.items():
            if self.deadline(number) <= mine:
                ahead, seats, pages = ahead + tokens, seats + 1, pages + self._needs.get(number, 0)
            else:
                later += tokens
                if number in self._bounds:
                    behind.append(self._bounds[number])
        ahead += sum(run.sequence.prompt_end - run.sequence.computed for run in self._prompts.values())
        rows, settings, cache = len(self._decoders), self._settings, self.cache
        free = settings.max_sequences - cache.inner.num_sequences
        free_pages = cache.num_free(0) - pages
        tight = seats + 1 > free or free_pages < need
        answers = [self._answer(run) for run in self._decoders] if tight else ()
        budget = (settings.token_budget or 1 << 20) + rows  # decoding sequences take none of it here
        standing = Standing(budget, StepWork(ahead), later, seats, rows, 0.0, free, free_pages, answers,
                            LONGEST_ANSWER)  # fmt: skip
        return QueuePlace(standing, behind)

    def _answer(self, run: RunningRequest) -> RunningAnswer:
        made = self._decoders.made(run.row)
        own = run.length + made - run.sequence.start  # others may keep what it found
        pages = -(-own // self.cache.config.block_size)
        return RunningAnswer(made, max(LONGEST_ANSWER, made + 1), pages)

    def num_overdue(self) -> int:
        """With those that left."""
        return self.num_left + super().num_overdue()

    # -- what a worker does, with deadlines ----------------------------------------------------------------------------

    def _admit(self) -> AdmissionResult:
        if not self.has_door and self._now > self._first:
            self._leave()
        found = super()._admit()
        if not found.spans and self._held and not (self._prompts or self._decoders):
            self._give_up()  # nothing else runs: the head may need what is held for others
            found = super()._admit()
        return found

    def _pass_time(self, result: AdmissionResult) -> None:
        if not self.is_busy and self._next_event() is None:
            return  # its last clients have left just now
        began, turn, rows, moved = self._now, self._decoders.turn, len(self._decoders), sum(self.cache.moved.up)
        super()._pass_time(result)
        turns = self._decoders.turn - turn
        if self.has_door and turns:
            self.door.costs.note(StepWork(rows=rows, bytes=moved / turns), (self._now - began) / turns, turns)

    def _leave(self) -> None:
        """Clients whose time is over."""
        gone = {
            one.waiting.request.number for one in self._queue
            if not one.waiting.again and self.deadline(one.waiting.request.number) < self._now
        }  # fmt: skip
        if gone:
            self._queue[:] = [one for one in self._queue if one.waiting.request.number not in gone]
            heapify(self._queue)
            self._shortage = None
        for number in gone:
            self._waiting.pop(number, None)
        computed = [number for number in self._prompts if number not in self.first_tokens]
        late = [self._prompts[number] for number in computed if self.deadline(number) < self._now]
        for run in late:
            del self._prompts[run.waiting.request.number]
            self._end(run)
        self.num_left += len(gone) + len(late)
        coming = [*self._waiting, *(number for number in self._prompts if number not in self.first_tokens)]
        self._first = min(map(self.deadline, coming), default=float("inf"))

    def _give_up(self) -> None:
        for number in list(self._held):
            self._let_go(number)
        self._shortage = None

    def _let_go(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            held[0].close()
            self._gave = True

    def _enqueue(self, request: TraceRequest) -> None:
        self._first = min(self._first, self.deadline(request.number))
        super()._enqueue(request)

    def _seat(self, run: RunningRequest, receipt: object) -> None:
        self._let_go(run.waiting.request.number)
        self._needs.pop(run.waiting.request.number, None)
        super()._seat(run, receipt)  # type: ignore[arg-type]

    def _make_room(self) -> None:
        if self._held:
            self._give_up()
        else:
            super()._make_room()

    def _compute(self, result: AdmissionResult) -> None:
        began, moved = self._now, sum(self.cache.moved.up)
        rows, before = len(self._decoders), list(self._prompts)
        super()._compute(result)
        if not self.has_door:
            return
        self.door.costs.note(StepWork(result.num_tokens, 0.0, rows, 0.0, moved), self._now - began)
        for number in before:
            if number not in self._prompts and (bound := self._bounds.pop(number, None)) is not None:
                self.door.came(bound, self._now)

    def _end(self, run: RunningRequest) -> None:
        self.door.lengths.note(run.waiting.request.output)
        super()._end(run)
