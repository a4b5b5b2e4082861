"""SimulatedWorker: one player among many on one clock. It gets requests as they come, and knows nothing of the others.

run_until(the next arrival anywhere) -> load, held(request) -> give(request) -> ... -> run_to_end
"""

from __future__ import annotations

from math import inf

from quire import Receipt, Request
from quire.tools.replay.play.admission import AdmissionResult
from quire.tools.replay.play.decoders import RunningRequest
from quire.tools.replay.play.player import Player
from quire.tools.replay.setup.settings import ReplaySettings
from quire.tools.replay.workload.trace import Trace, TraceRequest


class SimulatedWorker(Player):
    """A worker. `first_tokens` has the seconds to the first token, by request."""

    def __init__(self, trace: Trace, settings: ReplaySettings) -> None:
        super().__init__(trace, settings, None)
        self._inbox: list[TraceRequest] = []
        self._waiting: dict[int, int] = {}  # by request: tokens it was expected to compute when it came
        self._seen: set[int] = set()
        self.first_tokens: dict[int, float] = {}
        self.num_given = 0
        self.num_late = 0  # first tokens that came later than `late_after` seconds
        self.late_after = inf
        self.prompt_tokens = self.saved_tokens = 0  # of requests that were admitted

    @property
    def is_busy(self) -> bool:
        """Whether it has anything to do."""
        return bool(self._inbox or self._queue or self._prompts or self._decoders)

    @property
    def now(self) -> float:
        """Where its clock is."""
        return self._now

    @property
    def num_decoding(self) -> int:
        """Sequences that make a token in each turn."""
        return len(self._decoders)

    def pending_tokens(self) -> int:
        """Prompt tokens that come before those of whoever comes next."""
        if not self._queue and not self._inbox:
            self._waiting.clear()  # of those that can never fit
        under_way = (run.sequence for run in self._prompts.values())
        return sum(self._waiting.values()) + sum(one.prompt_end - one.computed for one in under_way)

    def num_overdue(self) -> int:
        """Requests that are late already, with those that wait and can only be late."""
        known = [*self._waiting, *(number for number in self._prompts if number not in self.first_tokens)]
        return self.num_late + sum(self._now - self._times[number] > self.late_after for number in known)

    def held(self, request: TraceRequest) -> int:
        """Tokens of a request that it would not have to compute: what its events would tell a router."""
        if not request.reuse:
            return 0
        asked = Request(("held", request.number), self._token_ids.prompt(request), request.scope)
        return self.cache.inner.probe([asked])[0].start

    def give(self, request: TraceRequest, expected: int) -> None:
        """A request comes now, and should have to compute so many tokens."""
        self._now = max(self._now, self._times[request.number])
        self._inbox.append(request)
        self._waiting[request.number] = expected
        self.num_given += 1

    def run_until(self, coming: int) -> None:
        """Until the request of this number comes, to whomever."""
        self._arrived = coming
        while self.is_busy and self._now < self._times[coming]:
            self._turn()

    def run_to_end(self) -> None:
        """Until everything it was given is done."""
        self._arrived = len(self._trace)
        while self.is_busy:
            self._turn()

    def _turn(self) -> None:
        self._arrive()
        result = self._admit()
        if result.spans:
            self._compute(result)
        else:
            self._pass_time(result)
        self._decoders.catch_up()

    # -- what a player does, with an eye on it -----------------------------------------------------------------------

    def _arrive(self) -> None:
        for request in self._inbox:
            self._enqueue(request)
        self._inbox.clear()

    def _seat(self, run: RunningRequest, receipt: Receipt | None) -> None:
        request = run.waiting.request
        self._waiting.pop(request.number, None)
        if request.number not in self._seen:
            self._seen.add(request.number)
            self.prompt_tokens += request.length
            self.saved_tokens += run.sequence.computed
        super()._seat(run, receipt)

    def _compute(self, result: AdmissionResult) -> None:
        before = list(self._prompts)
        super()._compute(result)
        for number in before:
            if number not in self._prompts and number not in self.first_tokens:
                waited = self.first_tokens[number] = self._now - self._times[number]
                self.num_late += waited > self.late_after
