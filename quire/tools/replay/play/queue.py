"""Queue: asks that wait for admission, by priority, then by arrival; those that were preempted come first."""

from __future__ import annotations

import heapq

from quire import Prepared, Request
from quire.tools.replay.play.timed_cache import Door
from quire.tools.replay.settings import Settings
from quire.tools.replay.workload.trace import Ask
from quire.tools.replay.workload.words import Words


class Waiting:
    """An ask that is not admitted, or not any more. Its tokens are made when it first comes to the head."""

    __slots__ = ("again", "answered", "ask", "made", "prepared", "request")

    def __init__(self, ask: Ask, request: Request | None = None, made: int = 0) -> None:
        self.ask = ask
        self.request = request  # of a preempted one: what goes on where it was
        self.made = made  # generated tokens among the request's
        self.again = request is not None  # it was admitted before
        self.answered = False  # its first token was given
        self.prepared: Prepared | None = None

    def preempted(self, request: Request | None, made: int) -> Waiting:
        """The same ask, to go on with `request`, or (None) to start over."""
        waiting = Waiting(self.ask, request, made)
        waiting.again, waiting.answered = True, self.answered
        return waiting

    def ready(self, door: Door, words: Words, settings: Settings) -> Prepared:
        """The request, prepared once and used for every try."""
        if self.prepared is None:
            request = self.request
            if request is None:
                ask = self.ask
                request = Request(
                    ask.number, words.prompt(ask), ask.scope, retention=settings.retention(ask), reuse=ask.reuse,
                    max_new_tokens=0 if settings.prefill_only else max(ask.output - 1, 0),
                )  # fmt: skip
            self.prepared = door.prepare(request)
        return self.prepared


class Queue:
    """A heap of waiting asks."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiting]] = []
        self._front = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, waiting: Waiting) -> None:
        """Behind those of its priority that arrived before."""
        heapq.heappush(self._heap, (-waiting.ask.priority, waiting.ask.number, waiting))

    def put_first(self, waiting: Waiting) -> None:
        """Before all others of its priority."""
        self._front -= 1
        heapq.heappush(self._heap, (-waiting.ask.priority, self._front, waiting))

    def outranks(self, ask: Ask) -> bool:
        """Whether it would come to the head."""
        return not self._heap or (-ask.priority, ask.number) < self._heap[0][:2]

    def take(self, count: int) -> list[tuple[int, int, Waiting]]:
        """The first so many, with their places."""
        return [heapq.heappop(self._heap) for _ in range(min(count, len(self._heap)))]

    def put_back(self, entries: list[tuple[int, int, Waiting]]) -> None:
        """Where they were."""
        for entry in entries:
            heapq.heappush(self._heap, entry)
