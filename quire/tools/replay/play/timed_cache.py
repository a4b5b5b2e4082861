"""TimedCache: the cache's own calls with a stopwatch around each. Decides nothing, and leaves nothing out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from quire import Batch, Cache, Claims, Kind, Plan, Prepared, Probe, Request
from quire import Sequence as Live
from quire.tools.replay.setup.settings import ReplaySettings
from quire.tools.replay.units import Int32
from quire.tools.replay.workload.trace import Trace

P = ParamSpec("P")
R = TypeVar("R")
TIERS = 8  # a cache has no more


@dataclass(slots=True)
class Budgets:
    """What a step may compute; None: no limit."""

    token_budget: int | None  # prompt tokens of a step
    max_chunk: int | None  # of one prompt


class BytesMoved(NamedTuple):
    """Bytes by the colder tier of the two."""

    up: list[int]
    down: list[int]


class TimedCache:
    """A cache (`inner`) on a virtual clock. `ns` is the time spent inside it."""

    def __init__(self, trace: Trace, settings: ReplaySettings, clock: Callable[[], float]) -> None:
        self.config = settings.config(trace)
        self.inner = Cache(self.config, clock=clock)
        self.budgets = Budgets(settings.token_budget, settings.max_chunk)
        self._page_bytes = np.array([group.page_bytes for group in self.config.groups], np.int64)
        self.ns = 0
        self._up = [0] * len(self.config.tiers)  # bytes since take_moved, by the colder tier
        self._down = [0] * len(self.config.tiers)

    @contextmanager
    def in_parts(self) -> Iterator[None]:
        """Meanwhile prompts may be cut to the token budget."""
        budgets = self.budgets
        self.budgets = Budgets(budgets.token_budget, budgets.token_budget)
        try:
            yield
        finally:
            self.budgets = budgets

    def _timed(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        began = perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            self.ns += perf_counter_ns() - began

    def prepare(self, request: Request) -> Prepared:
        """As Cache.prepare."""
        return self._timed(self.inner.prepare, request)

    def probe(self, ready: list[Prepared]) -> list[Probe]:
        """As Cache.probe."""
        return self._timed(self.inner.probe, ready)

    def claim(self, ready: list[Prepared]) -> Claims:
        """As Cache.claim."""
        return self._timed(self.inner.claim, ready)

    def admit(self, claims: Claims, continuing: Sequence[Live]) -> Batch:
        """As Cache.admit, under the settings' budgets; its plan is carried out."""
        budget, chunk = self.budgets.token_budget, self.budgets.max_chunk
        batch = self._timed(self.inner.admit, claims, continuing=continuing, token_budget=budget, max_chunk=chunk)
        self._finish(batch.plan)
        return batch

    def add_one(self, ready: Prepared, max_chunk: int | None) -> Batch:
        """As Cache.add_sequence_batch of one request, without token budget; its plan is carried out."""
        batch = self._timed(self.inner.add_sequence_batch, [ready], max_chunk=max_chunk)
        self._finish(batch.plan)
        return batch

    def commit(self, sequences: Live | Sequence[Live] | Int32, computed: Int32 | int | None = None) -> None:
        """As Cache.commit."""
        self._timed(self.inner.commit, sequences, computed)

    def commit_states(self, rows: Int32, computed: Int32) -> None:
        """The same with states: tokens given a stride ahead have not run, so a state stands where it is told."""
        store = self.inner._setup.store
        for row, end in zip(rows.tolist(), computed.tolist(), strict=True):
            store.hand_out(row, end)
        self.commit(rows, computed)
        for row in rows.tolist():
            store.hand_out(row, int(store.length[row]))

    def grow(self, rows: Int32, tokens: Int32) -> bool:
        """As Cache.grow; its plan is carried out. False: no room."""
        plan = self._timed(self.inner.grow, rows, tokens)
        if plan is None:
            return False
        self._finish(plan)
        return True

    def release(self, sequence: Live) -> None:
        """As Cache.release."""
        self._timed(self.inner.release, sequence)

    def suspend(self, sequence: Live, computed: int) -> Request:
        """As Cache.suspend, after what has run was committed and what has not was trimmed."""
        if computed > sequence.computed:
            self._timed(self.inner.commit, sequence, computed)
        if sequence.computed >= sequence.prompt_end:
            self.inner._setup.store.hand_out(sequence.row, sequence.computed)  # what was given ahead has not run
        if sequence.computed >= sequence.prompt_end and sequence.length > computed:
            self._timed(self.inner.trim, sequence, sequence.length - computed)
        return self._timed(self.inner.suspend, sequence)

    def num_free(self, group: int) -> int:
        """As Cache.num_free."""
        return self._timed(self.inner.num_free, group)

    def _finish(self, plan: Plan) -> None:
        """Every move happens; bytes are counted."""
        if not len(plan):
            return
        moves = plan.moves
        ways = (moves[:, 0] * TIERS + moves[:, 2]) * TIERS + moves[:, 4]  # kind, tier from, tier to
        sizes = self._page_bytes[moves[:, 1]] if len(self._page_bytes) > 1 else None
        moved = np.bincount(ways, sizes)
        factor = 1 if len(self._page_bytes) > 1 else int(self._page_bytes[0])
        for way in moved.nonzero()[0].tolist():
            (kind, source), target = divmod(way // TIERS, TIERS), way % TIERS
            count = int(moved[way]) * factor
            if source > target or kind == Kind.EXCHANGE:  # a state's snapshot is copied up from wherever it is
                self._up[max(source, target)] += count
            if source < target or kind == Kind.EXCHANGE:
                self._down[max(source, target)] += count
        self._timed(self.inner.finish, plan)

    def take_moved(self) -> BytesMoved:
        """Bytes up and down by tier since the last call."""
        moved = BytesMoved(self._up, self._down)
        self._up, self._down = [0] * len(self._up), [0] * len(self._down)
        return moved
