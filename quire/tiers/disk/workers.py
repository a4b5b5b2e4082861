"""Worker threads for calls that a disk may never answer. Owns the threads, the bounded queue and the deadlines; knows
no files. Whoever waits here waits no longer than the deadline after the last sign of life.

    caller    put put put ....... wait ....... all done, or some given up
    workers   [ job ][ job ] ...               a job that was given up touches nothing of the caller's any more
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Lock, Thread


class DiskJob:
    """A part of a call. What it does to the caller's memory, it does through `touch`."""

    __slots__ = ("_touching", "act", "done", "error", "given_up", "running")

    def __init__(self, act: Callable[[DiskJob], None]) -> None:
        self.act = act
        self.done = self.given_up = self.running = False
        self.error: Exception | None = None  # what the act raised
        self._touching = Lock()

    def touch(self, act: Callable[[], None]) -> bool:
        """Do it, unless the caller has gone; whether it was done. The caller does not go meanwhile."""
        with self._touching:
            if not self.given_up:
                act()
            return not self.given_up

    def give_up(self) -> None:
        """From now on `touch` does nothing."""
        with self._touching:
            self.given_up = True


class Workers:
    """So many threads, and room for so many waiting jobs."""

    def __init__(self, name: str, num_threads: int, depth: int) -> None:
        self._changed = Condition()  # guards all below; told of every change
        self._waiting: deque[DiskJob] = deque()
        self._depth = depth
        self._ended = 0  # jobs, ever: the sign of life
        self._hanging = 0  # threads in a job that was given up
        self._closed = False
        self._threads = [Thread(target=self._work, name=f"{name}-{nth}", daemon=True) for nth in range(num_threads)]
        for thread in self._threads:
            thread.start()

    @property
    def hanging(self) -> bool:
        """Whether every thread is in a job that its caller has given up: the disk answers nobody."""
        return self._hanging >= len(self._threads)

    def run(self, acts: Sequence[Callable[[DiskJob], None]], seconds: float) -> list[DiskJob]:
        """Do them all, and wait; one job for each act, `done` unless nothing ended for so many seconds."""
        jobs = [DiskJob(act) for act in acts]
        with self._changed:
            for job in jobs:
                if not self._wait(lambda: len(self._waiting) < self._depth, seconds):
                    break
                self._waiting.append(job)
                self._changed.notify_all()
            else:
                self._wait(lambda: all(job.done for job in jobs), seconds)
            left = [job for job in jobs if not job.done]
            self._hanging += sum(job.running for job in left)
            for job in left:
                job.give_up()
            self._waiting = deque(job for job in self._waiting if not job.given_up)
            self._changed.notify_all()
        return jobs

    def close(self, seconds: float) -> bool:
        """End the threads after what they do now; False when some did not end in time. Waiting jobs are given up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(seconds if not self.hanging else 0)
        return not any(thread.is_alive() for thread in self._threads)

    def _wait(self, so: Callable[[], bool], seconds: float) -> bool:
        """Wait until it is so, while jobs end in time and the pool is open. Requires: `_changed` is held."""
        while not self._closed and not self.hanging:
            if so():
                return True
            ended = self._ended
            if not self._changed.wait_for(lambda: so() or self._ended > ended or self._closed, seconds):  # noqa: B023
                return False
        return so() and not self._closed

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                job.act(job)
            except Exception as error:  # its caller is told; the thread goes on
                job.error = error
            with self._changed:
                job.running, job.done = False, True
                self._hanging -= job.given_up
                self._ended += 1
                self._changed.notify_all()

    def _next(self) -> DiskJob | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            job = self._waiting.popleft()
            job.running = True
            self._changed.notify_all()
            return job
