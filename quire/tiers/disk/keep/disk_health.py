"""DiskHealth: whether a keeper may still use its disk. Owns the keeper's report, and what each kind of error
does to it.

full, or a record that failed      stalled            nothing is copied down for now; it is tried again, and logged
                                                      when it begins and when all of it is over
a failed call, a damaged log       broken             nothing is written any more: records and slots go on to agree
an error that is a bug             broken, and shut   nothing is read either: plans are given up
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TypeVar

from quire.core.records.errors import BrokenInvariant, QuireError
from quire.tiers.disk.calls.files import FullDisk
from quire.tiers.disk.calls.stalls import Stalls
from quire.tiers.disk.keep.pace import KeeperReport
from quire.tiers.process import reason

T = TypeVar("T")
_log = logging.getLogger("quire.tiers")


def is_bug(error: BaseException) -> bool:
    """Whether neither a disk nor a caller can cause it."""
    return not isinstance(error, OSError | QuireError) or isinstance(error, BrokenInvariant)


class DiskHealth:
    """Only `on_error` and `fail` are called on other threads than the keeper's."""

    def __init__(self, folder: Path) -> None:
        self.report = KeeperReport()
        self.shut = False  # after an error that is a bug
        self._folder, self._stalls = folder, Stalls(folder)
        self._counting = Lock()  # guards the errors in the report, and `shut`

    def on_error(self, error: BaseException) -> None:
        """An error of any thread. What a disk or a caller can cause is reported elsewhere; the rest is a bug."""
        if not is_bug(error):
            return
        with self._counting:
            self.report.errors += 1
            first, self.shut = not self.shut, True
            self.report.broken = self.report.broken or f"{type(error).__name__}: {error}"
        if first:
            _log.error("the disk in %s is used no more: %s", self._folder, self.report.broken, exc_info=error)

    def check(self) -> None:
        """OSError once the disk has failed."""
        if self.report.broken:
            raise OSError(errno.EIO, f"the disk has failed before: {self.report.broken}")

    def run(self, name: str, act: Callable[[], T]) -> T:
        """Do something on the disk, and report how it fails; OSError also where the disk has failed before."""
        self.check()
        try:
            return act()
        except TimeoutError:  # it may come round, and nothing was lost
            raise
        except FullDisk as full:  # nor here
            self.stall(name, full)
            raise
        except OSError as error:
            self.fail(error)
            raise

    def stall(self, name: str, wrong: OSError) -> None:
        """This cannot be written for now."""
        self._stalls.begin(name, reason(wrong))
        self.report.stalled = self._stalls.why

    def go_on(self, *names: str) -> None:
        """These have been written."""
        self._stalls.end(*names)
        self.report.stalled = self._stalls.why

    def fail(self, wrong: OSError) -> None:
        """Nothing is written any more."""
        with self._counting:
            first = not self.report.broken
            self.report.broken = self.report.broken or reason(wrong)
        if first:
            _log.error("nothing is copied down to %s any more: %s", self._folder, self.report.broken)
