"""Stream: an answer as it comes, read by a thread (`for`) or a coroutine (`async for`). Knows no engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any
from weakref import finalize

from quire.core.records.errors import QuireError, StateError, say
from quire.engine.loop.admission_gate import patience
from quire.engine.loop.feed import Feed, Piece
from quire.engine.loop.text import Transcript
from quire.engine.step.runs.branch import Run
from quire.engine.step.runs.times import RunTimes


class RunFailed(QuireError):
    """The engine could not finish a run; the message says why."""


class Stream:
    """Pieces of a run's answers. `close` cancels what is left, and so does leaving a loop over it before its end.

    A Stream that is garbage collected is closed. One that is not read either fails when more
    pieces wait than `EngineConfig.max_unread`; `wait` keeps them, however many.
    """

    def __init__(self, feed: Feed, cancel: Callable[[Feed], None]) -> None:
        self.feed = feed
        self._cancel = cancel
        finalize(self, _close, feed, cancel).atexit = False  # then the loop is closed anyway

    @property
    def run(self) -> Run | None:
        """What the engine computes; None before it has taken it."""
        return self.feed.run

    @property
    def transcripts(self) -> list[Transcript]:
        """One per answer; none without a tokenizer."""
        return self.feed.transcripts

    def __iter__(self) -> Iterator[Piece]:
        try:
            while (piece := self.feed.take()) is not None:
                yield piece
        finally:
            self.close()
        self._check()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            while (piece := await self.feed.take_async()) is not None:
                yield piece
        finally:  # reached by a cancelled task too
            self.close()
        self._check()

    def wait(self, timeout: float | None = None) -> Run:
        """The run, once it is done."""
        self.feed.most_unread = None
        if not self.feed.wait(patience(timeout)):
            raise TimeoutError(f"the run is not done after {timeout} s; wait again, it goes on")
        assert self.run is not None
        return self.run

    async def wait_async(self) -> Run:
        """The same for coroutines, as long as it takes; they are not woken before the end."""
        self.feed.most_unread = None
        await self.feed.wait_async()
        assert self.run is not None
        return self.run

    @property
    def done(self) -> bool:
        """Nothing more will come."""
        return self.feed.is_over

    @property
    def times(self) -> RunTimes | None:
        """How long everything took so far, the wait for a place included; None before the engine has taken it."""
        return None if self.run is None else self.run.user_times

    def close(self) -> None:
        """Cancel the run unless it is done; returns at once."""
        _close(self.feed, self._cancel)

    async def closed(self) -> None:
        """Close it, and wait until its run is over: nothing of it is computed any more, and its place is free."""
        self.close()
        await self.feed.wait_async()

    def __repr__(self) -> str:
        state = "over" if self.feed.is_over else "under way"
        return f"Stream({self.run!r}, {state}, {self.feed.num_unread} pieces to read)"

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _check(self) -> None:
        if self.run is not None and self.run.error is not None:
            raise RunFailed(self.run.error)


def _close(feed: Feed, cancel: Callable[[Feed], None]) -> None:
    if not feed.is_over:
        cancel(feed)


class AsyncStream(Coroutine[Any, Any, Stream]):
    """An answer to come: `async for piece in it` reads it as it comes, `await it` gives its Stream.

    Nothing is queued before one of them begins. It is used once; what `await` gave can be kept.
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
        if self._begun is not None:
            raise _used_before()
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
        elif getcoroutinestate(self._begun) == CORO_CLOSED:
            raise _used_before()
        return self._begun


def _used_before() -> StateError:
    cure = "keep the Stream that `await` gives, or ask again"
    return StateError(say("a second use of an AsyncStream", "its first use receives the answer", cure))
