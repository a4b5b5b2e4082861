"""TimedCache: the cache's own calls with a stopwatch around each. Decides nothing, and leaves nothing out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

from quire import Batch, Cache, Claims, Kind, Plan, Prefetch, Prepared, Probe, Refusal, Request
from quire import Sequence as Live
from quire.core.records.hint_words import Back
from quire.core.records.plan import MoveColumn, Moves
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.trace import Trace
from quire.trace.units import Int32

UP_AND_DOWN = slice(5, 7)  # among the store's counters: pages onboarded, pages offloaded
TIERS = 8  # a cache has no more
WAY = slice(MoveColumn.KIND, MoveColumn.DST_TIER + 1, 2)  # kind, tier from, tier to
WAY_NUMBERS = np.array([TIERS * TIERS, TIERS, 1], np.int32)


@dataclass(slots=True)
class Budgets:
    """What a step may compute; None: no limit."""

    token_budget: int | None  # prompt tokens of a step
    max_chunk: int | None  # of one prompt


class BytesMoved(NamedTuple):
    """Bytes by the colder tier of the two."""

    up: list[int]
    down: list[int]


NONE_MOVED = BytesMoved([0, 0], [0, 0])  # between a device and a host


class TimedCache:
    """A cache (`inner`) on a virtual clock. `ns` is the time spent inside it."""

    def __init__(self, trace: Trace, settings: ReplaySettings, clock: Callable[[], float]) -> None:
        self.config = settings.config(trace)
        self.inner = Cache(self.config, clock=clock)
        self.budgets = Budgets(settings.token_budget, settings.max_chunk)
        self._page_bytes = np.array([group.page_bytes for group in self.config.groups], np.int64)
        groups, tiers = self.config.groups, self.config.tiers
        self._plain = len(groups) == 1 and not groups[0].current and len(tiers) == 2 and not tiers[1].slow
        self._page_size = groups[0].page_bytes
        self._available = self.inner._setup.available
        self._pages_moved = self.inner._setup.store.counters[0].data[UP_AND_DOWN]
        self.ns = 0
        self._up = [0] * len(self.config.tiers)  # bytes since take_moved, by the colder tier
        self._down = [0] * len(self.config.tiers)
        self._moved_pages = [0, 0]  # by take_moved, up and down, where the store's own counts say it

    @contextmanager
    def in_parts(self) -> Iterator[None]:
        """Meanwhile prompts may be cut to the token budget."""
        budgets = self.budgets
        self.budgets = Budgets(budgets.token_budget, budgets.token_budget)
        try:
            yield
        finally:
            self.budgets = budgets

    def prepare(self, request: Request) -> Prepared:
        """As Cache.prepare."""
        began = perf_counter_ns()
        prepared = self.inner.prepare(request)
        self.ns += perf_counter_ns() - began
        return prepared

    def probe(self, ready: list[Prepared]) -> list[Probe]:
        """As Cache.probe."""
        began = perf_counter_ns()
        probes = self.inner.probe(ready)
        self.ns += perf_counter_ns() - began
        return probes

    def claim(self, ready: list[Prepared]) -> Claims:
        """As Cache.claim."""
        began = perf_counter_ns()
        claims = self.inner.claim(ready)
        self.ns += perf_counter_ns() - began
        return claims

    def drop(self, claims: Claims) -> None:
        """As Claims.drop."""
        began = perf_counter_ns()
        claims.drop()
        self.ns += perf_counter_ns() - began

    def admit(self, claims: Claims, continuing: Sequence[Live]) -> Batch:
        """As Cache.admit, under the settings' budgets; its plan is carried out."""
        budget, chunk = self.budgets.token_budget, self.budgets.max_chunk
        began = perf_counter_ns()
        batch = self.inner.admit(claims, continuing=continuing, token_budget=budget, max_chunk=chunk)
        self._finish(batch.plan, began)
        return batch

    def go_on(self, continuing: Sequence[Live]) -> Batch:
        """The next parts of prompts, and no new request; its plan is carried out."""
        budget, chunk = self.budgets.token_budget, self.budgets.max_chunk
        began = perf_counter_ns()
        batch = self.inner.add_sequence_batch((), continuing=continuing, token_budget=budget, max_chunk=chunk)
        self._finish(batch.plan, began)
        return batch

    def add_one(self, ready: Prepared, max_chunk: int | None) -> Batch:
        """As Cache.add_sequence_batch of one request, without token budget; its plan is carried out."""
        began = perf_counter_ns()
        batch = self.inner.add_sequence_batch([ready], max_chunk=max_chunk)
        self._finish(batch.plan, began)
        return batch

    def commit(self, sequences: Live | Sequence[Live] | Int32, computed: Int32 | int | None = None) -> None:
        """As Cache.commit."""
        began = perf_counter_ns()
        self.inner.commit(sequences, computed)
        self.ns += perf_counter_ns() - began

    def commit_states(self, rows: Int32, computed: Int32) -> None:
        """The same with states: tokens given a stride ahead have not run, so a state stands where its commit says."""
        store = self.inner._setup.store
        for row, end in zip(rows.tolist(), computed.tolist(), strict=True):
            store.hand_out(row, end)
        self.commit(rows, computed)
        for row in rows.tolist():
            store.hand_out(row, int(store.length[row]))

    def grow(self, rows: Int32, tokens: Int32) -> bool:
        """As Cache.grow; its plan is carried out. False: no room."""
        began = perf_counter_ns()
        plan = self.inner.grow(rows, tokens)
        if plan is None:
            self.ns += perf_counter_ns() - began
            return False
        self._finish(plan, began)
        return True

    def release(self, sequence: Live, back: Back | None = None) -> None:
        """As Cache.release."""
        began = perf_counter_ns()
        self.inner.release(sequence, back=back)
        self.ns += perf_counter_ns() - began

    def suspend(self, sequence: Live, computed: int) -> Request:
        """As Cache.suspend, after what has run was committed and what has not was trimmed."""
        began = perf_counter_ns()
        if computed > sequence.computed:
            self.inner.commit(sequence, computed)
        if sequence.computed >= sequence.prompt_end:
            self.inner._setup.store.hand_out(sequence.row, sequence.computed)  # what was given ahead has not run
            if sequence.length > computed:
                self.inner.trim(sequence, sequence.length - computed)
        resumed = self.inner.suspend(sequence)
        self.ns += perf_counter_ns() - began
        return resumed

    def prefetch(self, ready: Prepared, deadline: float) -> Prefetch | Refusal:
        """As Cache.prefetch; its plan is carried out by `finish_background`."""
        began = perf_counter_ns()
        coming = self.inner.prefetch(ready, deadline)
        self.ns += perf_counter_ns() - began
        return coming

    def copy_down(self, limit: int) -> Plan:
        """As Cache.copy_down; its plan is carried out by `finish_background`."""
        began = perf_counter_ns()
        plan = self.inner.copy_down(limit)
        self.ns += perf_counter_ns() - began
        return plan

    def finish_background(self, plan: Plan) -> None:
        """As Cache.finish: what a background plan moves is there."""
        began = perf_counter_ns()
        self.inner.finish(plan)
        self.ns += perf_counter_ns() - began

    def bytes_of(self, plan: Plan) -> int:
        """Bytes that a plan moves."""
        return int(self._page_bytes[plan.moves[:, MoveColumn.GROUP]].sum())

    def pages_of(self, plan: Plan, group: int) -> int:
        """Pages of a group that a plan moves."""
        return int(np.count_nonzero(plan.moves[:, MoveColumn.GROUP] == group))

    def num_free(self, group: int) -> int:
        """As Cache.num_free, which would first look for handles that were lost: there are none here."""
        began = perf_counter_ns()
        free = self._available(group)
        self.ns += perf_counter_ns() - began
        return free

    def _finish(self, plan: Plan, began: int) -> None:
        """Every move of a call that began then happens; bytes are counted."""
        moves = plan.moves
        if len(moves):
            self.inner.finish(plan)
        self.ns += perf_counter_ns() - began
        if len(moves) and not self._plain:
            self._count_ways(moves)

    def _count_ways(self, moves: Moves) -> None:
        """Bytes by the tiers that they go between."""
        ways = moves[:, WAY] @ WAY_NUMBERS
        sizes = self._page_bytes[moves[:, MoveColumn.GROUP]] if len(self._page_bytes) > 1 else None
        moved = np.bincount(ways, sizes)
        factor = 1 if sizes is not None else int(self._page_bytes[0])
        for way in moved.nonzero()[0].tolist():
            (kind, source), target = divmod(way // TIERS, TIERS), way % TIERS
            count = int(moved[way]) * factor
            if source > target or kind == Kind.EXCHANGE:  # a state's snapshot is copied up from wherever it is
                self._up[max(source, target)] += count
            if source < target or kind == Kind.EXCHANGE:
                self._down[max(source, target)] += count

    @property
    def moved(self) -> BytesMoved:
        """Bytes up and down by tier since `take_moved`."""
        if not self._plain:
            return BytesMoved(self._up, self._down)
        (up, down), (up_before, down_before) = self._pages_so_far(), self._moved_pages
        size = self._page_size
        return BytesMoved([0, (up - up_before) * size], [0, (down - down_before) * size])

    def take_moved(self) -> BytesMoved:
        """Bytes up and down by tier since the last call."""
        if not self._plain:
            moved = BytesMoved(self._up, self._down)
            self._up, self._down = [0] * len(self._up), [0] * len(self._down)
            return moved
        before = self._moved_pages
        self._moved_pages = after = self._pages_so_far()
        if before == after:
            return NONE_MOVED
        size = self._page_size
        return BytesMoved([0, (after[0] - before[0]) * size], [0, (after[1] - before[1]) * size])

    def _pages_so_far(self) -> list[int]:
        """Pages brought up and pushed down since the beginning, of a device and a host with one group."""
        return self._pages_moved.tolist()
