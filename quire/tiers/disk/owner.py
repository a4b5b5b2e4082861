"""One owner per folder: a lock that ends with the process. Owns the lock file and what it says; knows no pages."""

from __future__ import annotations

import fcntl
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from quire.core.records.errors import StateError, say
from quire.tiers.disk.files import FILE_MODE

LOCK_NAME = "lock"


class FolderLock:
    """Taken from construction to `close`; StateError, which says who has it, when somebody else has."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(folder / LOCK_NAME, flags, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(fd)
            cure = "close it there, or give each process its own folder"
            raise StateError(say(f"folder {str(folder)!r}", f"{owner} has it open", cure)) from None
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}, since {now}\n".encode(), 0)
        self._fd = fd

    def close(self) -> None:
        """Let others in; again: nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.ftruncate(fd, 0)
            os.close(fd)


def model_folder(folder: Path, fingerprint: bytes) -> Path:
    """Where one model's pages are."""
    return folder / fingerprint.hex()
