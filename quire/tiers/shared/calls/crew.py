"""Crew: a few threads and a bounded line of jobs before them. Submitting never waits. Knows no store and no cache.

A job that hangs keeps its thread and nothing else: threads end with the program, and `close` waits only so long.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Protocol

from quire.core.records.errors import without_words

_log = logging.getLogger("quire.shared")
PAUSE = 0.5  # seconds after something other than a job has failed


class CrewJob(Protocol):
    """Something that a thread does."""

    def run(self) -> None:
        """Do it; what it raises is logged."""
        ...

    def dropped(self) -> None:
        """It will not be done."""
        ...


class Crew:
    """Threads that do jobs, first come, first served; `idle` is called when one has nothing to do, and as often as
    `idle_after` says (None: not at all)."""

    def __init__(
        self, name: str, threads: int, most_jobs: int, idle: Callable[[], None] = lambda: None,
        idle_after: Callable[[], float | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._jobs: deque[CrewJob] = deque()
        self._most, self._idle, self._idle_after = most_jobs, idle, idle_after
        self._change = Condition()
        self._closing = False
        self._busy = 0
        self.failures = 0  # jobs that raised, and looks at an idle store
        self._threads = [Thread(target=self._work, name=f"quire-{name}-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: CrewJob) -> bool:
        """Queue it; False: there are too many, or it is closed, and nothing was queued."""
        with self._change:
            if self._closing or len(self._jobs) >= self._most:
                return False
            self._jobs.append(job)
            self._change.notify()
            return True

    def wake(self) -> None:
        """Something has changed that a thread with nothing to do should look at."""
        with self._change:
            self._change.notify_all()

    @property
    def num_waiting(self) -> int:
        """Jobs that no thread has begun."""
        return len(self._jobs)

    def wait_until_idle(self, timeout: float) -> bool:
        """Whether everything that was submitted is done, within so many seconds."""
        end = time.monotonic() + timeout
        with self._change:
            return self._change.wait_for(lambda: not self._jobs and not self._busy, max(0.0, end - time.monotonic()))

    def close(self, timeout: float) -> bool:
        """Drop what no thread has begun, and wait for the rest; False: some job hangs."""
        with self._change:
            self._closing = True
            left = list(self._jobs)
            self._jobs.clear()
            self._change.notify_all()
        for job in left:
            job.dropped()
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def stopped(self) -> int:
        """Threads that have ended though the crew is open: there should be none, whatever they meet."""
        return 0 if self._closing else sum(not thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while True:
            try:
                job = self._next()
            except Exception as error:  # of `idle`, or of when to call it: it is called again, a little later
                self._note(error)
                time.sleep(PAUSE)
                continue
            if job is None:
                return
            try:
                job.run()
            except Exception as error:
                self._note(error)
            with self._change:
                self._busy -= 1
                self._change.notify_all()
            del job  # it may hold pages

    def _note(self, wrong: Exception) -> None:
        """Without its words, which may be a store's; a thread goes on."""
        self.failures += 1
        _log.error("a job of a shared store failed: %s", without_words(wrong))

    def _next(self) -> CrewJob | None:
        """The next job, taken; None: the end."""
        while True:
            with self._change:
                if self._jobs:
                    self._busy += 1
                    return self._jobs.popleft()
                if self._closing:
                    return None
                patience = self._idle_after()
                if patience is None or patience > 0:
                    self._change.wait(patience)
                    continue
            self._idle()
