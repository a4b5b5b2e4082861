"""PlayedCache: a cache on which an incident is played, and what its calls have returned, by the numbers of then.

It is recorded while it plays, as the first one was.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from quire.core.cache import Cache
from quire.core.colder_tiers import registry_of
from quire.core.records.config import CacheConfig
from quire.core.records.errors import ConfigWarning
from quire.core.records.plan import Plan
from quire.core.records.request import Request
from quire.core.state.prepared import Prepared
from quire.core.state.registry import LaunchedStep
from quire.core.state.sequence import Sequence
from quire.core.store import StoreName
from quire.incidents.files.incident_file import Plain
from quire.incidents.play.given import request_of
from quire.incidents.record.entry import Entry
from quire.incidents.record.read_clock import ReadClock
from quire.incidents.record.recorded_calls import RecordedCalls


class PlayedClock:
    """Says what the first cache's clock said."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.last = 0.0
        self.is_short = False  # it was read more often than the first one

    def __call__(self) -> float:
        if self.times:
            self.last = self.times.pop(0)
        else:
            self.is_short = True
        return self.last


class PlayedCache:
    """The cache, its clock, and who is in which row."""

    def __init__(self, config: CacheConfig, store: StoreName) -> None:
        self.clock = PlayedClock()
        reading = ReadClock(self.clock, lambda: self.clock.last)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigWarning)
            self.cache = Cache(config, clock=reading, store=store)
        self.registry = registry_of(self.cache)
        self.noted: list[Entry] = []
        self.calls = RecordedCalls(self.cache, reading, self.noted.append, self._fail)
        self.requests: dict[int, Request | Prepared] = {}
        self.rows: dict[int, Sequence] = {}
        self.handles: dict[int, Any] = {}  # claims, finds, writers, prefetches and holds, by number
        self.plans: dict[int, Plan] = {}
        self.raised: BaseException | None = None

    def _fail(self, verb: str, wrong: BaseException) -> None:
        self.raised = wrong

    def asked(self, asked: Plain) -> Request | Prepared:
        """A request by its number."""
        number, prepared, junction, fresh = asked
        if fresh is not None:
            self.requests[number] = request_of(fresh)
        request = self.requests[number]
        if prepared:
            plain = request.request if isinstance(request, Prepared) else request
            made = self.cache.prepare(plain, keys=False)
            made.part_at(junction)
            return made
        return request.request if isinstance(request, Prepared) else request

    def sequences(self, rows: Any) -> Any:
        """What a call named them by."""
        if isinstance(rows, int):
            return self.rows[rows]
        if rows and rows[0] == "rows":
            return np.array(rows[1:], np.int32)
        return [self.rows[row] for row in rows]

    def seat(self, sequences: list[Sequence]) -> None:
        """They have rows from now on."""
        for sequence in sequences:
            self.rows[sequence.row] = sequence

    def note(self, plan: Plan | None) -> Plan | None:
        """A plan is to be finished later."""
        if plan is not None and len(plan):
            self.plans[plan.number] = plan
        return plan

    def unseat_lost(self) -> None:
        """Sequences that were lost are gone."""
        self.rows = {row: sequence for row, sequence in self.rows.items() if sequence.live}

    def keep_handle(self, answer: Any) -> Any:
        """A handle is kept until it is closed, or lost as it was then."""
        if hasattr(answer, "_open"):
            self.handles[self.calls.number(answer)] = answer
            self.note(getattr(answer, "plan", None))
        return answer

    def step_in_flight(self, number: int) -> LaunchedStep:
        """A launched step by its number."""
        return {step.number: step for step in self.cache.open_steps()}[number]
