"""PageMemory: host memory for the pages of all ranks, in one piece that vLLM's processes share. Knows no cache.

    file     head, then by group: checksums [slot, rank], pages [slot, rank, byte]
    worker   copies between its rank's parts and vLLM's KV tensors
    keeper   in the scheduler's process: a slot's parts of all ranks are one page, whole or not at all

The workers make it before vLLM makes its scheduler, which takes the name away: whoever is killed leaves nothing behind.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, StateError, say
from quire.tiers.base import Bytes, TierError, TierInfo, check_call, check_distinct

FOLDER = Path("/dev/shm")  # memory that looks like files
HEAD = 1 << 16  # bytes
ALIGNED = 4096


@dataclass(frozen=True, slots=True)
class PageShape:
    """What is in the memory; every rank says the same."""

    slots: int
    ranks: int
    page_bytes: tuple[int, ...]  # by group, of one rank
    form: str  # of what is inside a page: names, shapes and types of its layers

    @property
    def whole_pages(self) -> list[int]:
        """Bytes of a page of each group, with the parts of all ranks."""
        return [self.ranks * size for size in self.page_bytes]

    def size(self) -> int:
        """Bytes of the file."""
        return HEAD + sum(_aligned(8 * self.slots * self.ranks) + _aligned(self.slots * size)
                          for size in self.whole_pages)  # fmt: skip


class PageMemory:
    """`pages` and `sums` by group. A checksum is kept plus one: 0 says that there is none."""

    def __init__(self, fd: int, shape: PageShape) -> None:
        self.shape = shape
        self._map = mmap.mmap(fd, shape.size())
        self.pages: list[Bytes] = []
        self.sums: list[NDArray[np.int64]] = []
        at = HEAD
        for size in shape.page_bytes:
            count = shape.slots * shape.ranks
            self.sums.append(np.frombuffer(self._map, np.int64, count, at).reshape(shape.slots, shape.ranks))
            at += _aligned(8 * count)
            whole = np.frombuffer(self._map, np.uint8, count * size, at)
            self.pages.append(whole.reshape(shape.slots, shape.ranks, size))
            at += _aligned(count * size)

    @classmethod
    def make(cls, name: str, shape: PageShape, folder: Path = FOLDER) -> PageMemory:
        """A worker's: the first of the ranks makes it, the others open it."""
        told = json.dumps([shape.slots, shape.ranks, shape.page_bytes, shape.form]).encode()
        if len(told) > HEAD:
            fact = f"names and shapes of its layers take {len(told)} bytes"
            raise InputError(say("this model", fact, "run it with 'host' only"))
        fd = os.open(folder / name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, shape.size())  # all of it now: what is missing later ends the process
            os.pwrite(fd, told, 0)
            return cls(fd, shape)
        except OSError as wrong:
            os.unlink(folder / name)
            if wrong.errno != errno.ENOSPC:
                raise
            told_free = os.statvfs(folder)
            fact = f"{folder} has {told_free.f_bavail * told_free.f_frsize} bytes free"
            cure = "give 'host' less, or the container more (--shm-size)"
            raise InputError(say(f"{shape.size()} bytes of memory that processes share", fact, cure)) from wrong
        finally:
            os.close(fd)

    @classmethod
    def take(cls, name: str, folder: Path = FOLDER) -> PageMemory:
        """The scheduler's: opens what the workers have made, and removes its name."""
        try:
            fd = os.open(folder / name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as wrong:
            fact = "vLLM's workers did not make it before its scheduler, or run on another machine"
            raise StateError(say(f"host memory {name!r}", fact, "leave out 'disk' and 'shared'")) from wrong
        try:
            os.unlink(folder / name)
            slots, ranks, sizes, form = json.loads(os.pread(fd, HEAD, 0).rstrip(b"\0"))
            return cls(fd, PageShape(slots, ranks, tuple(sizes), form))
        finally:
            os.close(fd)


class SharedMemoryTier:
    """The host's pages as a tier, for whoever moves them to a disk or a store; looks at checksums, and makes them."""

    def __init__(self, memory: PageMemory, *, checksums: bool) -> None:
        shape = memory.shape
        self._memory, self._checksums = memory, checksums
        self._info = TierInfo("host", (shape.slots,) * len(shape.page_bytes), tuple(shape.whole_pages))

    def info(self) -> TierInfo:
        """What the tier is."""
        return self._info

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        """Fill the buffers from the slots; a part that is not what its rank has stored fails its page."""
        check_call(self._info, group, slots, out)
        pages, sums, failed = self._memory.pages[group], self._memory.sums[group], {}
        for slot, buffer in zip(slots, out, strict=True):
            flat = pages[slot].reshape(buffer.shape[0], -1)
            buffer[:] = flat[:, : buffer.shape[1]]
            if self._checksums and [crc32(part) + 1 for part in pages[slot]] != sums[slot].tolist():
                failed[slot] = "its bytes are not those that were stored"
        if failed:
            raise TierError(self._info.name, group, failed)

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        """Fill the slots from the buffers."""
        check_call(self._info, group, slots, data)
        check_distinct(self._info, group, slots)
        pages, sums = self._memory.pages[group], self._memory.sums[group]
        for slot, buffer in zip(slots, data, strict=True):
            pages[slot].reshape(buffer.shape[0], -1)[:, : buffer.shape[1]] = buffer
            if self._checksums:
                sums[slot] = [crc32(part) + 1 for part in pages[slot]]

    def close(self) -> None:
        """The memory is its owner's."""


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
