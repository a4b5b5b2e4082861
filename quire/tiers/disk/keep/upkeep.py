"""Upkeep: what a keeper does on its thread, one thing at a time. Owns its parts, and when a round comes; each part has
its own file. Knows no callers: the keeper does.

    disk_health        may the disk be used, and the report
    slots_to_erase     which slots are to be overwritten
    journal            changes into the manifest, and fences
    compactor          a shorter manifest
    eraser             forgotten pages, overwritten
    background_plans   pages down and up

When the disk fails, copying down ends and is reported; what is durable stays so, and the cache goes on without it.
"""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np

from quire.core.cache import Cache
from quire.core.records.errors import StateError, say
from quire.tiers.disk.folder import DiskFolder
from quire.tiers.disk.keep.background_plans import BackgroundPlans
from quire.tiers.disk.keep.compactor import Compactor
from quire.tiers.disk.keep.disk_health import DiskHealth
from quire.tiers.disk.keep.eraser import Eraser
from quire.tiers.disk.keep.journal import Journal
from quire.tiers.disk.keep.pace import KeeperPace
from quire.tiers.disk.keep.slots_to_erase import SlotsToErase
from quire.tiers.disk.pages.slots import NoVerdict
from quire.tiers.disk.ranks.ranked_tier import RanksMover
from quire.tiers.mover import Mover

QUIET_SECONDS = 1.0  # between looks, at most, when there was nothing to do
AGAIN_SECONDS = 5.0  # until a disk that took nothing is tried again


class Upkeep:
    """All methods are called on the keeper's thread."""

    def __init__(self, cache: Cache, folder: DiskFolder, mover: Mover | RanksMover, pace: KeeperPace) -> None:
        self._cache, self._folder, self._pace = cache, folder, pace
        page_bytes = np.array(folder.tier.info().page_bytes)
        self._most_pages = max(1, pace.copy_bytes // int(page_bytes.max()))  # of each group, in one plan
        to_erase = SlotsToErase(folder.tier.info().first_of)
        self.health = DiskHealth(folder.folder)
        self.journal = Journal(cache, folder, self.health, to_erase)
        self._compactor = Compactor(folder, self.health)
        self.eraser = Eraser(folder, self.journal, self._compactor, self.health, to_erase)
        self.plans = BackgroundPlans(
            cache, mover, page_bytes,
            journal=self.journal, eraser=self.eraser, to_erase=to_erase, health=self.health,
        )  # fmt: skip
        self.close_error: StateError | None = None  # what closing the folder raised
        self._copy_from = 0.0
        self._pause = pace.look_seconds
        self._next_look = time.monotonic() + self._pause

    def turn(self) -> float:
        """A round, if it makes sense; when to come again."""
        if not self.health.report.broken:
            with suppress(OSError, StateError):  # the report says so; or it is being closed
                self._round()
        return self._next_look if not self.health.report.broken else float("inf")

    def _round(self) -> None:
        """Record, copy some pages down, fence and compact when it is time; then look again soon, or at once."""
        worth = copied = 0
        self._pause = min(2 * self._pause, max(QUIET_SECONDS, self._pace.look_seconds))  # looking costs the cache time
        self._next_look = time.monotonic() + self._pause
        self.journal.record()
        self.eraser.erase()
        if time.monotonic() >= self._copy_from:
            worth, copied = self.plans.copy_down(self._most_pages)
        if copied:  # some more soon, or at once: each plan costs the steps time, so few large ones are made
            self._pause = self._pace.look_seconds
            self._next_look = 0.0 if worth >= self._most_pages else time.monotonic() + self._pause
        elif worth:  # a full disk, or one that hangs: others may mend that
            self._copy_from = time.monotonic() + AGAIN_SECONDS
        self._next_look = min(self._next_look, self.journal.fence_if_due(self._pace))
        self._compactor.start_if_due(self._pace.compact_bytes)

    def flush(self, seconds: float | None) -> bool:
        """Copy down all that is worth it, and make it durable; whether that was done."""
        if self.health.report.broken:
            return False
        until = None if seconds is None else time.monotonic() + seconds
        try:
            self.eraser.erase()
            worth = copied = 1
            while copied and (until is None or time.monotonic() < until):
                worth, copied = self.plans.copy_down(self._most_pages, until)
            self.journal.fence()
            return not worth
        except (OSError, StateError):  # the report says why
            return False

    def lose(self, group: int, slots: list[int]) -> None:
        """The scrubber has found bad pages: those that still are, here where nothing is written meanwhile."""
        bad = self._folder.tier.verify(group, slots)
        lost = [slot for slot, why in bad.items() if not isinstance(why, NoVerdict)]
        if lost:
            self.health.report.scrubbed_bad += len(lost)
            self.plans.report_setbacks(self._cache.lose(group, lost, tier=len(self._cache.config.tiers) - 1))

    def end(self) -> None:
        """Let go of the folder; nothing comes after that."""
        self._compactor.join()
        self.plans.close()
        shut = self.health.shut
        try:
            self._folder.close(fence=not shut)
            if shut:
                fact = f"it was used no more: {self.health.report.broken}"
                raise StateError(say(f"folder {str(self._folder.folder)!r}", fact, "report what was logged"))
        except StateError as error:
            self.close_error = error
