"""FleetStream: the answers to one prompt, from whichever worker has them. Continues them when a worker is gone.

An answer that was begun goes to another worker with the tokens so far: what came is not sent to the client again, and
what comes is what would have come, since chance depends on the seed and the place alone. Several answers to one prompt,
and very long ones, begin anew with the same seed; what has come of them already is passed over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from quire.core.records.errors import InputError, StateError, say
from quire.core.records.request import Int32
from quire.engine.loop.feed import Piece
from quire.engine.loop.stream import RunFailed
from quire.engine.setup.submission import EngineBusy, TooLate
from quire.engine.step.runs.branch import Answer
from quire.fleet.fleet_work import FleetFull, FleetWork, MorePieces, Over, Taken, WorkerLost, WorkerMessage, WorkRefused
from quire.fleet.in_flight import WorkTicket
from quire.fleet.prefix_marks import marks_of
from quire.fleet.worker_quotes import WorkerQuotes
from quire.serve.answers.answer_stream import WholeAnswer
from quire.serve.http.api_errors import RETRY_AFTER, ApiError

MOST_ASKED = 8  # workers one after the other, whether they would be in time
LEAST_LEFT = 1e-6  # seconds that a worker is told, who then says when it would come
QUOTING = 0.25  # of a deadline, that workers may take to say when a first token would come
MOST_BEGUN = 2000  # tokens that go to another worker; more would fill its queue of unread pieces
_log = logging.getLogger("quire.fleet")


class WorkerCall(Protocol):
    """One FleetWork under way. Reading raises WorkerLost when its worker is gone, FleetFull when too much waits."""

    def __aiter__(self) -> AsyncIterator[WorkerMessage]:
        """Its messages."""
        ...

    def cancel(self) -> None:
        """It has no reader any more."""
        ...


Caller = Callable[[FleetWork], WorkerCall]


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """How long a server waits for its workers, and how often an answer may lose one."""

    route_seconds: float = 30.0  # until a worker has taken a request; then it gets 503
    quote_seconds: float = 0.5  # until a worker has said when a first token would come
    silence_seconds: float = 30.0  # without a word from a worker, which says something every few seconds
    most_losses: int = 3  # workers that one request may lose


class FleetStream:
    """Of one prompt. `open` before it is read, `close` in the end."""

    def __init__(
        self, caller: Caller, work: FleetWork, limits: FleetLimits, on_resume: Callable[[], None],
        quotes: WorkerQuotes | None = None,
    ) -> None:  # fmt: skip
        self._caller, self._limits, self._on_resume, self._quotes = caller, limits, on_resume, quotes
        self._asked = time.monotonic()
        self._ticket = WorkTicket(marks_of(work.tokens, work.scope), work.hints.session)
        self._work = replace(work, ticket=self._ticket)
        self._call: WorkerCall | None = None
        self._messages: AsyncIterator[WorkerMessage] | None = None
        self._seen = [0] * work.sampling.n  # pieces of each answer that went to the client
        self._came = [0] * work.sampling.n  # and that this worker has sent
        self.answers = [Answer() for _ in range(work.sampling.n)]
        self.reused = 0
        self.worker: str | None = None  # who has taken it last
        self.bound: float | None = None  # seconds until its first token, at the latest, as that one said
        self._late: dict[str, float] = {}  # and by worker, as those said that would be too late
        self.num_losses = 0
        self._was_cut = False

    def __repr__(self) -> str:
        return f"FleetStream({self._work!r}, {self._ticket!r}, {self.num_losses} workers lost)"

    @property
    def prompt(self) -> Int32:
        """Its token ids."""
        return self._work.tokens

    # -- finding a worker --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find a worker that takes it, in time."""
        try:
            async with asyncio.timeout(self._limits.route_seconds):
                await self._ask_all()
                while not await self._is_taken():
                    pass
        except TimeoutError:
            self._stop_call()
            fact = f"no worker has taken it in {self._limits.route_seconds:g} s"
            raise ApiError(
                503, say("the request", fact, "ask again later"), code="no_worker", headers=RETRY_AFTER
            ) from None

    async def _ask_all(self) -> None:
        """When would each have a first token? The ticket puts the soonest first."""
        if self._quotes is None or self._work.ttft is None or any(self._seen):
            return
        work = self._begun()
        seconds = min(self._limits.quote_seconds, QUOTING * (work.ttft or 0.0))
        quotes = await self._quotes.of(work, seconds, self._ticket.avoided)
        self._ticket.quoted = {name: (not one.accepted, one.soonest) for name, one in quotes.items()}
        self._late = {name: self._passed + one.bound for name, one in quotes.items() if not one.accepted}

    @property
    def _passed(self) -> float:
        """Seconds since it was asked for."""
        return time.monotonic() - self._asked

    async def _is_taken(self) -> bool:
        """Ask one worker; False: it is gone, ask another. What is wrong with the request is raised."""
        self._came, passed = [0] * len(self.answers), self._passed
        work = self._begun()
        soon = None if work.begun or work.ttft is None else max(work.ttft, self._limits.quote_seconds)
        self._call = self._caller(work)
        self._messages = aiter(self._call)
        try:
            first = await self._next(soon)  # later than that is too late in any case
        except WorkerLost as error:
            self._lose(error)
            self._check_time()
            return False
        match first:
            case Taken(worker, bound):
                self.worker, self.bound = worker, None if bound is None else passed + bound
                return True
            case WorkRefused("late", text, worker, bound):
                self._ask_another(text, worker, passed + bound)
                return False
            case WorkRefused("input", text):
                raise InputError(text)
            case WorkRefused("busy", text):
                raise EngineBusy(text)
            case WorkRefused(_, text):
                self._lose(WorkerLost(text))
                return False
        raise RunFailed(f"a worker began with {type(first).__name__}")

    def _check_time(self) -> None:
        """No worker has said anything, and the time for a first token is over."""
        ttft, passed = self._work.ttft, self._passed
        if ttft is not None and passed > 0.99 * ttft and not any(self._seen):
            fact, cure = "no worker has said in that time that it can", "ask again later, or with more time"
            raise TooLate(say(f"a first token within {ttft:g} s", fact, cure), passed, ttft)

    def _ask_another(self, text: str, worker: str, bound: float) -> None:
        """This one would be too late. When all have said so, or enough, the least of their bounds is the answer."""
        known = worker in self._late
        self._late[worker] = min(bound, self._late.get(worker, bound))
        quoted = self._ticket.quoted
        over = known or len(self._late) >= MOST_ASKED
        if quoted:
            over = all(refused or name in self._late for name, (refused, _) in quoted.items())
        if over:
            raise TooLate(text, min(self._late.values()), self._work.ttft or 0.0)
        self._stop_call()
        self._ticket.lost()

    def _begun(self) -> FleetWork:
        """The work as it is now: with the time that is left, or behind the tokens so far."""
        made, work = self.answers[0].tokens, self._work
        if work.ttft is not None:
            work = replace(work, ttft=max(LEAST_LEFT, work.ttft - self._passed))
        alone = len(self.answers) == 1 and work.sampling.beams == 1
        if not alone or not 0 < len(made) <= MOST_BEGUN or len(made) >= work.sampling.max_tokens:
            return work
        return replace(work, begun=tuple(made))

    def _lose(self, why: WorkerLost) -> None:
        """Its worker is gone; too many of them are an error."""
        if self._was_cut:
            fact, cure = "it was ended before it was complete: the server shuts down", "ask again"
            raise ApiError(503, say("the answer", fact, cure), code="shutting_down")
        _log.warning("an answer lost its worker after %d pieces: %s", sum(self._seen), why)
        self._stop_call()
        self._ticket.lost()
        self.num_losses += 1
        if self.num_losses > self._limits.most_losses:
            fact = f"{self.num_losses} workers were lost while they had it"
            raise ApiError(503, say("the answer", fact, "ask again later"), code="workers_lost", headers=RETRY_AFTER)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _next(self, seconds: float | None) -> WorkerMessage:
        if self._was_cut:  # while it had no reader
            raise WorkerLost("it was cut")
        if self._messages is None:
            raise StateError(say("an answer of a fleet", "it is not open", "open it, and close it when it was read"))
        try:
            async with asyncio.timeout(seconds):
                return await anext(self._messages)
        except StopAsyncIteration:
            raise WorkerLost("it ended before the answer did") from None
        except FleetFull as full:
            raise ApiError(429, str(full), code="fleet_full", headers=RETRY_AFTER) from None
        except TimeoutError:
            raise WorkerLost(f"it has said nothing for {seconds:g} s") from None

    async def batches(self) -> AsyncIterator[list[Piece]]:
        """What is new, as often as something is."""
        while True:
            try:
                message = await self._next(self._limits.silence_seconds)
                if isinstance(message, Over) and message.is_lost:
                    raise WorkerLost(message.error or "its engine has failed")
            except WorkerLost as why:
                if all(answer.finish is not None for answer in self.answers):
                    return  # all of it had come
                self._lose(why)
                self._on_resume()
                await self.open()
                continue
            if isinstance(message, Over):
                if message.error is not None:
                    raise RunFailed(message.error)
                return
            if isinstance(message, MorePieces):
                if not self.num_losses:
                    self.reused = message.reused
                fresh = [piece for piece in message.pieces if self._is_new(piece)]
                if fresh:
                    yield fresh

    def _is_new(self, piece: Piece) -> bool:
        """Whether it has not come from another worker before; notes it."""
        nth = piece.answer
        self._came[nth] += 1
        if self._came[nth] <= self._seen[nth]:
            return False
        self._seen[nth] = self._came[nth]
        answer = self.answers[nth]
        answer.tokens.extend(piece.tokens)
        answer.logprobs.extend(piece.logprobs)
        answer.finish = piece.finish
        return True

    async def whole(self) -> list[WholeAnswer]:
        """All of it."""
        texts = [""] * len(self.answers)
        async for pieces in self.batches():
            for piece in pieces:
                texts[piece.answer] += piece.text
        return [WholeAnswer(text, answer) for text, answer in zip(texts, self.answers, strict=True)]

    def cut(self) -> None:
        """It ends where it is, with the reason for its reader: the server shuts down."""
        self._was_cut = True
        self._stop_call()

    def close(self) -> None:
        """Cancel what is left; its place in the table is free."""
        self._stop_call()
        self._ticket.leave()

    def _stop_call(self) -> None:
        call, self._call, self._messages = self._call, None, None
        if call is not None:
            call.cancel()
