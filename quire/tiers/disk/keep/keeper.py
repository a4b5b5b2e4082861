"""DiskKeeper: makes a cache's slow tier last. Owns its threads, what callers may ask of them and how long they wait;
and the way back after a restart. What is done, and in which order, is `upkeep.py`'s. Decides nothing: the cache does.

Everything happens on the keeper's own thread, so no step of an engine waits for a disk. A caller that asks for
something waits for that thread, and no longer than the disk answers (`DiskIO.deadline` for each call).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from quire.core.cache import Cache
from quire.core.outside.prefetch import Prefetch
from quire.core.records.errors import StateError, say
from quire.core.records.identity import Scope
from quire.core.records.plan import Plan
from quire.core.records.request import Request
from quire.core.state.claim import Refusal
from quire.tiers.base import PageLayout, Tier
from quire.tiers.disk.folder import DiskFolder
from quire.tiers.disk.keep.asks import AskedThread
from quire.tiers.disk.keep.background_plans import OnSetbacks
from quire.tiers.disk.keep.fit import check_fit, mover_for
from quire.tiers.disk.keep.pace import KeeperPace, KeeperReport
from quire.tiers.disk.keep.scrub import Scrubber
from quire.tiers.disk.keep.upkeep import Upkeep
from quire.tiers.disk.log.manifest import EMPTY
from quire.tiers.disk.pages.slots import Failed
from quire.tiers.process import reason

T = TypeVar("T")


class DiskKeeper:
    """Keeps what a cache has in its slow tier in a folder, and what the folder has in the cache.

    `tiers` are those above the disk, in order, for a second user beside the engine's mover; none where ranks have the
    pages. `on_setbacks` hears, on the keeper's thread, when a bad page changes what a request was promised.
    """

    def __init__(
        self, cache: Cache, folder: DiskFolder, tiers: Sequence[Tier], layouts: Sequence[PageLayout], *,
        pace: KeeperPace | None = None, on_setbacks: OnSetbacks | None = None,
    ) -> None:  # fmt: skip
        self._cache, self._folder, self._pace = cache, folder, pace or KeeperPace()
        self._slow = len(cache.config.tiers) - 1
        check_fit(cache, folder, tiers)
        restored = cache.restore(folder.contents.nodes, folder.contents.pages)
        folder.contents = EMPTY  # the cache has it now
        self._upkeep = upkeep = Upkeep(cache, folder, mover_for(cache, folder, tiers, layouts), self._pace)
        upkeep.health.report.restored = restored
        upkeep.plans.on_setbacks = on_setbacks
        on_error = upkeep.health.on_error
        self._thread = AskedThread(
            "quire-keeper", folder.watch, between=upkeep.turn, ended=upkeep.end, on_error=on_error
        )
        rate = self._pace.scrub_bytes_per_second
        self._scrubber = Scrubber(folder.tier, self._found_bad, bytes_per_second=rate) if rate else None
        self._thread.start(time.monotonic() + self._pace.look_seconds)
        if self._scrubber is not None:
            self._scrubber.start(on_error)

    def prefetch(self, request: Request, deadline: float | None = None) -> Prefetch | Refusal:
        """As `cache.prefetch`, and its plan is run; nothing here waits for the disk."""
        got = self._cache.prefetch(request, deadline)
        if isinstance(got, Prefetch) and len(got.plan):
            self.run(got.plan)
        return got

    def run(self, plan: Plan) -> Future[list[int]]:
        """Run a background plan of the cache in its turn, and finish it; the moves that did not happen.

        While the disk does not answer, all of them at once: they are given up.
        """
        try:
            return self._thread.ask(lambda: self._upkeep.plans.run(plan))
        except TimeoutError:
            self._cache.finish(plan, (), range(len(plan)))
            given_up: Future[list[int]] = Future()
            given_up.set_result(list(range(len(plan))))
            return given_up

    def idle(self, timeout: float | None = None) -> None:
        """Wait until all that was asked before is done; TimeoutError: not in time, or the disk does not answer."""
        self._answer(lambda: None, timeout)

    def fence(self, timeout: float | None = None) -> None:
        """Everything that has been copied down is durable when this returns. OSError: it is not; TimeoutError: it may
        become so, when the disk answers."""
        self._answer(self._upkeep.journal.fence, timeout)

    def flush(self, seconds: float | None = None) -> bool:
        """Copy down all that is worth it, and make it durable; False when some of it could not be, or not in time.

        Pages are copied for so many seconds; what has been by then is made durable, for which it waits as long as the
        disk answers, and no longer than its deadline once more. `report()` says what is wrong.
        """
        patience = None if seconds is None else seconds + self._folder.watch.seconds
        try:
            return self._answer(lambda: self._upkeep.flush(seconds), patience)
        except TimeoutError:
            return False

    def forget(self, scope: Scope, timeout: float | None = None) -> int:
        """As `cache.forget`, at once; when it returns nothing of it is in the manifest, and its pages are overwritten:
        in place where the disk has no room for more.

        OSError: it is out of the cache, and the rest follows before anything else is written; TimeoutError likewise,
        when the disk does not answer or the time is over.
        """
        self._thread.check_open()
        self._upkeep.eraser.begin_forget()
        try:
            pages = self._cache.forget(scope)
        finally:
            done = self._thread.ask(self._upkeep.eraser.end_forget, anyway=True)
        try:
            self._thread.answer(done, timeout)
        except OSError as error:
            late = isinstance(error, TimeoutError)
            why = "the disk does not answer" if late else reason(error)
            fact = f"it is out of the cache, and not yet off the disk: {why}"
            cure = "make room or look at the disk; it is erased before anything else is written"
            kind, number = (TimeoutError, errno.ETIMEDOUT) if late else (OSError, error.errno or errno.EIO)
            raise kind(number, say("forgetting a scope", fact, cure)) from error
        return pages

    def report(self) -> KeeperReport:
        """What it has done so far."""
        groups = range(len(self._cache.config.groups))
        memory = sum(self._cache.usage(self._slow, group).index_bytes for group in groups)
        memory += self._folder.tier.index_bytes + self._folder.manifest.index_bytes
        return replace(self._upkeep.health.report, index_bytes=memory)

    def close(self, flush_seconds: float = 5.0) -> None:
        """Copy down for at most so long, make it durable, end the threads, close the folder; again: nothing.

        In a fork of the process that opened it: nothing either.
        """
        if not self._thread.is_ours or not self._thread.close(lambda: self._last_round(flush_seconds)):
            return
        end = time.monotonic() + flush_seconds + self._pace.close_seconds
        self._upkeep.plans.closing.set()
        if self._scrubber is not None:
            self._scrubber.close(end - time.monotonic())
        if not self._thread.join(end - time.monotonic()):
            fact = "the disk does not answer; what came since the last fence may be lost"
            raise StateError(say(f"closing {str(self._folder.folder)!r}", fact, "look at the disk"))
        if self._upkeep.close_error is not None:
            raise self._upkeep.close_error

    @property
    def hold_mark(self) -> int | None:
        """None while it holds pages to copy them down; else a number: it held none between two equal ones."""
        return None if self._upkeep.plans.holding else self._upkeep.plans.num_held

    @property
    def hanging(self) -> bool:
        """Whether it was closed and its thread still waits for the disk: it may touch pages yet."""
        return self._upkeep.plans.closing.is_set() and self._thread.alive

    @property
    def stopped(self) -> str:
        """Which of the threads that copy pages has ended; empty: none, or it is closed."""
        if not self._thread.alive:
            return "its thread has ended"
        workers = self._folder.tier.stopped
        return f"{workers} of its worker threads have ended" if workers else ""

    @property
    def scrubber(self) -> Scrubber | None:
        """What reads pages to find damage early, if anything does."""
        return self._scrubber

    def __enter__(self) -> DiskKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, act: Callable[[], T]) -> Future[T]:
        return self._thread.ask(act)

    def _answer(self, act: Callable[[], T], timeout: float | None) -> T:
        return self._thread.answer(self._thread.ask(act), timeout)

    def _last_round(self, flush_seconds: float) -> None:
        self._upkeep.flush(flush_seconds)

    def _found_bad(self, group: int, failed: Failed) -> None:
        """On the scrubber's thread."""
        with suppress(TimeoutError):
            self._thread.ask(lambda: self._upkeep.lose(group, list(failed)))
