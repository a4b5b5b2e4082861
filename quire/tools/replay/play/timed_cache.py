"""Door: the cache's own calls with a stopwatch around each. Decides nothing, and leaves nothing out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import ParamSpec, TypeVar

import numpy as np

from quire import Batch, Cache, Claims, Kind, Plan, Prepared, Probe, Request
from quire import Sequence as Live
from quire.tools.replay.settings import Settings
from quire.tools.replay.units import Int32
from quire.tools.replay.workload.trace import Trace

P = ParamSpec("P")
R = TypeVar("R")
TIERS = 8  # a cache has no more


class Door:
    """A cache on a virtual clock. `ns` is the time spent inside it, `up` and `down` the bytes its plans moved."""

    def __init__(self, trace: Trace, settings: Settings, clock: Callable[[], float]) -> None:
        self.config = settings.config(trace)
        self.cache = Cache(self.config, clock=clock)
        self.budgets: dict[str, int | None] = {
            "token_budget": settings.token_budget,
            "max_chunk": settings.max_chunk,
        }
        self.page_bytes = np.array([group.page_bytes for group in self.config.groups], np.int64)
        self.ns = 0
        self.up = [0] * len(self.config.tiers)  # since take_moved, by the colder tier
        self.down = [0] * len(self.config.tiers)

    @contextmanager
    def in_parts(self) -> Iterator[None]:
        """Meanwhile prompts may be cut to the token budget."""
        whole = self.budgets["max_chunk"]
        self.budgets["max_chunk"] = self.budgets["token_budget"]
        try:
            yield
        finally:
            self.budgets["max_chunk"] = whole

    def _timed(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        began = perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            self.ns += perf_counter_ns() - began

    def prepare(self, request: Request) -> Prepared:
        """As Cache.prepare."""
        return self._timed(self.cache.prepare, request)

    def probe(self, ready: list[Prepared]) -> list[Probe]:
        """As Cache.probe."""
        return self._timed(self.cache.probe, ready)

    def claim(self, ready: list[Prepared]) -> Claims:
        """As Cache.claim."""
        return self._timed(self.cache.claim, ready)

    def admit(self, claims: Claims, continuing: Sequence[Live]) -> Batch:
        """As Cache.admit, under the settings' budgets; its plan is carried out."""
        batch = self._timed(self.cache.admit, claims, continuing=continuing, **self.budgets)  # type: ignore[arg-type]
        self.finish(batch.plan)
        return batch

    def add_one(self, ready: Prepared, max_chunk: int | None) -> Batch:
        """As Cache.add_sequence_batch of one request, without token budget; its plan is carried out."""
        batch = self._timed(self.cache.add_sequence_batch, [ready], max_chunk=max_chunk)
        self.finish(batch.plan)
        return batch

    def commit(self, sequences: Live | Sequence[Live] | Int32, computed: Int32 | int | None = None) -> None:
        """As Cache.commit."""
        self._timed(self.cache.commit, sequences, computed)

    def commit_states(self, rows: Int32, computed: Int32) -> None:
        """The same with states: tokens given a stride ahead have not run, so a state stands where it is told."""
        store = self.cache._setup.store
        for row, end in zip(rows.tolist(), computed.tolist(), strict=True):
            store.hand_out(row, end)
        self.commit(rows, computed)
        for row in rows.tolist():
            store.hand_out(row, int(store.length[row]))

    def grow(self, rows: Int32, tokens: Int32) -> bool:
        """As Cache.grow; its plan is carried out. False: no room."""
        plan = self._timed(self.cache.grow, rows, tokens)
        if plan is None:
            return False
        self.finish(plan)
        return True

    def release(self, sequence: Live) -> None:
        """As Cache.release."""
        self._timed(self.cache.release, sequence)

    def suspend(self, sequence: Live, computed: int) -> Request:
        """As Cache.suspend, after what has run was committed and what has not was trimmed."""
        if computed > sequence.computed:
            self._timed(self.cache.commit, sequence, computed)
        if sequence.computed >= sequence.prompt_end:
            self.cache._setup.store.hand_out(sequence.row, sequence.computed)  # what was given ahead has not run
        if sequence.computed >= sequence.prompt_end and sequence.length > computed:
            self._timed(self.cache.trim, sequence, sequence.length - computed)
        return self._timed(self.cache.suspend, sequence)

    def num_free(self, group: int) -> int:
        """As Cache.num_free."""
        return self._timed(self.cache.num_free, group)

    def finish(self, plan: Plan) -> None:
        """Every move happens; bytes are counted."""
        if not len(plan):
            return
        moves = plan.moves
        ways = (moves[:, 0] * TIERS + moves[:, 2]) * TIERS + moves[:, 4]  # kind, tier from, tier to
        sizes = self.page_bytes[moves[:, 1]] if len(self.page_bytes) > 1 else None
        moved = np.bincount(ways, sizes)
        factor = 1 if len(self.page_bytes) > 1 else int(self.page_bytes[0])
        for way in moved.nonzero()[0].tolist():
            (kind, source), target = divmod(way // TIERS, TIERS), way % TIERS
            count = int(moved[way]) * factor
            if source > target or kind == Kind.EXCHANGE:  # a state's snapshot is copied up from wherever it is
                self.up[max(source, target)] += count
            if source < target or kind == Kind.EXCHANGE:
                self.down[max(source, target)] += count
        self._timed(self.cache.finish, plan)

    def take_moved(self) -> tuple[list[int], list[int]]:
        """Bytes up and down by tier since the last call."""
        moved = (self.up, self.down)
        self.up, self.down = [0] * len(self.up), [0] * len(self.down)
        return moved
