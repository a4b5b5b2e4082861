"""DiskWatch: how long calls to a disk have been waiting for an answer. Owns the times of calls under way, and files
whose calls are among them. Interrupts nothing: a caller that waits for a thread learns here that the thread hangs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from quire.tiers.base import Bytes
from quire.tiers.disk.calls.files import File, Files


class DiskWatch:
    """Calls of all threads that use one folder."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = Lock()  # guards the two below
        self._limits: dict[int, float] = {}  # calls under way: when each will have taken too long
        self._next = 0

    @contextmanager
    def calling(self, seconds: float | None = None) -> Iterator[None]:
        """A call, which should not take longer than that."""
        with self._lock:
            self._next += 1
            number = self._next
            self._limits[number] = time.monotonic() + (self.seconds if seconds is None else seconds)
        try:
            yield
        finally:
            with self._lock:
                del self._limits[number]

    @property
    def hanging(self) -> bool:
        """Whether a call has taken too long and still has no answer."""
        with self._lock:
            return min(self._limits.values(), default=float("inf")) <= time.monotonic()


class WatchedFile:
    """A file whose calls are watched."""

    __slots__ = ("_file", "_watch")

    def __init__(self, file: File, watch: DiskWatch) -> None:
        self._file, self._watch = file, watch

    def read(self, offset: int, into: Bytes) -> int:
        """As the file's."""
        with self._watch.calling():
            return self._file.read(offset, into)

    def read_ready(self, offset: int, into: Bytes) -> int:
        """As the file's, which does not wait."""
        return self._file.read_ready(offset, into)

    def write(self, offset: int, parts: Sequence[Bytes]) -> int:
        """As the file's."""
        with self._watch.calling():
            return self._file.write(offset, parts)

    def sync(self) -> None:
        """As the file's."""
        with self._watch.calling():
            self._file.sync()

    def size(self) -> int:
        """As the file's."""
        with self._watch.calling():
            return self._file.size()

    def resize(self, size: int) -> None:
        """As the file's."""
        with self._watch.calling():
            self._file.resize(size)

    def close(self) -> None:
        """As the file's."""
        with self._watch.calling():
            self._file.close()


class WatchedFiles:
    """Files whose calls are watched."""

    def __init__(self, files: Files, watch: DiskWatch) -> None:
        self.files, self._watch = files, watch

    def open(self, path: Path, create: bool = False) -> File:
        """As theirs."""
        with self._watch.calling():
            return WatchedFile(self.files.open(path, create), self._watch)

    def replace(self, source: Path, target: Path) -> None:
        """As theirs."""
        with self._watch.calling():
            self.files.replace(source, target)

    def remove(self, path: Path) -> None:
        """As theirs."""
        with self._watch.calling():
            self.files.remove(path)

    def sync_folder(self, folder: Path) -> None:
        """As theirs."""
        with self._watch.calling():
            self.files.sync_folder(folder)

    def free_bytes(self, folder: Path) -> int:
        """As theirs."""
        with self._watch.calling():
            return self.files.free_bytes(folder)
