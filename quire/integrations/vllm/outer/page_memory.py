"""PageMemory: host memory for the pages of all ranks, in one piece that vLLM's processes share. Knows no cache.

    file     head, checksums [slot, rank], pages [slot, rank, byte]; a slot may have a page of any group
    worker   copies between its rank's parts and vLLM's KV tensors
    keeper   in the scheduler's process: a slot's parts of all ranks are one page, whole or not at all

The workers make it before vLLM makes its scheduler, which takes the name away: a killed process leaves nothing behind.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, StateError, say
from quire.tiers.base import Bytes, TierError, TierInfo, check_call, check_distinct

FOLDER = Path("/dev/shm")  # memory that looks like files
HEAD = 4096  # bytes
ALIGNED = 4096
Sums = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MemoryShape:
    """What is in the memory; every rank says the same."""

    slots: int
    ranks: int
    page_bytes: int  # of one rank; of a group with fewer layers the last of them say nothing
    groups: int
    form: str  # of what is inside a page: names, shapes and types of its layers

    @property
    def whole_page(self) -> int:
        """Bytes of a page with the parts of all ranks."""
        return self.ranks * self.page_bytes

    def size(self) -> int:
        """Bytes of the file."""
        return HEAD + _aligned(8 * self.slots * self.ranks) + _aligned(self.slots * self.whole_page)


class PageMemory:
    """Pages and their checksums, plus one: 0 says that there is none. vLLM's region has none."""

    def __init__(self, shape: MemoryShape, pages: Bytes, sums: Sums | None) -> None:
        self.shape, self.pages, self.sums = shape, pages, sums

    @classmethod
    def make(cls, name: str, shape: MemoryShape, folder: Path = FOLDER) -> PageMemory:
        """A worker's: the first of the ranks makes it, the others open it."""
        fd = _open_note(folder / name, shape, "")
        try:
            os.posix_fallocate(fd, 0, shape.size())  # all of it now: what is missing later ends the process
            return cls._in_own_file(fd, shape)
        except OSError as wrong:
            os.unlink(folder / name)
            if wrong.errno != errno.ENOSPC:
                raise
            numbers = os.statvfs(folder)
            fact = f"{folder} has {numbers.f_bavail * numbers.f_frsize} bytes free"
            cure = "give 'host' less, or the container more (--shm-size)"
            raise InputError(say(f"{shape.size()} bytes of memory that processes share", fact, cure)) from wrong
        finally:
            os.close(fd)

    @classmethod
    def take(cls, name: str, folder: Path = FOLDER) -> PageMemory:
        """The scheduler's: opens what the workers have made or announced, and removes its name."""
        try:
            fd = os.open(folder / name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as wrong:
            fact = "vLLM's workers did not make it before its scheduler, or run on another machine"
            raise StateError(say(f"host memory {name!r}", fact, "leave out 'disk' and 'shared'")) from wrong
        try:
            os.unlink(folder / name)
            *numbers, region = json.loads(os.pread(fd, HEAD, 0).rstrip(b"\0"))
            shape = MemoryShape(*numbers)
            return cls._in_region(region, shape) if region else cls._in_own_file(fd, shape)
        finally:
            os.close(fd)

    @classmethod
    def _in_own_file(cls, fd: int, shape: MemoryShape) -> PageMemory:
        whole, count = mmap.mmap(fd, shape.size()), shape.slots * shape.ranks
        sums = np.frombuffer(whole, np.int64, count, HEAD).reshape(shape.slots, shape.ranks)
        pages = np.frombuffer(whole, np.uint8, count * shape.page_bytes, HEAD + _aligned(8 * count))
        return cls(shape, pages.reshape(shape.slots, shape.ranks, shape.page_bytes), sums)

    @classmethod
    def _in_region(cls, path: str, shape: MemoryShape) -> PageMemory:
        """Rows of vLLM's region: one is a slot."""
        size = shape.slots * shape.whole_page
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as wrong:
            fact = f"it cannot be opened ({wrong.strerror})"
            raise StateError(say("vLLM's host region", fact, "leave out 'disk' and 'shared'")) from wrong
        try:
            whole = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        pages = np.frombuffer(whole, np.uint8, size).reshape(shape.slots, shape.ranks, shape.page_bytes)
        return cls(shape, pages, None)


def announce_region(name: str, shape: MemoryShape, region: str, folder: Path = FOLDER) -> None:
    """A worker's, where pages are in vLLM's region: says to the scheduler where it can be opened."""
    os.close(_open_note(folder / name, shape, region))


def _open_note(path: Path, shape: MemoryShape, region: str) -> int:
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    os.pwrite(fd, json.dumps([*astuple(shape), region]).encode(), 0)
    return fd


class SharedMemoryTier:
    """The host's pages as a tier, for movers to a disk or a store; looks at checksums, and makes them."""

    def __init__(self, memory: PageMemory, *, checksums: bool) -> None:
        shape = memory.shape
        self._memory, self._sums = memory, memory.sums if checksums else None
        each = range(shape.groups)
        self._info = TierInfo(
            "host", tuple(shape.slots for _ in each), tuple(shape.whole_page for _ in each), tuple(0 for _ in each)
        )

    def info(self) -> TierInfo:
        """What the tier is."""
        return self._info

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        """Fill the buffers from the slots; a part that is not what its rank has stored fails its page."""
        check_call(self._info, group, slots, out)
        pages, failed = self._memory.pages, {}
        for slot, buffer in zip(slots, out, strict=True):
            flat = pages[slot].reshape(buffer.shape[0], -1)
            buffer[:] = flat[:, : buffer.shape[1]]
            if self._sums is not None and _sums(pages[slot]) != self._sums[slot].tolist():
                failed[slot] = "its bytes are not those that were stored"
        if failed:
            raise TierError(self._info.name, group, failed)

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        """Fill the slots from the buffers."""
        check_call(self._info, group, slots, data)
        check_distinct(self._info, group, slots)
        pages = self._memory.pages
        for slot, buffer in zip(slots, data, strict=True):
            pages[slot].reshape(buffer.shape[0], -1)[:, : buffer.shape[1]] = buffer
            if self._sums is not None:
                self._sums[slot] = _sums(pages[slot])

    def close(self) -> None:
        """The memory is its owner's."""


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _sums(parts: Bytes) -> list[int]:
    """Of each rank's part of a page."""
    return [crc32(part) + 1 for part in parts]
