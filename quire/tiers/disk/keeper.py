"""DiskKeeper: makes a cache's slow tier last. Owns the thread that copies pages down, brings them up, and writes down
what lies where; the order of these; fences; and the way back after a restart. Decides nothing: the cache does.

    a plan down   freed slots recorded ── and on disk ── bytes written ── cache told ── pages recorded ── fence
    a plan up     bytes read and verified ── cache told

Everything happens on the keeper's own thread, so no step of an engine waits for a disk. When the disk fails, copying
down ends and is reported; what is durable stays what it is, and the cache goes on without.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from threading import Condition, Thread
from typing import TypeVar

import numpy as np

from quire.core.admission.prefetch import Prefetch
from quire.core.cache import Cache
from quire.core.life.setbacks import Finished
from quire.core.records.errors import StateError, say
from quire.core.records.identity import Scope
from quire.core.records.lasting import LastingChanges, LastingPages
from quire.core.records.plan import MoveColumn, Plan
from quire.core.records.request import Request
from quire.core.state.claim import Refusal
from quire.tiers.base import PageLayout, Tier, TierError
from quire.tiers.disk.files import FullDisk, reason
from quire.tiers.disk.fit import check_fit, mover_for
from quire.tiers.disk.folder import DiskFolder
from quire.tiers.disk.log.manifest import EMPTY
from quire.tiers.disk.pace import KeeperPace, KeeperReport
from quire.tiers.disk.scrub import Scrubber
from quire.tiers.disk.slots import Failed

QUIET_SECONDS = 1.0  # between looks, at most, when there was nothing to do
AGAIN_SECONDS = 5.0  # until a disk that took nothing is tried again
T = TypeVar("T")
OnSetbacks = Callable[[Finished], None]


class DiskKeeper:
    """Keeps what a cache has in its slow tier in a folder, and what the folder has in the cache.

    `tiers` are those above the disk, in order, for a second user beside the engine's mover; none where ranks have the
    pages. `on_setbacks` hears, on the keeper's thread, when a bad page changes what somebody was promised; a plan in it
    is to be run as one of a step.
    """

    def __init__(
        self, cache: Cache, folder: DiskFolder, tiers: Sequence[Tier], layouts: Sequence[PageLayout], *,
        pace: KeeperPace | None = None, on_setbacks: OnSetbacks | None = None,
    ) -> None:  # fmt: skip
        self._cache, self._folder, self._pace = cache, folder, pace or KeeperPace()
        self._on_setbacks = on_setbacks
        self._slow = len(cache.config.tiers) - 1
        check_fit(cache, folder, tiers)
        self._report = KeeperReport(restored=cache.restore(folder.contents.nodes, folder.contents.pages))
        folder.contents = EMPTY  # the cache has it now
        self._page_bytes = np.array(folder.tier.info().page_bytes)
        self._most_pages = max(1, self._pace.copy_bytes // int(self._page_bytes.max()))  # of each group, in one plan
        self._mover = mover_for(cache, folder, tiers, layouts)
        self._changed = Condition()  # guards the two below
        self._asks: deque[Callable[[], None]] = deque()
        self._closing = False
        self._num_run = self._num_held = 0
        self._holding = False
        self._unfenced_bytes = 0
        self._unfenced = False
        self._unrecorded: deque[LastingChanges] = deque()
        self._first_of = folder.tier.info().first_of
        self._forgotten: set[tuple[int, int]] = set()  # first group of the pool, slot: to be overwritten
        self._copy_from = 0.0
        self._pause = self._pace.look_seconds
        self._next_look = time.monotonic() + self._pause
        self._last_fence = time.monotonic()
        self._compactor: Thread | None = None
        rate = self._pace.scrub_bytes_per_second
        self._scrubber = Scrubber(folder.tier, self._lose, bytes_per_second=rate).start() if rate else None
        self._thread = Thread(target=self._work, name="quire-keeper", daemon=True)
        self._thread.start()

    def prefetch(self, request: Request, deadline: float | None = None) -> Prefetch | Refusal:
        """As `cache.prefetch`, and its plan is run; nothing here waits for the disk."""
        got = self._cache.prefetch(request, deadline)
        if isinstance(got, Prefetch) and len(got.plan):
            self.run(got.plan)
        return got

    def run(self, plan: Plan) -> Future[list[int]]:
        """Run a background plan of the cache in its turn, and finish it; the failed moves."""
        return self._ask(lambda: self._run(plan))

    def idle(self, timeout: float | None = None) -> None:
        """Wait until all that was asked before is done."""
        self._ask(lambda: None).result(timeout)

    def fence(self, timeout: float | None = None) -> None:
        """Everything that has been copied down is durable when this returns; OSError: it is not."""
        self._ask(self._fence_now).result(timeout)

    def flush(self, seconds: float | None = None) -> bool:
        """Copy down all that is worth it, and make it durable; False when some of it could not be, or not in time."""
        return self._ask(lambda: self._flush(seconds)).result()

    def forget(self, scope: Scope) -> int:
        """As `cache.forget`; when it returns nothing of it is in the manifest, and its pages are overwritten: in place
        where the disk has no room for more.

        OSError: it is out of the cache, and the rest follows before anything else is written.
        """
        return self._ask(lambda: self._forget(scope)).result()

    def report(self) -> KeeperReport:
        """What it has done so far."""
        groups = range(len(self._cache.config.groups))
        memory = sum(self._cache.usage(self._slow, group).index_bytes for group in groups)
        memory += self._folder.tier.index_bytes + self._folder.manifest.known.index_bytes
        return replace(self._report, index_bytes=memory)

    def close(self, flush_seconds: float = 5.0) -> None:
        """Copy down what can be in so long, make it durable, end the threads, close the folder; again: nothing."""
        with self._changed:
            first, self._closing = not self._closing, True
            if first:
                self._asks.append(lambda: self._last_round(flush_seconds))
            self._changed.notify_all()
        if not first:
            return
        if self._scrubber is not None:
            self._scrubber.close()
        end = time.monotonic() + flush_seconds + self._pace.close_seconds
        for thread in (self._thread, self._compactor):
            if thread is not None:
                thread.join(max(0.0, end - time.monotonic()))
                if thread.is_alive():
                    fact = "the disk does not answer; what came since the last fence may be lost"
                    raise StateError(say(f"closing {str(self._folder.folder)!r}", fact, "look at the disk"))
        self._mover.close()
        self._folder.close()

    @property
    def hold_mark(self) -> int | None:
        """None while it holds pages to copy them down; else a number: it held none between two equal ones."""
        return None if self._holding else self._num_held

    @property
    def hanging(self) -> bool:
        """Whether it was closed and its thread still waits for the disk: it may touch pages yet."""
        return self._closing and self._thread.is_alive()

    def __enter__(self) -> DiskKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- on the keeper's thread --------------------------------------------------------------------------------------

    def _ask(self, act: Callable[[], T]) -> Future[T]:
        """Have it done on the keeper's thread."""
        future: Future[T] = Future()

        def answer() -> None:
            try:
                future.set_result(act())
            except BaseException as error:
                future.set_exception(error)

        with self._changed:
            if self._closing:
                raise StateError(say("a keeper of pages on disk", "it is closed", "open the folder again"))
            self._asks.append(answer)
            self._changed.notify_all()
        return future

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._asks or self._closing, max(0.0, self._next_look - time.monotonic())
                )
                asks, self._asks = self._asks, deque()
                closing = self._closing
            for act in asks:
                act()
            if closing and not self._asks:
                return
            if not self._report.broken and time.monotonic() >= self._next_look:
                with suppress(OSError, StateError):  # the report says so; or it is being closed
                    self._round()

    def _on_disk(self, act: Callable[[], T]) -> T:
        """Do it; after one failure nothing is written any more, so that records and slots go on to agree."""
        if self._report.broken:
            raise OSError(errno.EIO, f"the disk has failed before: {self._report.broken}")
        try:
            return act()
        except TimeoutError:  # it may come round, and nothing was lost
            raise
        except FullDisk as full:  # nor here
            self._report.stalled = reason(full)
            raise
        except OSError as wrong:
            self._report.broken = reason(wrong)
            raise

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
            self._fence_now()
        if self._unfenced:
            self._next_look = min(self._next_look, self._last_fence + self._pace.fence_seconds)
        grown, size = self._folder.manifest.grown, self._folder.manifest.size
        busy = self._compactor is not None and self._compactor.is_alive()
        if grown >= self._pace.compact_bytes and 2 * grown >= size and not busy:
            self._compactor = Thread(target=self._compact, name="quire-compact", daemon=True)
            self._compactor.start()

    def _last_round(self, flush_seconds: float) -> None:
        with suppress(OSError, StateError):
            self._flush(flush_seconds)

    def _record(self) -> LastingChanges:
        """What has changed in the slow tier goes into the manifest; until it is there no slot is written again."""
        changes = self._cache.lasting_changes()
        if len(changes.freed_slot) or len(changes.pages.slot) or len(changes.nodes.number):
            self._unrecorded.append(changes)
        while self._unrecorded:
            try:
                self._report.left_out += len(self._folder.record(self._unrecorded[0]).slot)
            except OSError as wrong:
                self._report.stalled = reason(wrong)
                raise
            self._unrecorded.popleft()
            self._unfenced, self._report.stalled = True, ""
        return changes

    def _copy_down(self) -> tuple[int, int]:
        """Some pages that have no copy on disk yet: how many there were, and how many of them have one now."""
        self._holding = True
        try:
            plan = self._cache.copy_down(self._most_pages)
            return len(plan), len(plan) - len(self._run(plan)) if len(plan) else 0
        finally:
            self._holding = False

    def _run(self, plan: Plan) -> list[int]:
        """Run it after the step that it waits for, and tell the cache; the failed moves."""
        down = plan.moves[:, MoveColumn.DST_TIER] == self._slow
        failed = list(range(len(plan)))
        try:
            if down.any():
                self._record()
                self._erase()
                self._on_disk(self._folder.before_writing)
            self._wait_for_step(plan)
            self._num_run += 1  # the mover wants plans by number, and those in the background come as they come
            failed = self._mover.run(Plan(self._num_run, plan.moves))
        finally:
            finished = self._cache.finish(plan, failed)
            self._num_held += 1
        self._mover.settle(self._num_run)
        self._tell(finished)
        good = np.ones(len(plan), bool)
        good[failed] = False
        self._report.copied_down += int(np.count_nonzero(good & down))
        self._report.brought_up += int(np.count_nonzero(good & ~down))
        self._report.failed += len(failed)
        self._unfenced_bytes += int(self._page_bytes[plan.moves[good & down, MoveColumn.GROUP]].sum())
        if down.any():
            self._record()
        return failed

    def _wait_for_step(self, plan: Plan) -> None:
        """Until the step's plan that it comes after is finished: before that, what it reads may not be there."""
        while any(not other.background and other.number <= plan.after for other in self._cache.open_plans()):
            with self._changed:
                if self._closing:
                    fact = f"plan {plan.after}, which it comes after, is not finished"
                    raise StateError(say(f"background plan {plan.number}", fact, "finish plans before closing"))
                self._changed.wait(0.001)

    def _fence_now(self) -> None:
        self._record()
        self._on_disk(self._folder.fence)
        self._unfenced, self._unfenced_bytes, self._last_fence = False, 0, time.monotonic()
        self._report.stalled = ""
        self._report.fences += 1

    def _flush(self, seconds: float | None) -> bool:
        end = None if seconds is None else time.monotonic() + seconds
        self._erase()
        worth = copied = 1
        while copied and (end is None or time.monotonic() < end):
            worth, copied = self._copy_down()
        self._fence_now()
        return not worth

    def _forget(self, scope: Scope) -> int:
        with suppress(OSError):  # what cannot be recorded now is so before what is forgotten
            self._record()
        pages = self._cache.forget(scope)
        changes = self._cache.lasting_changes()
        self._unrecorded.append(changes)
        pages_now = changes.pages
        freed = zip(changes.freed_group.tolist(), changes.freed_slot.tolist(), strict=True)
        stored = zip(pages_now.group.tolist(), pages_now.slot.tolist(), strict=True)
        gone, here = ({(self._first_of[group], slot) for group, slot in some} for some in (freed, stored))
        self._forgotten |= gone - here  # what is there by now may be another group's
        try:
            self._erase()
        except OSError as wrong:
            fact = f"it is out of the cache, and not yet off the disk: {reason(wrong)}"
            cure = "make room or look at the disk; it is erased before anything else is written"
            raise OSError(wrong.errno or errno.EIO, say("forgetting a scope", fact, cure)) from wrong
        return pages

    def _erase(self) -> None:
        """Slots of forgotten pages are overwritten and their blocks leave the log, before anything else is written."""
        if not self._forgotten:
            return
        unrecorded: FullDisk | None = None
        try:
            self._record()
            self._on_disk(self._folder.before_writing)
        except FullDisk as full:
            unrecorded = full
            self._clear()
        for group in {group for group, _ in self._forgotten}:
            try:
                self._folder.tier.erase(group, sorted(slot for where, slot in self._forgotten if where == group))
            except TierError as bad:
                raise OSError(errno.EIO, str(bad)) from bad
        if unrecorded is None:
            self._fence_and_compact()
        else:
            self._on_disk(self._folder.tier.sync)
            if any(len(changes.nodes.number) for changes in self._unrecorded):  # their tokens will be in the log
                raise unrecorded
        self._forgotten.clear()

    def _fence_and_compact(self) -> None:
        try:
            self._fence_now()
            self._folder.manifest.compact()
            self._report.compactions += 1
        except OSError as wrong:
            if self._report.broken or isinstance(wrong, TimeoutError):
                raise
            self._clear()

    def _clear(self) -> None:
        """What was forgotten leaves the log without a byte more."""
        group, slot = np.array(sorted(self._forgotten), np.int32).T
        self._on_disk(lambda: self._folder.manifest.clear(LastingPages(group, slot, np.empty(0, np.int64))))

    def _compact(self) -> None:
        with suppress(OSError):  # the old log is as good, and longer
            self._folder.manifest.compact()
            self._report.compactions += 1

    def _lose(self, group: int, failed: Failed) -> None:
        """The scrubber has found bad pages."""
        self._report.scrubbed_bad += len(failed)
        self._tell(self._cache.lose(group, list(failed), tier=self._slow))

    def _tell(self, finished: Finished) -> None:
        if (finished.setbacks or finished.plan) and self._on_setbacks is not None:
            self._on_setbacks(finished)
