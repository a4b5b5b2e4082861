"""Compactor: rewrites a manifest that has grown too long. Owns the thread that does so."""

from __future__ import annotations

import logging
from threading import Thread

from quire.tiers.disk.folder import DiskFolder
from quire.tiers.disk.keep.disk_health import DiskHealth
from quire.tiers.disk.log.manifest import DamagedLog
from quire.tiers.process import reason

_log = logging.getLogger("quire.tiers")


class Compactor:
    """At most one thread at a time; the manifest has a lock of its own."""

    def __init__(self, folder: DiskFolder, health: DiskHealth) -> None:
        self._folder, self._health = folder, health
        self._thread: Thread | None = None

    def start_if_due(self, compact_bytes: int) -> None:
        """Compact on a thread once the manifest has grown by so much, and to twice its size."""
        grown, size = self._folder.manifest.grown, self._folder.manifest.size
        busy = self._thread is not None and self._thread.is_alive()
        if grown >= compact_bytes and 2 * grown >= size and not busy:
            self._thread = Thread(target=self._work, name="quire-compact", daemon=True)
            self._thread.start()

    def compact(self) -> None:
        """The manifest gets shorter, here and now; OSError: it did not."""
        try:
            self._folder.manifest.compact()
            self._health.report.compactions += 1
        except DamagedLog as damaged:
            self._health.fail(damaged)
            raise

    def join(self) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            self.compact()
        except DamagedLog:  # the report says so
            return
        except OSError as wrong:  # the old log is as good, and longer
            _log.debug("compacting %s: %s", self._folder.folder, reason(wrong))
        except BaseException as error:
            self._health.on_error(error)
