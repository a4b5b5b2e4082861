"""DiskTier: slots in files, one file per pool of layer groups. Owns the workers, the deadline and which slots are stuck
in a call that the disk has not answered. Knows no blocks and no manifest: checksums are given to it, and asked of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, StateError, say
from quire.tiers.base import Bytes, TierError, TierInfo, check_call, check_distinct
from quire.tiers.disk.calls.files import REAL_FILES, File, Files
from quire.tiers.disk.calls.workers import DiskJob, Workers
from quire.tiers.disk.pages.slots import Failed, SlotFile, Sums, Unanswered, page_file
from quire.tiers.process import check_process, reason

CLOSED = Unanswered("the tier was closed meanwhile")
HANGS = Unanswered("an earlier write to it hangs in the disk")


@dataclass(frozen=True, slots=True)
class DiskIO:
    """How a disk is driven: threads, jobs that may wait for them, and seconds without any answer until calls fail."""

    num_threads: int = 4
    depth: int = 64
    deadline: float = 10.0

    def __post_init__(self) -> None:
        if self.num_threads < 1 or self.depth < 1 or not self.deadline > 0:
            fact = f"threads {self.num_threads}, depth {self.depth}, deadline {self.deadline}"
            raise InputError(say("how a disk is driven", fact, "give numbers above 0"))


@dataclass(slots=True)
class DiskCounts:
    """What a disk tier has done: whole pages, failures by slot, and slots given up at the deadline."""

    pages_read: int = 0
    pages_written: int = 0
    failed: int = 0
    given_up: int = 0


class DiskTier:
    """Slots in files `pages-0`, `pages-1`, ... of a folder, for one owner. Calls may come from several threads.

    A file is named after the first group of its pool, and is that of all of them.

    A slot can be read after a write, or after `learn` has given its checksum; every read verifies the whole page. A
    call ends at the latest when the disk has done nothing for the deadline: what is not done by then is a TierError,
    and its slots stay unusable until the disk has answered.
    """

    def __init__(
        self, name: str, num_slots: Sequence[int], page_bytes: Sequence[int], folder: Path, *,
        io: DiskIO | None = None, files: Files = REAL_FILES, learns: bool = False, pool_of: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """`learns`: an unknown checksum is learnt by reading the page; the caller judges it."""
        if len(num_slots) != len(page_bytes) or min(num_slots, default=0) < 0 or min(page_bytes, default=1) < 1:
            fact = f"slots {list(num_slots)}, page bytes {list(page_bytes)}"
            raise InputError(say(f"tier {name!r}", fact, "give slots >= 0 and page bytes >= 1 for each group"))
        self._info = TierInfo(name, tuple(num_slots), tuple(page_bytes), tuple(pool_of))
        self._first_of = self._info.first_of
        self._io = io or DiskIO()
        self._slots: list[SlotFile] = []
        self._dirty = [
            first == group for group, first in enumerate(self._first_of)
        ]  # an earlier process may have left some
        try:
            for group, size in enumerate(page_bytes):
                if self._first_of[group] < group:
                    self._slots.append(self._slots[self._first_of[group]])
                    continue
                ours = SlotFile(_open(files, folder / page_file(group)), num_slots[group], size, learns)
                self._slots.append(ours)
                ours.found_bytes = ours.file.size()
                if ours.found_bytes != ours.num_slots * ours.stride:
                    ours.file.resize(ours.num_slots * ours.stride)
        except OSError as error:
            self._close_files()
            cure = "free some space or give it fewer slots"
            raise StateError(say(f"tier {name!r} in {str(folder)!r}", reason(error), cure)) from error
        self._unsynced: OSError | None = None  # the first sync that failed
        self._syncing = Lock()  # one sync at a time
        self._pid = os.getpid()
        self._lock = Lock()  # guards the three below
        self._stuck: list[tuple[DiskJob, int, frozenset[int]]] = []
        self._counts = DiskCounts()
        self._closed = False
        self._workers = Workers(f"quire-{name}", self._io.num_threads, self._io.depth)

    @property
    def stopped(self) -> int:
        """Its worker threads that have ended though it is open."""
        return self._workers.stopped

    def info(self) -> TierInfo:
        """What the tier is."""
        return self._info

    def counts(self) -> DiskCounts:
        """What it has done so far."""
        with self._lock:
            return DiskCounts(**{name: getattr(self._counts, name) for name in DiskCounts.__slots__})

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        """Fill the buffers from the slots, verified."""
        self._check_open()
        check_call(self._info, group, slots, out)
        wanted: dict[int, list[Bytes]] = {}
        for slot, buffer in zip(slots, out, strict=True):
            wanted.setdefault(slot, []).append(buffer)
        if failed := self._read(group, wanted):
            raise TierError(self._info.name, group, failed)

    def verify(self, group: int, slots: Iterable[int]) -> Failed:
        """Read the pages, and hand out nothing; those that are bad, with why."""
        self._check_open()
        asked: dict[int, list[Bytes]] = {int(slot): [] for slot in slots}
        check_call(self._info, group, list(asked), [np.empty((1, 1), np.uint8)] * len(asked))
        return self._read(group, asked)

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        """Fill the slots from the buffers."""
        self._check_open()
        check_call(self._info, group, slots, data)
        check_distinct(self._info, group, slots)
        failed = self._stuck_slots(group, slots)
        ours = self._slots[group]
        buffers = {slot: buffer for slot, buffer in zip(slots, data, strict=True) if slot not in failed}
        acts = [
            (list(chain.from_iterable(runs)), partial(_write_runs, ours, runs, buffers, failed))
            for runs in ours.jobs(sorted(buffers), 1)  # a file takes one write at a time: more threads would only wait
        ]
        self._dirty[self._first_of[group]] = True
        self._run(group, acts, failed)
        self._count(written=len(slots) - len(failed), failed=len(failed))
        if failed:
            raise TierError(self._info.name, group, failed)

    def sums(self, group: int, slots: NDArray[np.int32]) -> tuple[Sums, NDArray[np.bool_]]:
        """Checksums of what was written there, and whether each is known."""
        return self._slots[group].sums[slots], self._slots[group].known[slots]

    def learn(self, group: int, slots: NDArray[np.int32], sums: Sums) -> None:
        """The slots hold pages with these checksums, from an earlier process."""
        self._slots[group].learn(slots, sums)

    @property
    def index_bytes(self) -> int:
        """Memory that checksums take."""
        files = [self._slots[group] for group in set(self._first_of)]
        return sum(ours.sums.nbytes + ours.known.nbytes for ours in files)

    def unlearn(self, group: int, slots: NDArray[np.int32]) -> None:
        """The slots hold nothing any more."""
        self._slots[group].known[slots] = False

    def known(self, group: int) -> NDArray[np.bool_]:
        """Which slots hold a page."""
        return self._slots[group].known.copy()

    def missing(self, group: int, slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which slots cannot hold what an earlier process has written: the file ended before them, or was not there."""
        ours = self._slots[group]
        ends: NDArray[np.int64] = slots.astype(np.int64) * ours.stride + ours.page_bytes
        return np.asarray(ends > ours.found_bytes)

    def erase(self, group: int, slots: Sequence[int]) -> None:
        """Overwrite the slots, so that the bytes are gone; they hold nothing any more."""
        empty = np.zeros((1, self._info.page_bytes[group]), np.uint8)
        self.write(group, slots, [empty] * len(slots))
        self.unlearn(group, np.asarray(slots, np.int32))

    def sync(self) -> None:
        """Make what was written before durable; OSError when the disk refuses, TimeoutError when it does not answer.

        After one error it fails permanently: a system may have dropped what it could not write, and not say so again.
        """
        self._check_open()
        with self._syncing:  # a call that comes meanwhile may rest on this sync
            dirty = [group for group, dirty in enumerate(self._dirty) if dirty]
            for group in dirty:
                self._dirty[group] = False
            jobs = self._workers.run([partial(self._sync, group) for group in dirty], self._io.deadline)
            for wrong in (self._unsynced, *(job.error for job in jobs)):
                if wrong is not None:
                    raise wrong
            if not all(job.done for job in jobs):
                for group in dirty:
                    self._dirty[group] = True
                raise TimeoutError(f"the disk did not sync in {self._io.deadline} s")

    def close(self) -> None:
        """Drop what waits, end the threads, close the files; a thread that hangs in the disk keeps its file."""
        if self._pid != os.getpid():  # the threads are not here, and the files are that process's
            return
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed and self._workers.close(self._io.deadline):
            self._close_files()

    def _read(self, group: int, wanted: dict[int, list[Bytes]]) -> Failed:
        failed = self._stuck_slots(group, wanted)
        ours = self._slots[group]
        acts = [
            (list(chain.from_iterable(runs)), partial(_read_runs, ours, runs, wanted, failed))
            for runs in ours.jobs(sorted(wanted.keys() - failed.keys()), self._workers.num_threads)
        ]
        self._run(group, acts, failed, writing=False)
        self._count(read=len(wanted) - len(failed), failed=len(failed))
        return failed

    def _run(
        self,
        group: int,
        acts: Sequence[tuple[list[int], Callable[[DiskJob], None]]],
        failed: Failed,
        writing: bool = True,
    ) -> None:
        """Do all of it, and note what was given up; slots that a write may still reach are stuck."""
        jobs = self._workers.run([act for _, act in acts], self._io.deadline)
        why = CLOSED if self._closed else Unanswered(f"the disk did not answer in {self._io.deadline} s")
        for job, (run, _) in zip(jobs, acts, strict=True):
            if job.error is not None:
                wrong = reason(job.error) if isinstance(job.error, OSError) else repr(job.error)
                failed.update(dict.fromkeys(run, wrong))
            if job.given_up:
                for slot in run:
                    failed.setdefault(slot, why)
                with self._lock:
                    self._counts.given_up += len(run)
                    if writing and job.running:
                        self._stuck.append((job, self._first_of[group], frozenset(run)))

    def _stuck_slots(self, group: int, slots: Iterable[int]) -> Failed:
        if not self._stuck:
            return {}
        with self._lock:
            self._stuck = [entry for entry in self._stuck if entry[0].running]
            stuck = {slot for _, where, run in self._stuck if where == self._first_of[group] for slot in run}
        return {slot: HANGS for slot in slots if slot in stuck}

    def _sync(self, group: int, job: DiskJob) -> None:
        try:
            self._slots[group].file.sync()
        except OSError as error:
            self._unsynced = error

    def _count(self, read: int = 0, written: int = 0, failed: int = 0) -> None:
        with self._lock:
            self._counts.pages_read += read
            self._counts.pages_written += written
            self._counts.failed += failed

    def _check_open(self) -> None:
        check_process(self._pid, f"tier {self._info.name!r}")
        if self._closed:
            raise StateError(say(f"tier {self._info.name!r}", "it is closed", "open a new one"))

    def _close_files(self) -> None:
        for ours in self._slots:
            ours.file.close()


def _read_runs(
    ours: SlotFile, runs: list[list[int]], wanted: dict[int, list[Bytes]], failed: Failed, job: DiskJob
) -> None:
    left, wrong = ours.read_ready([(slot, wanted[slot]) for run in runs for slot in run], job)
    job.touch(partial(failed.update, wrong))
    for run in ours.runs([slot for slot, _ in left]):
        wrong = ours.read([(slot, wanted[slot]) for slot in run], job)
        if not job.touch(partial(failed.update, wrong)):
            return


def _write_runs(ours: SlotFile, runs: list[list[int]], data: dict[int, Bytes], failed: Failed, job: DiskJob) -> None:
    """Each slot holds nothing from the moment it is touched until all of its page is there."""
    for run in runs:
        if job.given_up:
            return
        pages: list[tuple[int, Bytes]] = []
        for slot in run:
            page = ours.whole(slot, data[slot])
            if isinstance(page, str):
                job.touch(partial(failed.__setitem__, slot, page))
            else:
                pages.append((slot, page))
        ours.known[[slot for slot, _ in pages]] = False
        for slots in ours.runs([slot for slot, _ in pages]):
            wrong = ours.write([pair for pair in pages if slots[0] <= pair[0] <= slots[-1]], job)
            job.touch(partial(failed.update, wrong))


def _open(files: Files, path: Path) -> File:
    try:
        return files.open(path)
    except FileNotFoundError:
        return files.open(path, create=True)
