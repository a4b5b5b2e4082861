"""What one process has alone: a folder, by a lock that ends with the process, and objects that no fork may use."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from weakref import WeakSet

from quire.core.records.errors import StateError, say

LOCK_NAME, FILE_MODE = "lock", 0o600
_taken: WeakSet[FolderLock] = WeakSet()


class FolderLock:
    """Taken from construction to `close`; StateError, which names the holder, where another process has it.

    `look`: for a caller that only reads, beside others that do; it makes and writes nothing, so where no process has
    ever had the folder there is nothing to take. `name`: of its file, where a folder is used for several things.
    """

    def __init__(self, folder: Path, look: bool = False, name: str = LOCK_NAME) -> None:
        self._fd = -1
        self._ours = not look  # what it says
        flags = os.O_RDONLY if look else os.O_RDWR | os.O_CREAT
        try:
            fd = os.open(folder / name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            if look and isinstance(error, FileNotFoundError):
                return
            cure = f"make room, or see to its file {name!r} and who may write there"
            raise StateError(say(f"folder {str(folder)!r}", f"it cannot be locked: {reason(error)}", cure)) from error
        try:
            _take(fd, folder, fcntl.LOCK_SH if look else fcntl.LOCK_EX)
            if not look:
                _sign(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        _taken.add(self)

    def _leave_to_parent(self) -> None:
        """In a fork: only the process that has taken it keeps it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)  # a lock ends with the last process that has the file open

    def close(self) -> None:
        """Let others in; again: nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                if self._ours:
                    os.ftruncate(fd, 0)
            os.close(fd)


def _after_fork() -> None:
    for lock in list(_taken):
        lock._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)


def _take(fd: int, folder: Path, kind: int) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
        cure = "close it there, or give each process its own folder"
        raise StateError(say(f"folder {str(folder)!r}", f"{owner} has it open", cure)) from None
    except OSError as error:
        cure = "name a folder on a disk of this machine"
        raise StateError(say(f"folder {str(folder)!r}", f"it cannot be locked: {reason(error)}", cure)) from error


def _sign(fd: int) -> None:
    """Say who has it. On a full disk it says nothing, and is taken all the same."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}, since {now}\n".encode(), 0)


def reason(wrong: OSError) -> str:
    """An error of the operating system in words."""
    name = errno.errorcode.get(wrong.errno or 0, type(wrong).__name__)
    return f"{wrong.strerror or wrong} ({name})"


def check_process(pid: int, what: str) -> None:
    """Refuse what another process has opened, of which this one is a fork: its threads are not here."""
    if os.getpid() != pid:
        fact = f"process {pid} has opened it, and this process is a fork of that one"
        raise StateError(say(what, fact, "open it in the process that uses it"))
