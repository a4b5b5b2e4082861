"""SlotFile: the slots of one pool in one file, and the checksum of each. Owns how runs of slots are read,
verified and written; knows no threads, no deadlines and no other pool.

    slot 0            slot 1            slot 2          a slot starts at a multiple of 4096 bytes, so that
    [ page     ....]  [ page     ....]  [ page  ...     no write touches a sector of its neighbour's

What the system has in memory is copied straight into the caller's, which takes no time that a disk could stretch. What
it must ask the disk for is read through a buffer of the thread's own, verified, and then copied: the caller's memory is
touched only while the caller still waits.

A call that waits for the disk gives the interpreter away, and beside a thread of the engine that is always busy it
comes back after 5 ms: so few calls ask for much at once, and copies keep the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from threading import Lock, local

import numpy as np
from numpy.typing import NDArray

from quire.tiers.base import Bytes
from quire.tiers.disk.calls.files import MAX_PARTS, File, read_all, write_some
from quire.tiers.disk.calls.workers import DiskJob, copy
from quire.tiers.disk.pages.checksum import checksum, running
from quire.tiers.process import reason

ALIGNMENT = 4096
RUN_BYTES = 4 << 20  # of one call at most, and so of the thread's buffer
JOB_BYTES = 1 << 20  # of one job of several calls, at least ...
MOST_JOB_BYTES = 16 << 20  # ... and at most: to hand a job over costs as much as to read some pages of it
ALONE = 256 << 10  # smaller pages are copied by one thread at a time: two would mostly hand the interpreter to and fro
_thread = local()

Wanted = list[tuple[int, list[Bytes]]]  # slots, ascending, each with the buffers that want its page
Failed = dict[int, str]
Sums = NDArray[np.uint64]


class NoVerdict(str):
    """Why a page could not be read or written, where that says nothing about the page."""


class Unanswered(NoVerdict):
    """The disk did not answer in time, or was closed."""


class Gone(NoVerdict):
    """The page has left the slot."""


def slot_bytes(page_bytes: int) -> int:
    """What a page takes on the disk."""
    return -(-page_bytes // ALIGNMENT) * ALIGNMENT


def page_file(group: int) -> str:
    """The name of the file of a pool, after its first group."""
    return f"pages-{group}"


class SlotFile:
    """Pages of one size. A slot whose checksum is not known cannot be read, unless reading is how it is learnt."""

    __slots__ = ("_turn", "file", "found_bytes", "known", "learns", "num_slots", "page_bytes", "stride", "sums")

    def __init__(self, file: File, num_slots: int, page_bytes: int, learns: bool = False) -> None:
        self.file = file
        self.learns = learns  # a slot whose checksum is not known: what is read there is taken for it
        self.num_slots = num_slots
        self.page_bytes = page_bytes
        self.stride = slot_bytes(page_bytes)
        self.sums = np.zeros(num_slots, np.uint64)
        self.known = np.zeros(num_slots, bool)
        self.found_bytes = 0  # in the file, when it was opened
        self._turn = Lock() if page_bytes < ALONE else nullcontext()

    def runs(self, slots: Sequence[int]) -> Iterator[list[int]]:
        """Slots, ascending and different, cut where they are not neighbours or a job would be too large."""
        limit = max(1, min(RUN_BYTES // self.stride, MAX_PARTS // 2))
        run: list[int] = []
        for slot in slots:
            if run and (slot != run[-1] + 1 or len(run) == limit):
                yield run
                run = []
            run.append(slot)
        if run:
            yield run

    def jobs(self, slots: Sequence[int], threads: int) -> Iterator[list[list[int]]]:
        """Runs packed into jobs: two for each thread, unless those would be very small or large."""
        share = min(-(-len(slots) // (2 * threads)), MOST_JOB_BYTES // self.stride)
        limit = max(1, JOB_BYTES // self.stride, share)
        packed: list[list[int]] = []
        size = 0
        for run in self.runs(slots):
            if packed and size + len(run) > limit:
                yield packed
                packed, size = [], 0
            packed.append(run)
            size += len(run)
        if packed:
            yield packed

    def read_ready(self, wanted: Wanted, job: DiskJob) -> tuple[Wanted, Failed]:
        """Read and verify what the system has in memory and a caller wants whole; what is left, and what failed."""
        left: Wanted = []
        failed: Failed = {}
        with self._turn:
            for slot, buffers in wanted:
                page = _whole_page(buffers, self.page_bytes)
                if page is None or job.read_ready(self.file, slot * self.stride, page) < len(page):
                    left.append((slot, buffers))
                elif why := self._verdict(slot, checksum(page), job):
                    failed[slot] = why
        return left, failed

    def read(self, wanted: Wanted, job: DiskJob) -> Failed:
        """Read neighbouring slots, verify them, and fill their buffers while the caller waits; what failed."""
        if self.stride > RUN_BYTES:
            return {slot: why for slot, buffers in wanted if (why := self._read_large(slot, buffers, job))}
        failed: Failed = {}
        step = RUN_BYTES // self.stride
        for start in range(0, len(wanted), step):
            self._read_run(wanted[start : start + step], job, failed)
        return failed

    def write(self, pages: list[tuple[int, Bytes]], job: DiskJob) -> Failed:
        """Write whole pages into neighbouring slots; what failed. Their checksums are known if the caller waited."""
        failed: Failed = {}
        sums = [checksum(page) for _, page in pages]
        done = self._write_run(pages)[0]
        written = list(range(done))
        for nth in range(done, len(pages)):  # which of them it is shows one by one
            why = self._write_run(pages[nth : nth + 1])[1]
            if why:
                failed[pages[nth][0]] = why
            else:
                written.append(nth)
        job.touch(lambda: self.learn([pages[nth][0] for nth in written], [sums[nth] for nth in written]))
        return failed

    def learn(self, slots: Sequence[int] | NDArray[np.int32], sums: Sequence[int] | Sums) -> None:
        """These are the checksums of what is there."""
        self.sums[slots] = sums
        self.known[slots] = True

    def whole(self, slot: int, data: Bytes) -> Bytes | str:
        """The page that the slot will hold when the cut is written into it; or why that cannot be known."""
        if data.size == self.page_bytes:
            return np.ascontiguousarray(data).reshape(-1)
        page = np.zeros(self.page_bytes, np.uint8)
        if self.known[slot]:
            if read_all(self.file, slot * self.stride, page) < len(page):
                return "the file ends before its page does"
            if checksum(page) != self.sums[slot]:
                return WRONG
        strips, width = data.shape
        page.reshape(strips, -1)[:, :width] = data
        return page

    def _read_run(self, wanted: Wanted, job: DiskJob, failed: Failed) -> None:
        stage = _stage()[: len(wanted) * self.stride]
        first = wanted[0][0]
        try:
            got = read_all(self.file, first * self.stride, stage)
        except OSError as error:
            if len(wanted) > 1:  # which of them it is shows one by one
                for one in wanted:
                    self._read_run([one], job, failed)
                return
            failed[first] = reason(error)
            return
        for nth, (slot, buffers) in enumerate(wanted):
            page = stage[nth * self.stride : nth * self.stride + self.page_bytes]
            if (nth * self.stride + self.page_bytes) > got:
                failed[slot] = "the file ends before its page does"
            elif why := self._verdict(slot, checksum(page), job):
                failed[slot] = why
            elif buffers and not job.touch(lambda page=page, buffers=buffers: _fill(buffers, page)):  # type: ignore[misc]
                return

    def _read_large(self, slot: int, buffers: list[Bytes], job: DiskJob) -> str:
        """Piece by piece; into the buffer at once where it takes the whole page, else into memory of our own."""
        whole = _whole_page(buffers, self.page_bytes)
        target = np.empty(self.page_bytes if buffers else 0, np.uint8) if whole is None else whole
        total, stage, size, at = running(), _stage(), self.page_bytes, slot * self.stride
        for start in range(0, size, RUN_BYTES):
            if start + RUN_BYTES > size:
                stage = stage[: size - start]
            try:
                if read_all(self.file, at + start, stage) < len(stage):
                    return "the file ends before its page does"
            except OSError as error:
                return reason(error)
            total.update(stage.data)
            if buffers and not job.fill(target[start : start + RUN_BYTES], stage):
                return Unanswered("no caller waits for it any more")
        why = self._verdict(slot, total.intdigest(), job)
        if not why and buffers and whole is None:
            job.touch(lambda: _fill(buffers, target))
        return why

    def _write_run(self, pages: list[tuple[int, Bytes]]) -> tuple[int, str]:
        """Write until the end or the first page that fails; how many went, and why the next did not."""
        pad = _PAD[: self.stride - self.page_bytes]
        parts = [part for _, page in pages for part in (page, pad)]
        done, wrong = write_some(self.file, pages[0][0] * self.stride, parts)
        return (len(pages), "") if wrong is None else (done // self.stride, reason(wrong))

    def _verdict(self, slot: int, total: int, job: DiskJob) -> str:
        if not self.known[slot]:
            learnt = self.learns and job.touch(lambda: self.learn([slot], [total]))
            return "" if learnt else UNKNOWN
        return "" if total == int(self.sums[slot]) else WRONG


WRONG = "its bytes do not match their checksum"
UNKNOWN = Gone("no page is known to be there")
_PAD: Bytes = np.zeros(ALIGNMENT, np.uint8)


def _stage() -> Bytes:
    """The thread's buffer. Memory that no read has needed is not taken."""
    if not hasattr(_thread, "stage"):
        _thread.stage = np.empty(RUN_BYTES, np.uint8)
    stage: Bytes = _thread.stage
    return stage


def _whole_page(buffers: list[Bytes], page_bytes: int) -> Bytes | None:
    """The buffer as the page lies on the disk, where there is one and it takes all of it."""
    if len(buffers) == 1 and buffers[0].size == page_bytes and buffers[0].flags.c_contiguous:
        return buffers[0].reshape(-1)
    return None


def _fill(buffers: list[Bytes], page: Bytes) -> None:
    for buffer in buffers:
        if (whole := _whole_page([buffer], len(page))) is not None:
            copy(whole, page)
            continue
        strips, width = buffer.shape
        buffer[:] = page.reshape(strips, -1)[:, :width]
