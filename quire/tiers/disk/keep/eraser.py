"""Eraser: slots of forgotten pages are overwritten and their blocks leave the manifest, before anything else is
written. Owns the order of that, also on a full disk. Which slots these are is `slots_to_erase.py`'s.

    the disk has room    record ── overwrite ── fence ── compact
    it has none          clear in place ── overwrite ── sync
"""

from __future__ import annotations

from collections.abc import Callable

from quire.tiers.disk.calls.files import FullDisk
from quire.tiers.disk.folder import DiskFolder
from quire.tiers.disk.keep.compactor import Compactor
from quire.tiers.disk.keep.disk_health import DiskHealth
from quire.tiers.disk.keep.journal import Journal
from quire.tiers.disk.keep.slots_to_erase import SlotsToErase
from quire.tiers.disk.pages.tier import DiskTier
from quire.tiers.disk.ranks.ranked_tier import RankedTier


class Eraser:
    """All of it but `begin_forget` is called on the keeper's thread."""

    def __init__(
        self, folder: DiskFolder, journal: Journal, compactor: Compactor, health: DiskHealth, to_erase: SlotsToErase
    ) -> None:
        self._folder, self._journal, self._compactor, self._health = folder, journal, compactor, health
        self._to_erase = to_erase

    def begin_forget(self) -> None:
        """On the caller's thread: slots that are freed from now on are to be overwritten."""
        self._to_erase.begin()

    def end_forget(self) -> None:
        """They are, and their blocks leave the manifest. OSError: not yet."""
        try:
            self._journal.take()
        finally:
            self._to_erase.end()
        self.erase()

    def erase(self) -> None:
        """All that is to be erased; OSError: some of it is not, and stays on the list."""
        self._overwrite("stray", self._to_erase.erase_stray)
        if not self._to_erase.forgotten:
            return
        unrecorded: FullDisk | None = None
        try:
            self._journal.record()
            self._journal.free_slots()
        except FullDisk as full:
            unrecorded = full
            self._clear()
        self._overwrite("forgotten", self._to_erase.erase_forgotten)
        if unrecorded is None:
            self._fence_and_compact()
        else:
            self._health.run("fence", self._folder.tier.sync)
            if self._journal.has_unrecorded_tokens:
                raise unrecorded
        self._to_erase.forgotten.clear()

    def _overwrite(self, name: str, act: Callable[[DiskTier | RankedTier], None]) -> None:
        try:
            act(self._folder.tier)
        except OSError as error:
            self._health.stall(name, error)
            raise
        self._health.go_on(name)

    def _fence_and_compact(self) -> None:
        try:
            self._journal.fence()
            self._compactor.compact()
        except OSError as error:
            if self._health.report.broken or isinstance(error, TimeoutError):
                raise
            self._clear()

    def _clear(self) -> None:
        """What was forgotten leaves the manifest without a byte more."""
        pages = self._to_erase.pages()
        self._health.run("clear", lambda: self._folder.manifest.clear(pages))
