"""Requests that wait for admission, by priority, then by arrival; those that were preempted come first."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from quire import Prefetch, Prepared, Request
from quire.simulate.play.timed_cache import Budgets, TimedCache
from quire.simulate.play.token_budget import part_of
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.token_ids import TokenIds
from quire.trace.read.trace import TraceRequest
from quire.trace.units import Int32


class LastLook(NamedTuple):
    """What a waiting request would have to compute, and the first part of its prompt that is not all there."""

    start: int
    end: int
    part: int
    when: int  # steps that had been computed by then


class WaitingRequest:
    """A request that is not admitted, or not any more. Its tokens are made when it first comes to the head."""

    __slots__ = (
        "_prepared", "_resumed", "again", "answered", "brought", "found", "made", "not_before", "prefetch", "request",
    )  # fmt: skip

    def __init__(self, request: TraceRequest, resumed: Request | None = None, made: int = 0) -> None:
        self.request = request
        self.made = made  # generated tokens among those of `resumed`
        self.again = resumed is not None  # it was admitted before
        self.answered = False  # its first token was given
        self.prefetch: Prefetch | None = None  # from the slow tier
        self.brought = 0  # pages that have come by it
        self.not_before = 0.0  # it is passed over until then, for what is on its way
        self.found: LastLook | None = None  # when it was last looked at
        self._resumed = resumed  # of a preempted one: goes on where it was
        self._prepared: Prepared | None = None

    def preempted(self, resumed: Request | None, made: int) -> WaitingRequest:
        """The same request, to go on with `resumed`, or (None) to start over."""
        waiting = WaitingRequest(self.request, resumed, made)
        waiting.again, waiting.answered = True, self.answered
        return waiting

    def ready(self, cache: TimedCache, token_ids: TokenIds, settings: ReplaySettings) -> Prepared:
        """As the cache takes it, prepared once and used for every try."""
        if self._prepared is None:
            request = self._fresh(token_ids, settings) if self._resumed is None else self._resumed
            self._prepared = cache.prepare(request)
        return self._prepared

    def _fresh(self, token_ids: TokenIds, settings: ReplaySettings) -> Request:
        request = self.request
        return Request(
            request.number, token_ids.prompt(request), request.scope, retention=settings.retention(request),
            reuse=request.reuse, max_new_tokens=0 if settings.prefill_only else max(request.output - 1, 0),
            session=settings.session(request),
        )  # fmt: skip

    def admitted(self) -> None:
        """What was prepared is used up."""
        self._prepared = None

    def set_aside(self) -> None:
        """It will wait for long: what was prepared takes memory, and is made again."""
        self._prepared = None


class Forecast:
    """Whom a step's token budget will reach, going by what was found for them when they were last looked at.

    Of those whose missing part was computed since, that is not known any more: they are looked at again.
    """

    def __init__(self, left: int, budgets: Budgets, computed: Int32) -> None:
        self._left, self._max_chunk, self._computed = left, budgets.max_chunk, computed
        self._alone = left == budgets.token_budget  # it is alone in the step: the cache says whether it ever fits

    def reaches(self, waiting: WaitingRequest) -> bool:
        """Whether something is left for it; what it takes is used up."""
        last = waiting.found
        if last is None or self._computed[last.part] > last.when:
            self._alone = False
            return True
        tokens = part_of(last.start, last.end, self._left, self._max_chunk)
        self._left -= tokens or 0
        alone, self._alone = self._alone, False
        return tokens is not None or alone


class QueueEntry(NamedTuple):
    """A place in the queue; places differ, so that requests themselves are never compared."""

    rank: int  # the lower, the sooner: its priority, negated
    order: float  # among equal ranks: by arrival or deadline, below 0 for those that were preempted
    waiting: WaitingRequest


class WaitingQueue(list[QueueEntry]):
    """A heap of waiting requests: a list, since every step asks whether it is empty."""

    def __init__(self) -> None:
        self._front = 0

    def put(self, waiting: WaitingRequest) -> None:
        """Behind those of its priority that arrived before."""
        heapq.heappush(self, QueueEntry(-waiting.request.priority, waiting.request.number, waiting))

    def put_first(self, waiting: WaitingRequest) -> None:
        """Before all others of its priority."""
        self._front -= 1
        heapq.heappush(self, QueueEntry(-waiting.request.priority, self._front, waiting))

    def outranks(self, request: TraceRequest) -> bool:
        """Whether it would come to the head."""
        head = self[0] if self else None
        return head is None or (-request.priority, request.number) < (head.rank, head.order)

    def take(self, count: int, now: float, budget: Forecast | None = None) -> list[QueueEntry]:
        """The first so many, with their places; less those for whom the budget has nothing left. Who waits for a
        prefetch is passed over."""
        entries: list[QueueEntry] = []
        passed: list[QueueEntry] = []
        while self and len(entries) < count:
            entry = heapq.heappop(self)
            if entry.waiting.not_before > now:
                passed.append(entry)
                continue
            if budget is not None and not budget.reaches(entry.waiting):
                passed.append(entry)
                break
            entries.append(entry)
        self.put_back(passed)
        return entries

    def put_back(self, entries: list[QueueEntry]) -> None:
        """Where they were."""
        for entry in entries:
            heapq.heappush(self, entry)
