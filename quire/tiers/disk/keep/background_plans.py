"""BackgroundPlans: runs the cache's plans between the disk and the tiers above it. Owns the order of records and bytes
in one plan, and what a caller may ask about pages that are held meanwhile.

    a plan down   freed slots recorded ── and on disk ── bytes written ── plan finished ── pages recorded ── fence
    a plan up     bytes read and verified ── plan finished
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

import numpy as np
from numpy.typing import NDArray

from quire.core.cache import Cache
from quire.core.records.errors import StateError, say
from quire.core.records.plan import MoveColumn, Plan
from quire.core.sequences.setbacks import Finished
from quire.tiers.disk.keep.disk_health import DiskHealth
from quire.tiers.disk.keep.eraser import Eraser
from quire.tiers.disk.keep.journal import Journal
from quire.tiers.disk.keep.slots_to_erase import SlotsToErase
from quire.tiers.disk.pages.slots import Failed, NoVerdict, Unanswered
from quire.tiers.disk.ranks.ranked_tier import RanksMover
from quire.tiers.mover import Mover

OnSetbacks = Callable[[Finished], None]


class BackgroundPlans:
    """All of it is called on the keeper's thread; `holding` and `num_held` are read on any."""

    def __init__(
        self, cache: Cache, mover: Mover | RanksMover, page_bytes: NDArray[np.int64], *,
        journal: Journal, eraser: Eraser, to_erase: SlotsToErase, health: DiskHealth,
    ) -> None:  # fmt: skip
        self._cache, self._mover, self._page_bytes = cache, mover, page_bytes
        self._journal, self._eraser, self._to_erase, self._health = journal, eraser, to_erase, health
        self._slow = len(cache.config.tiers) - 1
        self._num_run = 0
        self.on_setbacks: OnSetbacks | None = None
        self.closing = Event()  # no plan waits for a step any more
        self.holding, self.num_held = False, 0

    def copy_down(self, most_pages: int, until: float | None = None) -> tuple[int, int]:
        """Some pages that have no copy on disk yet: how many there were, and how many of them have one now."""
        self.holding = True
        try:
            plan = self._cache.copy_down(most_pages)
            return len(plan), len(plan) - len(self.run(plan, until)) if len(plan) else 0
        finally:
            self.holding = False

    def run(self, plan: Plan, until: float | None = None) -> list[int]:
        """Run a plan after the step that it waits for, and finish it; the moves that did not happen."""
        down = plan.moves[:, MoveColumn.DST_TIER] == self._slow
        reasons: Failed = dict.fromkeys(range(len(plan)), Unanswered("the disk is used no more"))
        try:
            if not self._health.shut:
                reasons = self._move(plan, bool(down.any()), until)
        finally:
            undone = [move for move, why in reasons.items() if isinstance(why, NoVerdict)]
            failed = [move for move in reasons if move not in set(undone)]
            finished = self._cache.finish(plan, failed, undone)
            self.num_held += 1
        self.report_setbacks(finished)
        good = np.ones(len(plan), bool)
        good[list(reasons)] = False
        self._count(good, down, reasons, len(failed))
        if down.any():
            self._record(plan.moves[good & down])
        return sorted(reasons)

    def report_setbacks(self, finished: Finished) -> None:
        """Pass on what a bad page changed."""
        if finished.setbacks and self.on_setbacks is not None:
            self.on_setbacks(finished)

    def close(self) -> None:
        """Nothing is moved any more."""
        self._mover.close()

    def _move(self, plan: Plan, down: bool, until: float | None) -> Failed:
        if down:
            self._journal.record()
            self._eraser.erase()
            self._journal.free_slots()
        self._wait_for_step(plan, until)
        self._num_run += 1  # the mover wants plans by number, and those in the background come as they come
        reasons = self._mover.reasons(Plan(self._num_run, plan.moves))
        self._mover.settle(self._num_run)
        return reasons

    def _wait_for_step(self, plan: Plan, until: float | None) -> None:
        """Until the step's plan that it comes after is finished: before that, what it reads may not be there."""
        while any(not other.background and other.number <= plan.after for other in self._cache.open_plans()):
            late = until is not None and time.monotonic() >= until
            if late or self.closing.is_set():
                fact = f"plan {plan.after}, which it comes after, is not finished"
                raise StateError(say(f"background plan {plan.number}", fact, "finish plans before closing"))
            self.closing.wait(0.001)

    def _count(self, good: NDArray[np.bool_], down: NDArray[np.bool_], reasons: Failed, num_failed: int) -> None:
        report = self._health.report
        report.copied_down += int(np.count_nonzero(good & down))
        report.brought_up += int(np.count_nonzero(good & ~down))
        report.failed += num_failed
        report.given_up += sum(isinstance(why, Unanswered) for why in reasons.values())

    def _record(self, moves: NDArray[np.int32]) -> None:
        """These moves were written."""
        group, slot = moves[:, MoveColumn.GROUP], moves[:, MoveColumn.DST_SLOT]
        self._journal.add_bytes(int(self._page_bytes[group].sum()))
        if not self._health.shut:
            self._to_erase.written(group, slot, self._journal.take())
            self._journal.record()
