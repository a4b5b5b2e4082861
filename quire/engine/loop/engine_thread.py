"""Loop: a thread that drives an engine. Threads and coroutines submit to it, and wait when it is full.

submit --gate--> inbox --> [ the thread: take what came, step, take what came, step ... ] --> streams
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import secrets
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, RLock, Thread, current_thread
from typing import Any

from quire.core.records.errors import InputError, StateError, listed, say
from quire.core.records.request import Int32
from quire.engine.deadlines.first_token import TokenDeadline
from quire.engine.loop.admission_gate import AdmissionGate, patience
from quire.engine.loop.feed import Feed
from quire.engine.loop.stream import Stream
from quire.engine.loop.text import Tokenizer, Transcript, silent_tokens
from quire.engine.memory.outer_memory import REST
from quire.engine.runner.engine import PLAIN_SAMPLING, Engine
from quire.engine.sampling.params import Sampling, checked_sampling
from quire.engine.setup.submission import EngineBusy
from quire.engine.step.runs.branch import Run
from quire.engine.step.runs.tenant import Together
from quire.insight.deadlines.door import DoorVerdict

Job = Callable[[], None]
Tokens = Int32 | Sequence[int]
_log = logging.getLogger("quire.engine")


class Loop:
    """Owns the engine from now on: only this thread calls it. At most `max_waiting` runs (of its config) are inside."""

    def __init__(self, engine: Engine, submit: Callable[..., Run] | None = None) -> None:
        self.engine = engine
        engine.outer.tell_news = self._wake
        self._submit = submit or engine.submit  # called in its thread
        self.gate = AdmissionGate(engine.config.max_waiting)  # how runs come in
        self._inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._door = RLock()  # an abandoned stream is closed by the garbage collector, in any thread
        self._closing = self._ended = False
        self._draining, self._drained = False, Event()  # no request comes in any more / and none is inside
        self._broken: BaseException | None = None
        self._unclosed: BaseException | None = None  # what went wrong while closing
        self._silent: frozenset[int] | None = None  # special tokens of the model's tokenizer
        self._patience: float | None = None  # how long the thread may wait for the next job; None: until one comes
        self._thread = Thread(target=self._work, name="quire-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a program that ends in the middle of torch's work would be aborted

    @property
    def num_waiting(self) -> int:
        """Submissions that wait for a place; the runs inside are not among them."""
        return self.gate.num_waiting

    # -- asking ------------------------------------------------------------------------------------------------------

    def submit(
        self, tokens: Tokens, sampling: Sampling = PLAIN_SAMPLING, *, timeout: float | None = None, **options: Any
    ) -> Stream:
        """Queue a prompt; waits while the engine is full, at most `timeout` seconds. `options` as for Engine.submit."""
        return self.submit_many([tokens], sampling, timeout=timeout, **options)[0]

    def submit_many(
        self, prompts: Iterable[Tokens], sampling: Sampling = PLAIN_SAMPLING, *, timeout: float | None = None,
        gather: bool = False, **options: Any,
    ) -> list[Stream]:  # fmt: skip
        """Queue prompts to be computed together. Each waits for its place; when one is refused, none goes on.

        `gather`: they will be waited for, not read, so no number of pieces is too many. They share one tenant.
        """
        if current_thread() is self._thread:
            raise StateError(say("submit", "this is the engine's own thread", "submit from another one"))
        submitted: list[tuple[Stream, Future[None]]] = []
        try:
            prompts = listed("prompts", prompts)
            if len(prompts) > 1 and options.get("tenant") is None:
                options["tenant"] = Together(secrets.token_hex(8))
            for tokens in prompts:
                feed = self._feed(sampling, options.get("tenant"), gather)
                if sampling.structured_outputs is not None:  # compiled here, while the engine computes
                    options["mask"] = self.engine.grammars.mask(sampling.structured_outputs)
                if not self.gate.enter(timeout, feed.tenant):
                    raise self._busy(timeout, feed.tenant)
                stream = Stream(feed, self._close_feed)
                submitted.append((stream, self._ask(feed, tokens, sampling, dict(options))))
            for _, future in submitted:
                future.result()
        except BaseException:
            for stream, _ in submitted:
                self.cancel(stream)
            raise
        return [stream for stream, _ in submitted]

    async def submit_async(
        self, tokens: Tokens, sampling: Sampling = PLAIN_SAMPLING, *, timeout: float | None = None, **options: Any
    ) -> Stream:
        """The same for coroutines: a full engine makes them wait, in order. Only that wait counts for `timeout`."""
        feed = self._feed(sampling, options.get("tenant"))
        if sampling.structured_outputs is not None:
            options["mask"] = await asyncio.to_thread(self.engine.grammars.mask, sampling.structured_outputs)
        if not await self.gate.enter_async(timeout, feed.tenant):
            raise self._busy(timeout, feed.tenant)
        stream = Stream(feed, self._close_feed)
        try:
            await self._ask_async(feed, tokens, sampling, options)
        except BaseException:
            self.cancel(stream)
            raise
        return stream

    async def quote_async(self, tokens: Tokens, sampling: Sampling, *, ttft: float, **options: Any) -> DoorVerdict:
        """As Engine.quote, between two steps; the wait for that counts. One that is cancelled leaves nothing."""
        wanted = TokenDeadline(ttft, self.engine.clock())
        act = partial(self.engine.quote, tokens, sampling, ttft=wanted, **options)
        return await asyncio.wrap_future(self._called(lambda _: act(), settled=False))

    def _busy(self, timeout: float | None, tenant: Hashable) -> StateError:
        """Why a request did not get a place."""
        self.check_open()
        fact = f"{self.engine.config.max_waiting} runs were inside for {timeout} s"
        if tenant is not None:
            fact += ", or too many of the same tenant"
        return EngineBusy(say("submit", fact, "submit again later, or wait longer"))

    def _feed(self, sampling: Sampling, tenant: object, gather: bool = False) -> Feed:
        tokenizer, sampling = self.engine.model.tokenizer, checked_sampling(sampling)
        if tokenizer is None and sampling.stop:
            raise InputError(say("stop strings", "the model has no tokenizer", "give stop_ids instead"))
        texts = [] if tokenizer is None else [self._transcript(tokenizer, sampling) for _ in range(sampling.n)]
        feed = Feed(texts, None if gather else self.engine.config.max_unread, self._fail_unread)
        if self.engine.config.scheduling == "fair" and isinstance(tenant, str | Together):
            feed.tenant = tenant
        feed.on_over, feed.asked = partial(self.gate.leave, feed.tenant), self.engine.clock()
        return feed

    def _transcript(self, tokenizer: Tokenizer, sampling: Sampling) -> Transcript:
        if self._silent is None:  # read once: a tokenizer makes a list of them whenever it is asked
            self._silent = silent_tokens(tokenizer)
        return Transcript(
            tokenizer, sampling.stop_strings, min_tokens=sampling.min_tokens,
            shows_stop=sampling.include_stop_str_in_output, silent=self._silent,
        )  # fmt: skip

    def _ask(self, feed: Feed, tokens: Tokens, sampling: Sampling, options: dict[str, Any]) -> Future[None]:
        """Hand a prompt to the engine's thread; the place it was given goes back when its run is over, or never is."""
        future = Future[None]()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                self.gate.leave(feed.tenant)  # its caller waits no more
            elif (wrong := self._begin(feed, tokens, sampling, options)) is None:
                future.set_result(None)
            else:
                future.set_exception(wrong)

        self._put(job)
        return future

    def _ask_async(
        self, feed: Feed, tokens: Tokens, sampling: Sampling, options: dict[str, Any]
    ) -> asyncio.Future[None]:
        """The same for coroutines: without a second future between the two threads."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def job() -> None:
            if future.cancelled():
                self.gate.leave(feed.tenant)
                return
            wrong = self._begin(feed, tokens, sampling, options)
            with contextlib.suppress(RuntimeError):  # that event loop is closed: nothing waits there any more
                loop.call_soon_threadsafe(_settle, future, wrong)

        self._put(job)
        return future

    def _begin(self, feed: Feed, tokens: Tokens, sampling: Sampling, options: dict[str, Any]) -> BaseException | None:
        """In the engine's thread: its run, or why there is none."""
        try:
            self.check_open()
            if options.get("ttft") is not None:  # what it has waited for the engine counts
                options = {**options, "ttft": TokenDeadline(options["ttft"], feed.asked)}
            feed.run = self._submit(tokens, sampling, listener=feed, **options)
            feed.run.times.asked = feed.asked
        except BaseException as error:
            self.gate.leave(feed.tenant)
            return error
        return None

    def cancel(self, stream: Stream) -> None:
        """Stop a run where it is; its stream ends. Does nothing when it is done."""
        self._close_feed(stream.feed)

    def _close_feed(self, feed: Feed) -> None:
        self._put(lambda: self._end(feed, None))

    def _fail_unread(self, feed: Feed) -> None:
        fact = f"more than {self.engine.config.max_unread} pieces of it wait to be read"
        self._put(lambda: self._end(feed, say("a stream", fact, "read it, `wait` for it, or raise max_unread")))

    def _end(self, feed: Feed, why: str | None) -> None:
        """Cancel its run or, with a reason, let it fail."""
        if feed.run is None or feed.run.done or self._ended:
            return
        try:
            if why is None:
                self.engine.cancel(feed.run)
            else:
                self.engine.fail(feed.run, why)
        except BaseException as error:
            self._break(error)

    def call(self, act: Callable[[Engine], Any]) -> Any:
        """What `act` returns, called in the engine's thread between two steps."""
        return act(self.engine) if current_thread() is self._thread else self._called(act).result()

    async def call_async(self, act: Callable[[Engine], Any]) -> Any:
        """The same for coroutines; one that is cancelled before its turn has called nothing."""
        return await asyncio.wrap_future(self._called(act))

    def _called(self, act: Callable[[Engine], Any], *, settled: bool = True) -> Future[Any]:
        """`settled`: with nothing in flight, and no page on its way."""
        future: Future[Any] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return  # its caller waits no more
            try:
                (self._settle if settled else self.check_open)()
                future.set_result(act(self.engine))
            except BaseException as error:
                future.set_exception(error)

        self._put(job)
        return future

    def drain(self, timeout: float | None = None) -> bool:
        """Accept no new prompts, and wait until all runs are done, transfers included.

        False: it was not, after `timeout` seconds. It goes on; `close` cancels it.
        """
        if current_thread() is self._thread:
            raise StateError(say("drain", "this is the engine's own thread", "drain from another one"))
        timeout = patience(timeout)
        self._draining = True
        self.gate.shut()
        self._put(self._note_drained)
        return self._drained.wait(timeout)

    def _note_drained(self) -> None:
        """`drain` returns when nothing is inside, or nothing will be computed any more."""
        over = self._ended or self._broken is not None
        if self._draining and (over or not (self.engine.runs or self.engine.num_lingering)):
            self._drained.set()

    def close(self) -> None:
        """Cancel what is left, end the thread and close the engine; closing again does nothing."""
        if current_thread() is self._thread:
            raise StateError(say("close", "this is the engine's own thread", "close from another one"))
        if not self._closing:
            self._closing = True
            self._inbox.put(None)
        self._thread.join()
        atexit.unregister(self.close)
        wrong, self._unclosed = self._unclosed, None
        if wrong is not None:
            raise wrong

    def __repr__(self) -> str:
        state = self.error or ("closed" if self._closing else f"{self.num_waiting} wait for a place")
        return f"Loop({self.engine!r}, {state[:80]})"

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
        job()  # the thread is gone: the job finds the engine closed and says so

    def _wake(self) -> None:
        """Pages that a run waits for have come, or will not: the next step is due."""
        self._put(_nothing)

    @property
    def error(self) -> str | None:
        """Why it has stopped computing, if a step has failed or its thread is gone."""
        if self._broken is not None:
            return f"a step failed: {type(self._broken).__name__}: {self._broken}"
        return None if self._ended or self._thread.is_alive() else "its thread has ended"

    def check_open(self, ask: str = "submit") -> None:
        """Raise if the engine is closed or broken."""
        if self.error is not None:
            raise StateError(say(ask, self.error, "make a new engine"))
        if self._closing:
            raise StateError(say(ask, "the engine is closed", "make a new one"))
        if self._draining:
            raise StateError(say(ask, "the engine is draining: it takes no more", "ask another one"))

    def _work(self) -> None:
        going = True
        while going:
            try:
                going = self._take()
                if going and self._broken is None:
                    self._step()
                if going:
                    self._note_drained()
            except BaseException as error:  # of a job: callers get it, and do not wait for a thread that is gone
                self._break(error)
        try:
            self.engine.close()
        except BaseException as error:
            self._unclosed = error if self._broken is None else None  # who broke it has told already
            self._break(error)
        with self._door:
            self._ended = True
        self._note_drained()
        while not self._inbox.empty():
            if (job := self._inbox.get()) is not None:
                job()

    def _take(self) -> bool:
        """Do what has come in; wait for it when there is nothing else to do. False: the end."""
        for _ in range(max(1, self._inbox.qsize())):  # what comes meanwhile waits: callers cannot keep it from stepping
            try:
                job = self._inbox.get(timeout=self._patience)
            except Empty:
                return True
            if job is None:
                return False
            job()
        return True

    def _step(self) -> None:
        try:
            report = self.engine.step()
        except BaseException as error:
            self._break(error)
            return
        busy = report is not None and report.num_tokens
        if not busy and (self.engine.num_lingering or self.engine.participants):
            self._patience = REST
        else:
            self._patience = None if report is None else 0.0

    def _settle(self) -> None:
        """Nothing is in flight between two steps, for those that act there, and no plan is open."""
        try:
            if self._broken is None:
                self.engine.settle()
        except BaseException as error:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """A step failed: a fault of the engine or of a tier. Every run ends with it, and no more are taken.

        Its participants are closed, so that no peer waits for a prompt that never comes.
        """
        _log.error("a step failed, and the engine takes no more requests", exc_info=error)
        self._broken, self._patience = error, None
        for run in list(self.engine.runs.values()):
            with contextlib.suppress(Exception):  # the others must not wait for ever because of one
                self.engine.give_up(run, f"a step failed: {type(error).__name__}: {error}")
        for one in self.engine.participants:
            with contextlib.suppress(Exception):
                one.close()


def _nothing() -> None:
    """A job that only ends a wait."""


def _settle(future: asyncio.Future[None], wrong: BaseException | None) -> None:
    if future.done():
        return  # cancelled meanwhile; the one that cancelled it cancels the run
    if wrong is None:
        future.set_result(None)
    else:
        future.set_exception(wrong)
