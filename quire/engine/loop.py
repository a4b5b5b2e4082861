"""Loop: a thread that drives an engine; anybody may submit, from threads or coroutines, and waits when it is full.

    submit --gate--> inbox --> [ the thread: take what came, step, take what came, step ... ] --> streams
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from quire.core.errors import StateError, say
from quire.core.request import Int32
from quire.engine.engine import PLAIN_SAMPLING, Engine, EngineBusy
from quire.engine.gate import Gate
from quire.engine.sampling import Sampling
from quire.engine.stream import Stream
from quire.engine.text import Transcript

Job = Callable[[], None]


class Loop:
    """Owns the engine from now on: nobody else calls it. `max_waiting` of its config is how many runs may be inside."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._gate = Gate(engine.config.max_waiting)
        self._inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._door = Lock()
        self._closing = self._ended = False
        self._broken: BaseException | None = None
        self._thread = Thread(target=self._work, name="quire-engine", daemon=True)
        self._thread.start()

    # -- asking ------------------------------------------------------------------------------------------------------

    def submit(
        self, tokens: Int32 | Sequence[int], sampling: Sampling = PLAIN_SAMPLING, *, timeout: float | None = None,
        **wishes: Any,
    ) -> Stream:  # fmt: skip
        """Queue a prompt; waits while the engine is full, at most `timeout` seconds. `wishes` as for Engine.submit."""
        if not self._gate.enter(timeout):
            fact = f"{self.engine.config.max_waiting} runs were inside for {timeout} s"
            raise EngineBusy(say("submit", fact, "submit again later, or wait longer"))
        stream, future = self._ask(tokens, sampling, wishes)
        future.result()
        return stream

    async def submit_async(
        self, tokens: Int32 | Sequence[int], sampling: Sampling = PLAIN_SAMPLING, **wishes: Any
    ) -> Stream:
        """The same for coroutines: a full engine makes them wait, in order."""
        await self._gate.enter_async()
        stream, future = self._ask(tokens, sampling, wishes)
        try:
            await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.cancel(stream)
            raise
        return stream

    def _ask(
        self, tokens: Int32 | Sequence[int], sampling: Sampling, wishes: dict[str, Any]
    ) -> tuple[Stream, Future[None]]:
        tokenizer = self.engine.model.tokenizer
        texts = [] if tokenizer is None else [Transcript(tokenizer, sampling.stop) for _ in range(sampling.n)]
        stream, future = Stream(texts, self.cancel), Future[None]()
        stream.on_over = self._gate.leave

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                self._gate.leave()  # who asked has gone
                return
            try:
                self._check_open()
                stream.run = self.engine.submit(tokens, sampling, listener=stream, **wishes)
            except BaseException as error:
                self._gate.leave()
                future.set_exception(error)
            else:
                future.set_result(None)

        self._put(job)
        return stream, future

    def cancel(self, stream: Stream) -> None:
        """Stop a run where it is; its stream ends. Does nothing when it is done."""
        self._put(lambda: self._cancel(stream))

    def _cancel(self, stream: Stream) -> None:
        if stream.run is not None and not self._ended:
            self.engine.cancel(stream.run)

    def call(self, act: Callable[[Engine], Any]) -> Any:
        """What `act` returns, called in the engine's thread between two steps."""
        future: Future[Any] = Future()

        def job() -> None:
            try:
                future.set_result(act(self.engine))
            except BaseException as error:
                future.set_exception(error)

        self._put(job)
        return future.result()

    def close(self) -> None:
        """Cancel what is left, end the thread and close the engine; closing again does nothing."""
        if not self._closing:
            self._closing = True
            self._inbox.put(None)
        self._thread.join()

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _put(self, job: Job) -> None:
        with self._door:
            if not self._ended:
                self._inbox.put(job)
                return
        job()  # nobody else will: it finds the engine closed and says so

    def _check_open(self) -> None:
        if self._broken is not None:
            fact = f"a step failed: {type(self._broken).__name__}: {self._broken}"
            raise StateError(say("submit", fact, "make a new engine"))
        if self._closing:
            raise StateError(say("submit", "the engine is closed", "make a new one"))

    def _work(self) -> None:
        while self._take():
            try:
                self.engine.step()
            except BaseException as error:
                self._break(error)
        self.engine.close()
        with self._door:
            self._ended = True
        while not self._inbox.empty():
            if (job := self._inbox.get()) is not None:
                job()

    def _take(self) -> bool:
        """Do what came in; wait for it when there is nothing else to do. False: the end."""
        while self._idle() or not self._inbox.empty():
            job = self._inbox.get()
            if job is None:
                return False
            job()
        return True

    def _idle(self) -> bool:
        return self._broken is not None or not self.engine.runs

    def _break(self, error: BaseException) -> None:
        """A step failed: a fault of the engine or of a tier. Every run ends with it, and no more are taken."""
        self._broken = error
        for run in list(self.engine.runs.values()):
            self.engine.give_up(run, f"a step failed: {type(error).__name__}: {error}")

