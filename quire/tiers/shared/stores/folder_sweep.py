"""Sweep: keep a folder of pages below its quota, oldest first. Safe beside any number of readers, writers and sweepers.

A reader that has a file open reads it to its end; a writer whose folder was removed makes it again. One sweeps at a
time, where the file system has locks; where it has none, two remove the same pages, which is harmless.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from quire.tiers.shared.stores.store import StoreError, StoreMiss

TEMPORARY = ".new-"  # files that are being written begin so
ABANDONED = 3600.0  # seconds: the process that wrote this temporary file is dead
SLICE = 0.05  # seconds: as long as one look for them takes
DONE = object()
KEPT = 0.9  # of the quota, after a sweep
LOCK = ".sweep"
MINUTE = 60


def sweep(folder: Path, quota: int, deadline: float) -> int:
    """Remove the oldest pages until nine tenths of the quota are left, if there is more than the quota; bytes removed.

    Two walks and numbers per minute, not a list of all files: there may be millions.
    """
    with _lock(folder) as mine:
        if not mine:
            return 0
        by_minute: Counter[int] = Counter()
        for file in files_in(folder, deadline):
            with contextlib.suppress(OSError):
                if not (file.name.startswith(TEMPORARY) and _remove_abandoned(file)):
                    stat = file.stat(follow_symlinks=False)
                    by_minute[int(stat.st_mtime) // MINUTE] += stat.st_size
        total = by_minute.total()
        return 0 if total <= quota else _remove(folder, by_minute, total - int(quota * KEPT), deadline)


def _remove(folder: Path, by_minute: Counter[int], goal: int, deadline: float) -> int:
    last, sure = 0, 0
    for last in sorted(by_minute):
        sure += by_minute[last]
        if sure >= goal:
            break
    sure -= by_minute[last]  # bytes older than that minute: all of them go; of that minute as many as it takes
    removed = spare = 0
    for file in files_in(folder, deadline):
        with contextlib.suppress(OSError):
            stat = file.stat(follow_symlinks=False)
            minute = int(stat.st_mtime) // MINUTE
            if file.name.startswith(TEMPORARY) or minute > last or (minute == last and spare >= goal - sure):
                continue
            os.unlink(file.path)
            removed += stat.st_size
            spare += stat.st_size if minute == last else 0
    return removed


def files_in(folder: Path, deadline: float) -> Iterator[os.DirEntry[str]]:
    """Files of pages, two folders down; ends early at the deadline. Folders that are empty go."""
    for scope in _folders(folder):
        for part in _folders(scope.path):
            found = False
            with contextlib.suppress(OSError), os.scandir(part.path) as files:
                for file in files:
                    if time.monotonic() >= deadline:
                        return
                    found = True
                    yield file
            if not found:
                with contextlib.suppress(OSError):
                    os.rmdir(part.path)
        with contextlib.suppress(OSError):
            os.rmdir(scope.path)  # refused while there is something in it


class AbandonedFiles:
    """Temporary files whose writers are dead, of a folder that no quota has swept. Looks at a few folders at a time, so
    that no call takes long, at all of them in the end, and then again after as long as it takes to be abandoned."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._round: Iterator[None] | None = None
        self._next = 0.0
        self._one_at_a_time = threading.Lock()

    def clean(self, deadline: float) -> None:
        """Go on, for a moment; where another thread is at it, that one does. What cannot be removed stays."""
        if time.monotonic() < self._next or not self._one_at_a_time.acquire(blocking=False):
            return
        try:
            self._go_on(min(deadline, time.monotonic() + SLICE))
        finally:
            self._one_at_a_time.release()

    def _go_on(self, until: float) -> None:
        self._round = self._round or self._clean_all()
        while time.monotonic() < until:
            if next(self._round, DONE) is DONE:
                self._round, self._next = None, time.monotonic() + ABANDONED
                return

    def _clean_all(self) -> Iterator[None]:
        for scope in _folders(self._folder):
            for part in _folders(scope.path):
                with contextlib.suppress(OSError), os.scandir(part.path) as files:
                    for file in files:
                        if file.name.startswith(TEMPORARY):
                            _remove_abandoned(file)
                yield


def _remove_abandoned(file: os.DirEntry[str]) -> bool:
    """Whether it was."""
    abandoned = time.time() - file.stat(follow_symlinks=False).st_mtime > ABANDONED
    if abandoned:
        os.unlink(file.path)
    return abandoned


def _folders(path: Path | str) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def remove_tree(scope: Path, deadline: float, store: str) -> int:
    """Every page below the folder of a scope; how many. What cannot be removed is reported: it was to be forgotten."""
    removed = 0
    for part in _folders(scope):
        try:
            for name in os.listdir(part.path):
                if time.monotonic() >= deadline:
                    raise StoreError(store, StoreMiss.LATE, f"{removed} pages of a scope were removed in time, not all")
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(part.path, name))
                    removed += not name.startswith(TEMPORARY)
            os.rmdir(part.path)
        except FileNotFoundError:  # another process removes it too
            continue
        except OSError as error:
            fact = f"{removed} pages of a scope were removed, not all: {error}"
            raise StoreError(store, StoreMiss.FAILED, fact) from error
    with contextlib.suppress(OSError):
        os.rmdir(scope)
    return removed


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Whether no other process is sweeping."""
    try:
        number = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # no locks here
            pass
        yield True
    finally:
        os.close(number)
