"""SimulatedWorker: one player among many on one clock. It gets requests as they come, and knows nothing of the others.

run_until(the next arrival anywhere) -> load, held(request) -> give(request) -> ... -> run_to_end
"""

from __future__ import annotations

from math import inf

from quire import Receipt, Request
from quire.simulate.play.admission import AdmissionResult
from quire.simulate.play.decoders import RunningRequest
from quire.simulate.play.trace_player import PlayedTrace, Player
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.trace import Trace, TraceRequest


class SimulatedWorker(Player):
    """A worker. `first_tokens` has the seconds to the first token, by request."""

    def __init__(self, trace: Trace | PlayedTrace, settings: ReplaySettings) -> None:
        super().__init__(trace, settings, None)
        self.at_rest = True  # it has nothing to do
        self.quiet_until = -inf  # until then it only decodes, no sequence is done, and its clock may stay behind
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
    def has_disk(self) -> bool:
        """Whether something goes on even where it has nothing to do."""
        return self._slow is not None

    @property
    def now(self) -> float:
        """Where its clock is."""
        return self._now

    @property
    def num_decoding(self) -> int:
        """Sequences that make a token in each turn."""
        return len(self._decoders)

    def pending_tokens(self) -> int:
        """Prompt tokens that come before those of the next request."""
        if not self._queue and not self._inbox:
            self._waiting.clear()  # of those that can never fit
        under_way = (run.sequence for run in self._prompts.values())
        return sum(self._waiting.values()) + sum(one.prompt_end - one.computed for one in under_way)

    def num_overdue(self) -> int:
        """Requests that are late already, with those that wait and can only be late."""
        known = [*self._waiting, *(number for number in self._prompts if number not in self.first_tokens)]
        return self.num_late + sum(self._now - self._times[number] > self.late_after for number in known)

    def asked(self, request: TraceRequest) -> Request:
        """A prompt as any worker takes it, to be looked for."""
        return Request(("held", request.number), self._token_ids.prompt(request), request.scope)

    def held(self, prompt: Request) -> int:
        """Tokens of a prompt that it would not have to compute: what its events would tell a router."""
        return self.cache.inner.probe([prompt])[0].start

    def give(self, request: TraceRequest, expected: int) -> None:
        """A request comes now, and should have to compute so many tokens."""
        self._arrived, self.at_rest, self.quiet_until = request.number, False, -inf
        while self._now < self._times[request.number] and self.is_busy:
            self._go_on()  # turns that were put off
        self._now = max(self._now, self._times[request.number])
        self._inbox.append(request)
        self._waiting[request.number] = expected
        self.num_given += 1

    def run_until(self, coming: int) -> None:
        """Until the request of this number comes, to whomever; turns of decoding that reach beyond it are put off.

        A disk has work when nothing else has: what was released last goes down only then.
        """
        self._arrived, until = coming, self._times[coming]
        while self._now < until and (self.is_busy or self.has_disk):
            if not (self._inbox or self._queue or self._prompts or self._slow):
                self.quiet_until = self._last_turn()
                if self.quiet_until > until:
                    return
            self._go_on()
        self.at_rest = not self.is_busy

    def _last_turn(self) -> float:
        """When the turn begins in which a sequence is done, or behind which more slots are needed."""
        pace, moved, count = self._settings.pace, self.cache.moved, len(self._decoders)
        return self._now + pace.decode(self._decoders.leap(), count, moved.up, moved.down) - pace.turn(count)

    def run_to_end(self) -> None:
        """Until everything it was given is done."""
        self._arrived = len(self._trace)
        while self.is_busy:
            self._go_on()
        self.at_rest = True
        if self._slow is not None:
            self._slow.close()

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
