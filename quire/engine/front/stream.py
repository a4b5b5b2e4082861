"""Stream: an answer as it comes, read by a thread (`for`) or a coroutine (`async for`). Knows no engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
from threading import Condition
from typing import Any

from quire.core.records.errors import QuireError
from quire.engine.front.admission_gate import patience
from quire.engine.front.text import Transcript
from quire.engine.step.branch import Run
from quire.engine.step.logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Piece:
    """What came of one answer: tokens, and the text that is final with them."""

    answer: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token, if they were asked for

    def __repr__(self) -> str:
        return f"Piece(answer {self.answer}, {len(self.tokens)} tokens, {len(self.text)} characters)"


class RunFailed(QuireError):
    """The engine could not finish a run; the message says why."""


class Stream:
    """Pieces of a run's answers. `close` cancels what is left, and so does leaving a loop over it before its end.

    `run` is there once the engine has taken it.
    """

    def __init__(self, transcripts: list[Transcript], cancel: Callable[[Stream], None]) -> None:
        self.run: Run | None = None
        self.transcripts = transcripts  # one per answer; none without a tokenizer
        self._cancel = cancel
        self._pieces: deque[Piece] = deque()
        self._over = False
        self._news = Condition()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.on_over: Callable[[], None] | None = None

    # -- the engine's side: a Listener -------------------------------------------------------------------------------

    def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
        """New tokens; True when their text has reached a stop string."""
        transcript = self.transcripts[branch] if self.transcripts else None
        text = "" if transcript is None else transcript.add(tokens)
        logprobs = tuple(run.answers[branch].logprobs[-len(tokens) :])
        self._tell(Piece(branch, tuple(tokens), text, logprobs))
        return transcript is not None and transcript.stopped

    def over(self, run: Run) -> None:
        """The run is done: hand out what was held back."""
        self.run = run
        try:
            for answer, transcript in enumerate(self.transcripts):
                if rest := transcript.end():
                    self._tell(Piece(answer, (), rest))
        finally:  # whatever a tokenizer does, nobody waits for ever
            self._tell(None)
            if self.on_over is not None:
                self.on_over()

    def _tell(self, piece: Piece | None) -> None:
        with self._news:
            if piece is None:
                self._over = True
            else:
                self._pieces.append(piece)
            waiters, self._waiters = self._waiters, []
            self._news.notify_all()
        for loop, future in waiters:
            with contextlib.suppress(RuntimeError):  # that event loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(_wake, future)

    # -- the reader's side -------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Piece]:
        try:
            while True:
                with self._news:
                    self._news.wait_for(lambda: self._pieces or self._over)
                    piece = self._pieces.popleft() if self._pieces else None
                if piece is None:
                    break
                yield piece
        finally:
            self.close()
        self._check()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            while True:
                while (news := self._await_news()) is not None:
                    await news
                with self._news:
                    piece = self._pieces.popleft() if self._pieces else None
                if piece is None:
                    break
                yield piece
        finally:  # reached by a cancelled task too
            self.close()
        self._check()

    def _await_news(self) -> asyncio.Future[None] | None:
        """What to wait for; None when there is something to read, or nothing will come."""
        with self._news:
            if self._pieces or self._over:
                return None
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._waiters.append((loop, future))
            return future

    def wait(self, timeout: float | None = None) -> Run:
        """The run, once it is done."""
        with self._news:
            if not self._news.wait_for(lambda: self._over, patience(timeout)):
                raise TimeoutError(f"the run is not done after {timeout} s; wait again, it goes on")
        assert self.run is not None
        return self.run

    @property
    def done(self) -> bool:
        """Nothing more will come."""
        return self._over

    def close(self) -> None:
        """Cancel the run unless it is done."""
        if not self._over:
            self._cancel(self)

    def __repr__(self) -> str:
        state = "over" if self._over else "under way"
        return f"Stream({self.run!r}, {state}, {len(self._pieces)} pieces to read)"

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _check(self) -> None:
        if self.run is not None and self.run.error is not None:
            raise RunFailed(self.run.error)


class AsyncStream(Coroutine[Any, Any, Stream]):
    """An answer to come: `async for piece in it` reads it as it comes, `await it` gives its Stream.

    Nothing is queued before one of them begins.
    """

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Stream]]) -> None:
        self._begin = begin
        self._begun: Coroutine[Any, Any, Stream] | None = None

    def __repr__(self) -> str:
        return f"AsyncStream({'not begun' if self._begun is None else 'begun'})"

    async def __aiter__(self) -> AsyncIterator[Piece]:
        stream = await self
        try:
            async for piece in stream:
                yield piece
        finally:
            stream.close()

    def __await__(self) -> Generator[Any, Any, Stream]:
        return self._coroutine().__await__()

    def send(self, value: Any) -> Any:
        """As a coroutine, so that a task can be made of it."""
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        """As a coroutine."""
        return self._coroutine().throw(*error)

    def close(self) -> None:
        """As a coroutine."""
        if self._begun is not None:
            self._begun.close()

    def _coroutine(self) -> Coroutine[Any, Any, Stream]:
        if self._begun is None:
            self._begun = self._begin()
        return self._begun


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
