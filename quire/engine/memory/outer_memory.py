"""Memory beyond the engine's own: a disk, a store that machines share. Owns which of them it has, and asks both for
pages of a waiting request. Reports when they have come. Knows no steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from quire.core.cache import Cache
from quire.core.records.plan import Plan
from quire.core.records.request import Request
from quire.engine.memory.connector import StepParticipant
from quire.engine.memory.disk_side import DiskConfig, DiskSide, disk_config
from quire.engine.memory.shared_side import SharedSide, shared_config
from quire.engine.model.layers import Model
from quire.engine.model.pages import Pages
from quire.engine.step.runs.branch_prefetch import BothPrefetches, BranchPrefetch
from quire.engine.step.runs.step_work import Work

if TYPE_CHECKING:
    from quire.tiers.shared import SharedConfig


REST = 0.01  # seconds: who holds pages to copy them does not say when he is done


class OuterMemory:
    """`shared` and `disk`: the sides of an engine that has them."""

    def __init__(
        self, engine: tuple[Model, Cache, Pages], shared: SharedConfig | str | Path | None,
        disk: DiskConfig | str | Path | None, carry: Callable[[Plan], None],
    ) -> None:  # fmt: skip
        self._news = Event()
        self.tell_news: Callable[[], None] = self._news.set  # who waits for pages may go on; called from any thread
        self.shared = None if shared is None else SharedSide(engine, carry, self._tell, shared_config(shared))
        try:
            self.disk = None if disk is None else DiskSide(*engine, disk_config(disk))
        except BaseException:
            if self.shared is not None:
                self.shared.close()
            raise

    def sides(self) -> list[StepParticipant]:
        """Those that there are, to be closed with the engine."""
        return [side for side in (self.shared, self.disk) if side is not None]

    def prefetch(self, request: Request, clock: Callable[[], float]) -> BranchPrefetch | None:
        """Begin to bring pages of a request, from wherever there are some."""
        disk = None if self.disk is None else self.disk.prefetch(request, clock)
        shared = None if self.shared is None else self.shared.prefetch(request)
        coming = shared if disk is None else disk if shared is None else BothPrefetches(disk, shared)
        if coming is not None:
            coming.when_done(self._tell)
        return coming

    def note_computed(self, works: Iterable[Work]) -> None:
        """A step has filled pages that cannot be found yet."""
        if self.shared is not None:
            self.shared.note_computed(works)

    def _tell(self) -> None:
        """Call the listener of now: a loop comes later than its engine."""
        self.tell_news()

    def rest(self, seconds: float = REST) -> None:
        """After a step that computed nothing: sleep until awaited pages have come, or so long.

        Steps that follow each other at once would take the processor from the threads that bring these pages.
        """
        self._news.wait(seconds)
        self._news.clear()

    @property
    def hold_mark(self) -> int | None:
        """None while pages are held to be copied; else a number: between two equal ones none were."""
        shared = 0 if self.shared is None else self.shared.shared.finds.mark
        disk = 0 if self.disk is None else self.disk.keeper.hold_mark
        return None if shared is None or disk is None else shared + disk
