"""Listening: which process writes the incidents of a folder when it gets SIGUSR2, and how it is asked to.

    the server ── Listening: takes a lock, writes its pid ──► folder
    `quire incident save` ── ask_to_save: is the lock held, and by that process? ── SIGUSR2 ──► the server

A pid alone proves nothing: its process may have been killed and the number given to another, or be of another machine
or container; and SIGUSR2 ends a process that does not expect it. Writes no incident.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from quire.core.records.errors import StateError, say
from quire.tiers.process import FolderLock

PID, LOCK = "pid", "incidents.lock"
TRIES, PAUSE = 20, 0.05  # of the server's lock: whoever looks whether it is held has it for a moment
PROCESSES = Path("/proc")


class Listening:
    """A process has the folder, from construction to `close`. StateError where another one has it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock, self._file = _lock(folder), folder / PID
        try:
            self._file.write_text(f"{os.getpid()}\n", encoding="ascii")
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """It writes no more."""
        with suppress(OSError):
            self._file.unlink()
        self._lock.close()


def _lock(folder: Path) -> FolderLock:
    for _ in range(TRIES - 1):
        with suppress(StateError):
            return FolderLock(folder, name=LOCK)
        time.sleep(PAUSE)
    return FolderLock(folder, name=LOCK)


def is_listening(folder: Path) -> bool:
    """Whether a process has the folder."""
    try:
        FolderLock(folder, look=True, name=LOCK).close()
    except StateError:
        return True
    return False


def ask_to_save(folder: Path, ask: str) -> int:
    """Send SIGUSR2 to the process that has the folder, and to no other; its pid."""
    try:
        pid = int((folder / PID).read_text(encoding="ascii"))
    except (OSError, ValueError):
        raise StateError(say(ask, "no server keeps any there", "start it with --incidents FOLDER")) from None
    try:
        process = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1  # before the look: a pid may change hands
    except OSError as error:
        raise StateError(say(ask, f"process {pid}: {error.strerror}", "start the server again")) from None
    try:
        if not is_listening(folder):
            fact = f"process {pid}, which its file {PID!r} names, does not keep them any more"
            raise StateError(say(ask, fact, "start the server again"))
        if not _has_open(pid, folder / LOCK):
            fact = f"a server keeps them, and it is not process {pid} of this machine"
            raise StateError(say(ask, fact, "ask where the server runs, in its container"))
        if process >= 0:
            signal.pidfd_send_signal(process, signal.SIGUSR2)
        else:
            os.kill(pid, signal.SIGUSR2)
    except OSError as error:
        raise StateError(say(ask, f"process {pid}: {error.strerror}", "ask as the server's user")) from None
    finally:
        if process >= 0:
            os.close(process)
    return pid


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open; where that cannot be known, its lock must do."""
    if not (PROCESSES / "self" / "fd").exists():
        return True
    wanted = path.stat()
    with suppress(FileNotFoundError):
        for file in (PROCESSES / str(pid) / "fd").iterdir():
            with suppress(FileNotFoundError):
                if os.path.samestat(file.stat(), wanted):
                    return True
    return False
