"""KeyJobs: stores and loads between a caller's memory and a place of pages by key. Submitting never waits.

    submit_store ─► [ at most so many pages wait ] ─► one thread ─► place.write ─┐
    submit_load  ─► [            as many         ] ─► threads ────► place.read ──┴─► finished(): each job once

Owns the threads, the bounds, and when a job is given up: while the place hangs, a job that has waited longer than
`patience` is reported as failed, and touches nothing of the caller's any more. A load that has begun is not: it ends
when the place gives it up, since it fills pages until then. Knows neither what keys mean nor whose memory it is.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Lock

from quire.core.records.errors import InputError, say, without_words
from quire.tiers.base import Bytes
from quire.tiers.disk.keyed.key_place import THERE, KeyPlace
from quire.tiers.shared.calls.crew import Crew

_log = logging.getLogger("quire.tiers")
MOST_JOBS = 4096
PATIENCE = 15.0  # seconds


@dataclass(frozen=True, slots=True)
class KeyJobsDone:
    """A job that is over."""

    number: int
    is_load: bool
    good: tuple[bytes, ...]  # keys whose pages were moved
    bad: tuple[bytes, ...]
    seconds: float
    num_bytes: int


class _Job:
    """A store or a load; `run` on a thread of its crew."""

    def __init__(
        self, jobs: KeyJobs, number: int, is_load: bool, keys: Sequence[bytes], pages: Sequence[Bytes]
    ) -> None:
        self.jobs, self.number, self.is_load = jobs, number, is_load
        self.keys, self.num_bytes = tuple(keys), 0 if not pages else pages[0].nbytes
        self.pages: Sequence[Bytes] = pages  # none when it is over
        self.begun = jobs.clock()
        self.given_up = False
        self.started = False
        self.over = False  # guarded by the jobs' lock, as the two above

    def still(self) -> bool:
        """Whether anybody waits for it."""
        return not self.given_up

    def run(self) -> None:
        """Move the pages."""
        pages = self.pages
        if not self.jobs.start(self):
            self.jobs.end(self, [])
            return
        act = self.jobs.place.read if self.is_load else self.jobs.place.write
        try:
            answers = act(self.keys, pages, self.still)
        except Exception as wrong:
            _log.error("a page job failed: %s", without_words(wrong))
            answers = []
        del pages
        self.jobs.end(self, answers)
        if not self.is_load:
            self.jobs.tidy()  # a thread that always has something to write would never come to it

    def dropped(self) -> None:
        """The jobs are being closed."""
        self.jobs.end(self, [])


class KeyJobs:
    """Jobs of one place. `ended` hears of each that is over (whether it was a load), on any thread: it may not wait."""

    def __init__(
        self, place: KeyPlace, *, most_pages: int, load_threads: int = 2, patience: float = PATIENCE,
        ended: Callable[[bool], None] = lambda is_load: None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        if most_pages < 1:
            raise InputError(say(f"page jobs of which {most_pages} pages may wait", "that is none", "give 1 or more"))
        self.place = place
        self.refused = 0  # pages of stores for which there was no room
        self.clock, self._most_pages, self._patience, self._ended = clock, most_pages, patience, ended
        self._change = Condition(Lock())  # guards the three below, and the jobs' ends
        self._jobs: dict[int, _Job] = {}
        self._done: deque[KeyJobsDone] = deque()
        self._pages = 0  # of stores that are not over
        self._next_tidy: float | None = None
        self._writer = Crew("page-writer", 1, MOST_JOBS, idle=self.tidy, idle_after=self._until_tidy)
        self._readers = Crew("page-reader", load_threads, MOST_JOBS)

    def submit_store(self, number: int, keys: Sequence[bytes], pages: Sequence[Bytes]) -> None:
        """Keep these pages under these keys; where too much waits already, the job is over at once, and failed."""
        job = _Job(self, number, False, keys, pages)
        with self._change:
            self._jobs[number] = job
            full = self._pages + len(keys) > self._most_pages and self._pages > 0
            self._pages += len(keys)
        if full or self.place.hanging or not self._writer.submit(job):
            self.refused += len(keys)
            self.end(job, [])

    def submit_load(self, number: int, keys: Sequence[bytes], pages: Sequence[Bytes]) -> None:
        """Fill these pages with what lies under these keys."""
        job = _Job(self, number, True, keys, pages)
        with self._change:
            self._jobs[number] = job
        if not self._readers.submit(job):
            self.end(job, [])

    def start(self, job: _Job) -> bool:
        """A thread has come to a job; whether it is still wanted."""
        with self._change:
            job.started = not job.given_up
            return job.started

    def end(self, job: _Job, answers: Sequence[str]) -> None:
        """A job is over, unless it was before: then its end is not reported."""
        good = tuple(key for key, answer in zip(job.keys, answers, strict=False) if answer == THERE)
        with self._change:
            if job.over:
                return
            job.over = job.given_up = True
            job.pages = ()
            del self._jobs[job.number]
            self._pages -= 0 if job.is_load else len(job.keys)
            moved, size = set(good), len(good) * job.num_bytes
            bad = tuple(key for key in job.keys if key not in moved)
            self._done.append(KeyJobsDone(job.number, job.is_load, good, bad, self.clock() - job.begun, size))
            self._change.notify_all()
        self._ended(job.is_load)

    def finished(self) -> list[KeyJobsDone]:
        """Jobs that are over since the last call. Stores that a hanging place keeps waiting are given up."""
        self._give_up()
        with self._change:
            done = list(self._done)
            self._done.clear()
        return done

    def _give_up(self) -> None:
        if not self._jobs or not self.place.hanging:
            return
        now = self.clock()
        with self._change:
            late = [job for job in self._jobs.values() if now - job.begun > self._patience]
            late = [job for job in late if not (job.is_load and job.started)]  # it may fill its pages until it ends
            for job in late:
                job.given_up = True
        for job in late:
            self.end(job, [])

    def drain(self) -> None:
        """Wait until every job is over; `finished` has them then."""
        while True:
            self._give_up()
            with self._change:
                if self._change.wait_for(lambda: not self._jobs, 0.1):
                    return

    def close(self, seconds: float = 30.0) -> bool:
        """End the threads, then the place; False: one hangs, and the place is left to the end of the process."""
        ended = self._writer.close(seconds) & self._readers.close(seconds)
        if ended:
            self.place.close()
        return ended

    def _until_tidy(self) -> float | None:
        return None if self._next_tidy is None else self._next_tidy - self.clock()

    def tidy(self) -> None:
        """On the writer's thread: after each store, and when nothing waits and it is due."""
        self._next_tidy = None
        wait = self.place.tidy()
        if wait is not None:
            self._next_tidy = self.clock() + wait
