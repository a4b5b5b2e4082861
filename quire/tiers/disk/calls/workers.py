"""Worker threads for calls that a disk may never answer. Owns the threads, the bounded queue and the deadlines; knows
no slots. A caller waits no longer than the deadline after the last sign of life.

    caller    put put put ....... wait ....... all done, or some given up
    workers   [ job ][ job ] ...               a job that was given up touches nothing of the caller's any more

A caller is woken once, at the end: with as many threads as cores, each time that a thread is woken costs a read its
turn of the interpreter.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Lock, Thread

from quire.tiers.base import Bytes
from quire.tiers.disk.calls.files import File


def copy(target: Bytes, source: Bytes) -> None:
    """Of one stretch of bytes. NumPy would give the interpreter away meanwhile, and a busy one comes back late."""
    target.data[:] = source.data


class DiskJob:
    """A part of a call. What it does to the caller's memory, it does through one of these calls; each says: I live."""

    __slots__ = ("_touching", "act", "alive", "done", "error", "given_up", "running")

    def __init__(self, act: Callable[[DiskJob], None]) -> None:
        self.act = act
        self.done = self.given_up = self.running = False
        self.alive = 0.0  # when it was last heard of
        self.error: BaseException | None = None  # what the act raised
        self._touching = Lock()

    def touch(self, act: Callable[[], None]) -> bool:
        """Do it, unless the caller has gone; whether it was done. The caller does not go meanwhile."""
        with self._touching:
            if not self.given_up:
                act()
                self.alive = time.monotonic()
            return not self.given_up

    def read_ready(self, file: File, offset: int, into: Bytes) -> int:
        """Let the file fill memory of the caller's, likewise; how many bytes came."""
        with self._touching:
            if self.given_up:
                return 0
            done = file.read_ready(offset, into)
            self.alive = time.monotonic()
            return done

    def fill(self, target: Bytes, source: Bytes) -> bool:
        """Copy into memory of the caller's, likewise."""
        with self._touching:
            if self.given_up:
                return False
            copy(target, source)
            self.alive = time.monotonic()
            return True

    def give_up(self) -> None:
        """From now on nothing is touched."""
        with self._touching:
            self.given_up = True


class _Call:
    """Jobs of one caller that have not ended."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Workers:
    """So many threads, and room for so many waiting jobs."""

    def __init__(self, name: str, num_threads: int, depth: int) -> None:
        lock = Lock()  # guards all below
        self._work = Condition(lock)  # notified of jobs
        self._ended = Condition(
            lock
        )  # notified when a call has ended, there is room again, or nothing can end any more
        self._waiting: deque[tuple[DiskJob, _Call]] = deque()
        self._running: set[DiskJob] = set()
        self._depth = depth
        self._last_end = 0.0  # of a job
        self._hanging = 0  # threads in a job that was given up
        self._closed = False
        self._threads = [Thread(target=self._loop, name=f"{name}-{nth}", daemon=True) for nth in range(num_threads)]
        for thread in self._threads:
            thread.start()

    @property
    def num_threads(self) -> int:
        """Jobs that can run at once."""
        return len(self._threads)

    @property
    def hanging(self) -> bool:
        """Whether every thread is in a job that its caller has given up: the disk answers none."""
        return self._hanging >= len(self._threads)

    @property
    def stopped(self) -> int:
        """Threads that have ended though these are open: there should be none, whatever they meet."""
        return 0 if self._closed else sum(not thread.is_alive() for thread in self._threads)

    def run(self, acts: Sequence[Callable[[DiskJob], None]], seconds: float) -> list[DiskJob]:
        """Do them all, and wait; one job for each act, `done` unless nothing was heard for so many seconds."""
        call = _Call(len(acts))
        jobs = [DiskJob(act) for act in acts]
        with self._ended:
            for job in jobs:
                if not self._wait(lambda: len(self._waiting) < self._depth, seconds):
                    break
                self._waiting.append((job, call))
                self._work.notify()
            else:
                self._wait(lambda: call.left == 0, seconds)
            left = [job for job in jobs if not job.done]
            self._hanging += sum(job.running for job in left)
            for job in left:
                job.give_up()
            if left:
                self._waiting = deque(entry for entry in self._waiting if not entry[0].given_up)
                self._ended.notify_all()
        return jobs

    def close(self, seconds: float) -> bool:
        """End the threads after what they do now; False when some did not end in time. Waiting jobs are given up."""
        with self._ended:
            self._closed = True
            self._work.notify_all()
            self._ended.notify_all()
        for thread in self._threads:
            thread.join(seconds if not self.hanging else 0)
        return not any(thread.is_alive() for thread in self._threads)

    def _wait(self, so: Callable[[], bool], seconds: float) -> bool:
        """Wait until it is so, while jobs are heard of in time and the pool is open. Requires: the lock is held."""
        begun = time.monotonic()
        while not self._closed and not self.hanging:
            if so():
                return True
            heard = max(begun, self._last_end, *(job.alive for job in self._running))
            left = heard + seconds - time.monotonic()
            if left <= 0:
                return False
            self._ended.wait(left)
        return so() and not self._closed

    def _loop(self) -> None:
        while (entry := self._next()) is not None:
            job, call = entry
            try:
                job.act(job)
            except BaseException as error:  # raised to its caller; the thread goes on
                job.error = error
            with self._ended:
                job.running, job.done = False, True
                self._running.discard(job)
                self._hanging -= job.given_up
                self._last_end = time.monotonic()
                call.left -= 1
                if call.left == 0 or self._closed:
                    self._ended.notify_all()

    def _next(self) -> tuple[DiskJob, _Call] | None:
        with self._work:
            while not self._waiting and not self._closed:
                self._work.wait()
            if self._closed:
                return None
            entry = self._waiting.popleft()
            entry[0].running = True
            self._running.add(entry[0])
            if len(self._waiting) == self._depth - 1:  # a caller may wait for room
                self._ended.notify_all()
            return entry
