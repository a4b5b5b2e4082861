"""Journal: what changes in the slow tier goes into the manifest, in order, and becomes durable. Owns the changes that
are not recorded yet, and when a fence is due.
"""

from __future__ import annotations

import time
from collections import deque

from quire.core.cache import Cache
from quire.core.records.lasting import LastingChanges
from quire.tiers.disk.folder import DiskFolder
from quire.tiers.disk.keep.disk_health import DiskHealth
from quire.tiers.disk.keep.pace import KeeperPace
from quire.tiers.disk.keep.slots_to_erase import SlotsToErase
from quire.tiers.disk.log.manifest import DamagedLog


class Journal:
    """All of it is called on the keeper's thread."""

    def __init__(self, cache: Cache, folder: DiskFolder, health: DiskHealth, to_erase: SlotsToErase) -> None:
        self._cache, self._folder, self._health, self._to_erase = cache, folder, health, to_erase
        self._unrecorded: deque[LastingChanges] = deque()
        self._unfenced, self._unfenced_bytes = False, 0
        self._last_fence = time.monotonic()

    def take(self) -> LastingChanges:
        """What has changed in the slow tier since the last time: it waits to be recorded."""
        changes = self._cache.lasting_changes()
        if len(changes.freed_slot) or len(changes.pages.slot) or len(changes.nodes.number):
            self._unrecorded.append(changes)
        self._to_erase.freed(changes)
        return changes

    def record(self) -> None:
        """Changes go into the manifest; until one that frees a slot is there, nothing else is written to the slot."""
        self.take()
        while self._unrecorded:
            self._health.check()
            try:
                self._health.report.left_out += len(self._folder.record(self._unrecorded[0]).slot)
            except DamagedLog as damaged:
                self._health.fail(damaged)
                raise
            except OSError as error:
                self._health.stall("record", error)
                raise
            self._unrecorded.popleft()
            self._unfenced = True
            self._health.go_on("record")

    @property
    def has_unrecorded_tokens(self) -> bool:
        """Whether a change that waits has blocks with it: their tokens will be in the manifest."""
        return any(len(changes.nodes.number) for changes in self._unrecorded)

    def free_slots(self) -> None:
        """Slots that were recorded as free may be written from now on."""
        self._health.run("fence", self._folder.before_writing)

    def add_bytes(self, num_bytes: int) -> None:
        """So much was copied down; a fence has yet to cover it."""
        self._unfenced_bytes += num_bytes

    def fence(self) -> None:
        """What was copied down is durable; OSError: it is not."""
        self.record()
        self._health.run("fence", self._folder.fence)
        self._unfenced, self._unfenced_bytes, self._last_fence = False, 0, time.monotonic()
        self._health.go_on("record", "fence", "clear")  # what was to be cleared was recorded
        self._health.report.fences += 1

    def fence_if_due(self, pace: KeeperPace) -> float:
        """Fence after so long, or so many bytes; when the next one is due, infinite if it has nothing to cover."""
        due = time.monotonic() - self._last_fence >= pace.fence_seconds
        if self._unfenced and (due or self._unfenced_bytes >= pace.fence_bytes):
            self.fence()
        return self._last_fence + pace.fence_seconds if self._unfenced else float("inf")
