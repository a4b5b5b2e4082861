"""Files as a disk tier needs them: bytes at an offset, and an order to disk that can be asked for. Owns permissions and
the calls of the operating system; knows no slots and no records.

A test can put another layer in its place: one that fails, that waits, or that forgets what was not synced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from quire.core.records.errors import InputError, StateError, say
from quire.tiers.base import Bytes
from quire.tiers.process import reason

FOLDER_MODE, FILE_MODE = 0o700, 0o600  # prompts are in there: no other user reads them
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MAX_PARTS = 512  # of one write; systems allow 1024
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)  # Linux has it


class FullDisk(OSError):
    """There is no room for bytes that were to be written; what was written before is as it was."""


class File(Protocol):
    """An open file. Reads and writes may do a part of what was asked, as those of the operating system may."""

    def read(self, offset: int, into: Bytes) -> int:
        """Fill the array from there; how many bytes came, 0 at the end of the file."""
        ...

    def read_ready(self, offset: int, into: Bytes) -> int:
        """The same with what the system has in memory, as far as it goes: this never waits for a disk, nor fails."""
        ...

    def write(self, offset: int, parts: Sequence[Bytes]) -> int:
        """Put the arrays there, one behind the other; how many bytes went."""
        ...

    def sync(self) -> None:
        """What was written is on the disk when this returns."""
        ...

    def size(self) -> int:
        """Bytes."""
        ...

    def resize(self, size: int) -> None:
        """Cut it, or make it longer, with room on the disk for every byte."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Files(Protocol):
    """Where files are."""

    def open(self, path: Path, create: bool = False) -> File:
        """An existing file, or with `create` a new and empty one in place of whatever was there."""
        ...

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name, at once, in place of what had it."""
        ...

    def remove(self, path: Path) -> None:
        """Delete it if it is there."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """The names in it are on the disk when this returns."""
        ...

    def free_bytes(self, folder: Path) -> int:
        """Room on its disk."""
        ...


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, offset: int, into: Bytes) -> int:
        """One preadv."""
        return os.preadv(self._fd, [into.data], offset)

    def read_ready(self, offset: int, into: Bytes) -> int:
        """One preadv that may not wait; 0 where the bytes are not in memory, or the file system does not know."""
        if not _NO_WAIT:
            return 0
        try:
            return os.preadv(self._fd, [into.data], offset, _NO_WAIT)
        except OSError:  # a read that waits says what is wrong
            return 0

    def write(self, offset: int, parts: Sequence[Bytes]) -> int:
        """One pwritev."""
        return os.pwritev(self._fd, [part.data for part in parts[:MAX_PARTS]], offset)

    def sync(self) -> None:
        """fdatasync where there is one: it includes the size."""
        getattr(os, "fdatasync", os.fsync)(self._fd)

    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._fd).st_size

    def resize(self, size: int) -> None:
        """Bytes that are added are reserved, so that a later write finds room."""
        before = self.size()
        if size > before and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._fd, before, size - before)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # else the file system cannot reserve
                    raise
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        """Let go of it; again: nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealFiles:
    """The file system."""

    def open(self, path: Path, create: bool = False) -> File:
        """Only its owner may read it; a link is not followed."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags | os.O_CREAT | os.O_TRUNC if create else flags, FILE_MODE)
        os.fchmod(fd, FILE_MODE)  # it may have been there, or been copied there
        return RealFile(fd)

    def replace(self, source: Path, target: Path) -> None:
        """rename(2)."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """unlink(2)."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """fsync of the folder."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, folder: Path) -> int:
        """What this user may still write."""
        stat = os.statvfs(folder)
        return stat.f_bavail * stat.f_frsize


class ReadOnlyFiles(RealFiles):
    """The same for a caller that only reads: nothing is made, changed or deleted."""

    def open(self, path: Path, create: bool = False) -> File:
        """Not to be written."""
        if create:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return RealFile(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))

    def replace(self, source: Path, target: Path) -> None:
        """No."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def remove(self, path: Path) -> None:
        """No."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


REAL_FILES = RealFiles()
READ_ONLY_FILES = ReadOnlyFiles()


def make_folder(folder: Path) -> None:
    """A folder for one user, with those above it."""
    ask = f"folder {str(folder)!r}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        folder.chmod(FOLDER_MODE)
    except OSError as error:
        cure = "name a folder that belongs to this user, on a disk that can be written"
        raise StateError(say(ask, reason(error), cure)) from error
    except ValueError as error:  # as for a name with a zero byte
        raise InputError(say(ask, f"no folder can be called that: {error}", "name another")) from error


def read_all(file: File, offset: int, into: Bytes) -> int:
    """Read until the array is full or the file ends; how many bytes came."""
    done = got = file.read(offset, into) if len(into) else 0
    while got > 0 and done < len(into):
        got = file.read(offset + done, into[done:])
        done += max(got, 0)
    return done


def write_some(file: File, offset: int, parts: Sequence[Bytes]) -> tuple[int, OSError | None]:
    """Write all of it, however many calls that takes; how many bytes went, and what stopped it."""
    left = [part for part in parts if len(part)]
    total = 0
    while left:
        try:
            done = file.write(offset + total, left)
        except OSError as error:
            return total, error
        if done <= 0:
            return total, OSError(errno.EIO, "the disk took no byte")
        total += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if left and done:
            left[0] = left[0][done:]
    return total, None


def write_all(file: File, offset: int, parts: Sequence[Bytes]) -> None:
    """The same, with an error for anything less."""
    wrong = write_some(file, offset, parts)[1]
    if wrong is not None and wrong.errno in NO_ROOM:
        raise FullDisk(wrong.errno, wrong.strerror) from wrong
    if wrong is not None:
        raise wrong
