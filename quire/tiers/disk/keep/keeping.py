"""Keeping: what a keeper does, one thing at a time, on its thread. Owns the order of records, bytes and fences, what is
still to be recorded or erased, and the report. Knows no callers: the keeper does.

    a plan down   freed slots recorded ── and on disk ── bytes written ── cache told ── pages recorded ── fence
    a plan up     bytes read and verified ── cache told

When the disk fails, copying down ends and is reported; what is durable stays what it is, and the cache goes on without.
After an error that nobody expected nothing is read either: plans are given up, and their prompts are computed.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import TypeVar

import numpy as np

from quire.core.cache import Cache
from quire.core.records.errors import BrokenInvariant, QuireError, StateError, say
from quire.core.records.lasting import LastingChanges
from quire.core.records.plan import MoveColumn, Plan
from quire.core.sequences.setbacks import Finished
from quire.tiers.disk.calls.files import FullDisk, reason
from quire.tiers.disk.folder import DiskFolder
from quire.tiers.disk.keep.erasing import Erasing
from quire.tiers.disk.keep.pace import KeeperPace, KeeperReport
from quire.tiers.disk.log.manifest import DamagedLog
from quire.tiers.disk.pages.slots import Failed, NoVerdict, Unanswered
from quire.tiers.disk.pages.tier import DiskTier
from quire.tiers.disk.ranks.ranked_tier import RankedTier, RanksMover
from quire.tiers.mover import Mover

QUIET_SECONDS = 1.0  # between looks, at most, when there was nothing to do
AGAIN_SECONDS = 5.0  # until a disk that took nothing is tried again
T = TypeVar("T")
OnSetbacks = Callable[[Finished], None]
_log = logging.getLogger("quire.tiers")


class Keeping:
    """All of it but `on_error` and `compact` is called on the keeper's thread."""

    def __init__(self, cache: Cache, folder: DiskFolder, mover: Mover | RanksMover, pace: KeeperPace) -> None:
        self.cache, self.folder, self._mover, self._pace = cache, folder, mover, pace
        self.report = KeeperReport()
        self.on_setbacks: OnSetbacks | None = None
        self.closing = Event()
        self.ended_with: StateError | None = None  # what closing the folder raised
        self.num_held, self.holding = 0, False
        self._slow = len(cache.config.tiers) - 1
        self._page_bytes = np.array(folder.tier.info().page_bytes)
        self._most_pages = max(1, pace.copy_bytes // int(self._page_bytes.max()))  # of each group, in one plan
        self._num_run = 0
        self._counting = Lock()  # guards the errors in the report and the one below
        self._shut = False  # after an error that nobody expected
        self._unfenced_bytes, self._unfenced = 0, False
        self._unrecorded: deque[LastingChanges] = deque()
        self._erasing = Erasing(folder.tier.info().first_of)
        self._until: float | None = None  # when a flush gives up waiting for a step
        self._copy_from = 0.0
        self._pause = pace.look_seconds
        self._next_look = time.monotonic() + self._pause
        self._last_fence = time.monotonic()
        self._compactor: Thread | None = None

    def on_error(self, error: BaseException) -> None:
        """Something was raised, on whatever thread. What a disk or a caller can cause is reported elsewhere."""
        if isinstance(error, OSError | QuireError) and not isinstance(error, BrokenInvariant):
            return
        with self._counting:
            self.report.errors += 1
            self._shut = True
            self.report.broken = self.report.broken or f"{type(error).__name__}: {error}"
        _log.error("the disk in %s is used no more: %s", self.folder.folder, self.report.broken, exc_info=error)

    def turn(self) -> float:
        """A round, if it makes sense; when to come again."""
        if not self.report.broken:
            with suppress(OSError, StateError):  # the report says so; or it is being closed
                self._round()
        return self._next_look if not self.report.broken else float("inf")

    def _round(self) -> None:
        """Record, copy some pages down, fence and compact when it is time; then look again soon, or at once."""
        worth = copied = 0
        self._pause = min(2 * self._pause, max(QUIET_SECONDS, self._pace.look_seconds))  # looking costs the cache time
        self._next_look = time.monotonic() + self._pause
        self._record()
        self._erase()
        if time.monotonic() >= self._copy_from:
            worth, copied = self._copy_down()
        if copied:  # some more soon, or at once: each plan costs the steps time, so few large ones are made
            self._pause = self._pace.look_seconds
            self._next_look = 0.0 if worth >= self._most_pages else time.monotonic() + self._pause
        elif worth:  # a full disk, or one that hangs: others may mend that
            self._copy_from = time.monotonic() + AGAIN_SECONDS
        due = time.monotonic() - self._last_fence >= self._pace.fence_seconds
        if self._unfenced and (due or self._unfenced_bytes >= self._pace.fence_bytes):
            self.fence()
        if self._unfenced:
            self._next_look = min(self._next_look, self._last_fence + self._pace.fence_seconds)
        grown, size = self.folder.manifest.grown, self.folder.manifest.size
        busy = self._compactor is not None and self._compactor.is_alive()
        if grown >= self._pace.compact_bytes and 2 * grown >= size and not busy:
            self._compactor = Thread(target=self.compact, name="quire-compact", daemon=True)
            self._compactor.start()

    def run(self, plan: Plan) -> list[int]:
        """Run a plan after the step that it waits for, and tell the cache; the moves that did not happen."""
        down = plan.moves[:, MoveColumn.DST_TIER] == self._slow
        reasons: Failed = dict.fromkeys(range(len(plan)), Unanswered("the disk is used no more"))
        try:
            if not self._shut:
                reasons = self._move(plan, bool(down.any()))
        finally:
            undone = [move for move, why in reasons.items() if isinstance(why, NoVerdict)]
            failed = [move for move in reasons if move not in set(undone)]
            finished = self.cache.finish(plan, failed, undone)
            self.num_held += 1
        self._tell(finished)
        good = np.ones(len(plan), bool)
        good[list(reasons)] = False
        self.report.copied_down += int(np.count_nonzero(good & down))
        self.report.brought_up += int(np.count_nonzero(good & ~down))
        self.report.failed += len(failed)
        self.report.given_up += sum(isinstance(why, Unanswered) for why in reasons.values())
        self._unfenced_bytes += int(self._page_bytes[plan.moves[good & down, MoveColumn.GROUP]].sum())
        if down.any() and not self._shut:
            moved = plan.moves[good & down]
            self._erasing.written(moved[:, MoveColumn.GROUP], moved[:, MoveColumn.DST_SLOT], self._take())
            self._record()
        return sorted(reasons)

    def _move(self, plan: Plan, down: bool) -> Failed:
        if down:
            self._record()
            self._erase()
            self._on_disk(self.folder.before_writing)
        self._wait_for_step(plan)
        self._num_run += 1  # the mover wants plans by number, and those in the background come as they come
        reasons = self._mover.reasons(Plan(self._num_run, plan.moves))
        self._mover.settle(self._num_run)
        return reasons

    def _wait_for_step(self, plan: Plan) -> None:
        """Until the step's plan that it comes after is finished: before that, what it reads may not be there."""
        while any(not other.background and other.number <= plan.after for other in self.cache.open_plans()):
            late = self._until is not None and time.monotonic() >= self._until
            if late or self.closing.is_set():
                fact = f"plan {plan.after}, which it comes after, is not finished"
                raise StateError(say(f"background plan {plan.number}", fact, "finish plans before closing"))
            self.closing.wait(0.001)

    def _copy_down(self) -> tuple[int, int]:
        """Some pages that have no copy on disk yet: how many there were, and how many of them have one now."""
        self.holding = True
        try:
            plan = self.cache.copy_down(self._most_pages)
            return len(plan), len(plan) - len(self.run(plan)) if len(plan) else 0
        finally:
            self.holding = False

    def fence(self) -> None:
        """What was copied down is durable; OSError: it is not."""
        self._record()
        self._on_disk(self.folder.fence)
        self._unfenced, self._unfenced_bytes, self._last_fence = False, 0, time.monotonic()
        self.report.stalled = ""
        self.report.fences += 1

    def flush(self, seconds: float | None) -> bool:
        """Copy down all that is worth it, and make it durable; whether that was done."""
        if self.report.broken:
            return False
        self._until = None if seconds is None else time.monotonic() + seconds
        try:
            self._erase()
            worth = copied = 1
            while copied and (self._until is None or time.monotonic() < self._until):
                worth, copied = self._copy_down()
            self.fence()
            return not worth
        except (OSError, StateError):  # the report says why
            return False
        finally:
            self._until = None

    def begin_forget(self) -> None:
        """On the caller's thread: slots that are freed from now on are to be overwritten."""
        self._erasing.begin()

    def end_forget(self) -> None:
        """They are, and their blocks leave the log. OSError: not yet."""
        try:
            self._take()
        finally:
            self._erasing.end()
        self._erase()

    def lose(self, group: int, slots: list[int]) -> None:
        """The scrubber has found bad pages: those that still are, here where nothing is written meanwhile."""
        bad = self.folder.tier.verify(group, slots)
        lost = [slot for slot, why in bad.items() if not isinstance(why, NoVerdict)]
        if lost:
            self.report.scrubbed_bad += len(lost)
            self._tell(self.cache.lose(group, lost, tier=self._slow))

    def compact(self) -> None:
        """The log gets shorter. On a thread of its own."""
        try:
            self.folder.manifest.compact()
            self.report.compactions += 1
        except DamagedLog as damaged:
            self._break(damaged)
        except OSError as wrong:  # the old log is as good, and longer
            _log.debug("compacting %s: %s", self.folder.folder, reason(wrong))
        except BaseException as error:
            self.on_error(error)

    def end(self) -> None:
        """Let go of the folder; nothing comes after that."""
        if self._compactor is not None:
            self._compactor.join()
        self._mover.close()
        try:
            self.folder.close(fence=not self._shut)
            if self._shut:
                fact = f"it was used no more: {self.report.broken}"
                raise StateError(say(f"folder {str(self.folder.folder)!r}", fact, "tell us what was logged"))
        except StateError as wrong:
            self.ended_with = wrong

    def _on_disk(self, act: Callable[[], T]) -> T:
        """Do it; after one failure nothing is written any more, so that records and slots go on to agree."""
        if self.report.broken:
            raise OSError(errno.EIO, f"the disk has failed before: {self.report.broken}")
        try:
            return act()
        except TimeoutError:  # it may come round, and nothing was lost
            raise
        except FullDisk as full:  # nor here
            self._stall(full)
            raise
        except OSError as wrong:
            self._break(wrong)
            raise

    def _stall(self, wrong: OSError) -> None:
        if not self.report.stalled:
            _log.warning("nothing is copied down to %s for now: %s", self.folder.folder, reason(wrong))
        self.report.stalled = reason(wrong)

    def _break(self, wrong: OSError) -> None:
        self.report.broken = self.report.broken or reason(wrong)
        _log.error("nothing is copied down to %s any more: %s", self.folder.folder, self.report.broken)

    def _take(self) -> LastingChanges:
        """What has changed in the slow tier since the last time: it waits to be recorded."""
        changes = self.cache.lasting_changes()
        if len(changes.freed_slot) or len(changes.pages.slot) or len(changes.nodes.number):
            self._unrecorded.append(changes)
        self._erasing.freed(changes)
        return changes

    def _record(self) -> None:
        """What has changed in the slow tier goes into the manifest; until it is there no slot is written again."""
        self._take()
        while self._unrecorded:
            if self.report.broken:
                raise OSError(errno.EIO, f"the disk has failed before: {self.report.broken}")
            try:
                self.report.left_out += len(self.folder.record(self._unrecorded[0]).slot)
            except DamagedLog as damaged:
                self._break(damaged)
                raise
            except OSError as wrong:
                self._stall(wrong)
                raise
            self._unrecorded.popleft()
            self._unfenced, self.report.stalled = True, ""

    def _erase(self) -> None:
        """Slots of forgotten pages are overwritten and their blocks leave the log, before anything else is written."""
        self._overwrite(self._erasing.erase_stray)
        if not self._erasing.forgotten:
            return
        unrecorded: FullDisk | None = None
        try:
            self._record()
            self._on_disk(self.folder.before_writing)
        except FullDisk as full:
            unrecorded = full
            self._clear()
        self._overwrite(self._erasing.erase_forgotten)
        if unrecorded is None:
            self._fence_and_compact()
        else:
            self._on_disk(self.folder.tier.sync)
            if any(len(changes.nodes.number) for changes in self._unrecorded):  # their tokens will be in the log
                raise unrecorded
        self._erasing.forgotten.clear()

    def _overwrite(self, act: Callable[[DiskTier | RankedTier], None]) -> None:
        try:
            act(self.folder.tier)
        except OSError as wrong:
            self._stall(wrong)
            raise

    def _fence_and_compact(self) -> None:
        try:
            self.fence()
            self.folder.manifest.compact()
            self.report.compactions += 1
        except DamagedLog as damaged:
            self._break(damaged)
            raise
        except OSError as wrong:
            if self.report.broken or isinstance(wrong, TimeoutError):
                raise
            self._clear()

    def _clear(self) -> None:
        """What was forgotten leaves the log without a byte more."""
        pages = self._erasing.pages()
        self._on_disk(lambda: self.folder.manifest.clear(pages))

    def _tell(self, finished: Finished) -> None:
        if (finished.setbacks or finished.plan) and self.on_setbacks is not None:
            self.on_setbacks(finished)
