"""File calls: what a folder store asks of the operating system, and nothing more, so that tests can let each fail."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

Buffers = Sequence[memoryview | bytes]


class FileCalls:
    """The operating system's own. Every error is an OSError."""

    def size(self, path: Path) -> int:
        """Bytes of a file."""
        return os.stat(path).st_size

    def open_read(self, path: Path) -> int:
        """A file to read."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def create(self, path: Path) -> int:
        """A new file, for its owner only."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def make_folder(self, path: Path) -> None:
        """A folder, if it is not there."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)

    def read(self, number: int, into: Sequence[memoryview]) -> int:
        """Fill the buffers from the start of a file; how many bytes came, one more than fit if there are more."""
        buffers, came = [*into, memoryview(bytearray(1))], 0
        while buffers and (more := os.readv(number, buffers)):
            came += more
            buffers = _rest(buffers, more)
        return came

    def write(self, number: int, data: Buffers) -> None:
        """All of it."""
        buffers = [memoryview(part) for part in data]
        while buffers:
            buffers = _rest(buffers, os.writev(number, buffers))

    def age(self, number: int) -> float:
        """Seconds since a file was written or touched, by this machine's clock."""
        return time.time() - os.fstat(number).st_mtime

    def touch(self, number: int) -> None:
        """It is young again; where that is not allowed it stays as old as it is."""
        with contextlib.suppress(OSError):
            os.utime(number)

    def rename(self, old: Path, new: Path) -> None:
        """At once."""
        os.rename(old, new)

    def discard(self, path: Path) -> None:
        """A file that may not be there."""
        with contextlib.suppress(OSError):
            os.unlink(path)

    def close(self, number: int) -> None:
        """Done with it."""
        os.close(number)


def _rest(buffers: Sequence[memoryview], done: int) -> list[memoryview]:
    """What is left of the buffers behind their first `done` bytes."""
    left = []
    for buffer in buffers:
        skipped = min(done, buffer.nbytes)
        done -= skipped
        if skipped < buffer.nbytes:
            left.append(buffer[skipped:])
    return left
