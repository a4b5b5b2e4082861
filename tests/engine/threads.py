"""Threads for tests: their errors reach the test, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Thread, main_thread
from types import TracebackType
from typing import Any

from ..waits import PATIENCE


def let_others_run() -> None:
    """Yield the processor and the interpreter to other threads, for no time at all."""
    time.sleep(0)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """What it gives sends Ctrl-C to the main thread, from any other; a shell may have told tests to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield lambda: signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


class Crew:
    """Threads at work; leaving the block waits for all of them and raises what went wrong in one."""

    def __init__(self) -> None:
        self._futures: list[Future[Any]] = []

    def start(self, act: Callable[..., Any], *args: Any) -> Future[Any]:
        """What `act` returns, in a while."""
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(act(*args))
            except BaseException as wrong:
                future.set_exception(wrong)

        Thread(target=work, daemon=True).start()  # one that hangs must not keep the tests from ending
        self._futures.append(future)
        return future

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is None:
            for future in self._futures:
                future.result(PATIENCE)
