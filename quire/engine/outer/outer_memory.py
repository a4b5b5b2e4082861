"""Memory beyond the engine's own: a disk, a store that machines share. Owns which of them it has, and asks both for
pages of a waiting request. Knows no steps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.cache import Cache
from quire.core.records.plan import Plan
from quire.core.records.request import Request
from quire.engine.model.layers import Model
from quire.engine.model.pages import Pages
from quire.engine.outer.connector import StepParticipant
from quire.engine.outer.disk_side import DiskConfig, DiskSide, disk_config
from quire.engine.outer.shared_side import SharedSide, shared_config
from quire.engine.step.prefetch import BothPrefetches, BranchPrefetch

if TYPE_CHECKING:
    from quire.tiers.shared import SharedConfig


class OuterMemory:
    """`shared` and `disk`: the sides of an engine that has them."""

    def __init__(
        self, engine: tuple[Model, Cache, Pages], shared: SharedConfig | str | Path | None,
        disk: DiskConfig | str | Path | None, carry: Callable[[Plan], None],
    ) -> None:  # fmt: skip
        self.shared = None if shared is None else SharedSide(*engine, carry, shared_config(shared))
        try:
            self.disk = None if disk is None else DiskSide(*engine, carry, disk_config(disk))
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
        return shared if disk is None else disk if shared is None else BothPrefetches(disk, shared)

    @property
    def hold_mark(self) -> int | None:
        """None while somebody holds pages to copy them; else a number: nobody did between two equal ones."""
        shared = 0 if self.shared is None else self.shared.shared.finds.mark
        disk = 0 if self.disk is None else self.disk.keeper.hold_mark
        return None if shared is None or disk is None else shared + disk
