"""WorkerSide: runs a step's orders on one rank and reports. A copy that cannot be made is reported, never raised.

vLLM takes a failed load from us as a request to compute; an exception here would end its worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from quire.integrations.vllm.common.worker_orders import Copy, StepOrders, WorkerReport
from quire.integrations.vllm.worker.host_pages import Ended

log = logging.getLogger(__name__)


class PageMover(Protocol):
    """Who copies the bytes: at once, or in the background."""

    def load(self, copy: Copy) -> None:
        """Begin to copy our slots into vLLM's blocks."""
        ...

    def store(self, copy: Copy) -> None:
        """Begin to copy vLLM's blocks into our slots; vLLM writes them again only after `flush`."""
        ...

    def flush(self, jobs: Iterable[int]) -> None:
        """Wait until these stores do not read vLLM's blocks any more."""
        ...

    def take_ended(self) -> list[Ended]:
        """Copies that have ended since the last call."""
        ...


class ReceivedLoads(NamedTuple):
    """Requests whose load has ended on this rank; those that failed are in both."""

    ended: set[str]
    failed: set[str]


class WorkerSide:
    """One per rank; every hook runs in the worker's thread, once per step."""

    def __init__(self, mover: PageMover) -> None:
        self.mover = mover
        self._ended: list[Ended] = []  # without the mover: they failed when they began
        self._refused: set[str] = set()
        self._spoilt: set[int] = set()  # stores whose blocks may have been written again before they were copied
        self._report = WorkerReport()
        self._counted: dict[str, float] = {}

    def flush(self, orders: StepOrders) -> None:
        """Before a step writes its blocks: stores of steps before begin, and those that read some must have ended."""
        for copy in orders.early:
            self._begin(copy, is_load=False)
        if not orders.flush:
            return
        try:
            self.mover.flush(orders.flush)
        except Exception:
            log.exception("stores that should have ended are given up")
            self._spoilt.update(orders.flush)

    def start_loads(self, orders: StepOrders) -> None:
        """Begin the loads of this step."""
        self._refused.update(orders.refused)
        for copy in orders.loads:
            self._begin(copy, is_load=True)

    def run_stores(self, orders: StepOrders) -> None:
        """Store what this step has computed."""
        for copy in orders.stores:
            self._begin(copy, is_load=False)

    def _begin(self, copy: Copy, *, is_load: bool) -> None:
        try:
            (self.mover.load if is_load else self.mover.store)(copy)
        except Exception:  # whatever it is: a page that cannot be had costs a recompute
            log.exception("a %s of request %s failed", "load" if is_load else "store", copy.request_id)
            self._ended.append(Ended(copy, is_load, copy.pages()))

    def received(self) -> ReceivedLoads:
        """What vLLM must know of loads; `report` has the rest."""
        got = ReceivedLoads(set(self._refused), set(self._refused))
        self._refused.clear()
        ended, self._ended = self._ended, []
        for one in ended + self._take_ended():
            self._report.ended[one.copy.job] = 1
            if one.copy.job in self._spoilt:
                self._spoilt.discard(one.copy.job)
                one.bad = one.copy.pages()
            if one.bad:
                self._report.bad[one.copy.job] = one.bad
            self._count(one)
            if one.is_load:
                got.ended.add(one.copy.request_id)
                if one.bad:
                    got.failed.add(one.copy.request_id)
        return got

    def _take_ended(self) -> list[Ended]:
        try:
            return self.mover.take_ended()
        except Exception:  # it is asked again in the next step
            log.exception("the copies that have ended could not be asked for")
            return []

    def _count(self, one: Ended) -> None:
        word = "load" if one.is_load else "store"
        for name, number in ((f"{word}_bytes", one.num_bytes), (f"{word}_seconds", one.seconds)):
            self._counted[name] = self._counted.get(name, 0) + number

    def report(self) -> WorkerReport | None:
        """Jobs that have ended since the last call, for the scheduler's side."""
        report, self._report = self._report, WorkerReport()
        return report if report.ended else None

    def take_counts(self) -> dict[str, dict[str, float]]:
        """What was copied since the last call."""
        counted, self._counted = self._counted, {}
        return {"counters": counted} if counted else {}
