"""Plain rows: branches that decode and need nothing but their last token, as arrays by row of the block tables.

    row      0  1  2  3  4        A branch is written down when it gets a new token by itself; steps that compute it
    known    9  .  7  .  30       with the others change the arrays, all rows at once. What does not change, how its
    last     5  .  81 .  4        tokens are chosen and where it ends, is taken from here for a whole step.
    ready    *  .  .  .  *

So what a step costs the host hardly depends on how many of them there are. Which branches are plain, `Branch.is_plain`
says. `Queues` owns the one table, and reports every move to it. Decides nothing.
"""

from __future__ import annotations

from collections import Counter
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from quire.core.cache import Cache
from quire.core.records.request import Int32
from quire.core.records.span import Span
from quire.engine.model.packing import Decodes, Int64
from quire.engine.sampling.sample_table import SampleColumns, SampleTable
from quire.engine.step.runs.branch import Branch
from quire.engine.step.runs.step_work import Work
from quire.engine.step.runs.tenant import Tenant

Bools = NDArray[np.bool_]


class PlainBatch:
    """Plain rows of one step. Until one of them comes or goes steps share it: nothing in it changes."""

    __slots__ = ("branches", "columns", "ends", "heeds_eos", "prompts", "rows", "stops", "tenants")

    def __init__(self, table: PlainRows, rows: Int32) -> None:
        self.rows = rows
        self.branches = table.branches_in(rows)
        self.columns = table.columns.take(rows)
        self.prompts, self.ends, self.heeds_eos = table.prompt[rows], table.end[rows], table.heeds_eos[rows]
        self.stops = np.flatnonzero(table.has_stops[rows]).tolist()  # places of those with stop ids
        self.tenants = Counter[Tenant]([branch.run.tenant for branch in self.branches])  # tokens that a step takes

    def __len__(self) -> int:
        return len(self.rows)

    def samples(self, starts: Int64) -> SampleTable:
        """How the tokens behind those at `starts` are chosen."""
        return SampleTable(self.columns, starts + 1 - self.prompts)

    def works(self, starts: Int64) -> list[Work]:
        """The same one by one."""
        pairs = zip(self.branches, starts.tolist(), strict=True)
        return [Work(branch, Span(start, start + 1), 1) for branch, start in pairs]


class PlainRows:
    """All of an engine."""

    def __init__(self, cache: Cache, max_sequences: int) -> None:
        self._at = cache.progress()
        self._row_of: dict[Branch, int] = {}  # a sequence that is over does not know its row any more
        self._ready = np.zeros(max_sequences, bool)
        self._live = np.zeros(max_sequences, bool)
        self._batch: PlainBatch | None = None  # of all that are ready
        self.known, self.last, self.prompt, self.end = np.zeros((4, max_sequences), np.int32)
        self.heeds_eos, self.has_stops = np.zeros((2, max_sequences), bool)
        self.columns = SampleColumns(max_sequences)
        self._branch_in: dict[int, Branch] = {}

    def __repr__(self) -> str:
        return f"PlainRows({self._ready.sum()} ready of {len(self._row_of)})"

    # -- coming and going --------------------------------------------------------------------------------------------

    def write(self, branch: Branch, ready: bool) -> None:
        """Where it stands; `ready`: its next token can be computed."""
        sequence, run = branch.sequence, branch.run
        assert sequence is not None
        row = sequence.row
        if self._row_of.get(branch) != row:
            self._row_of[branch] = row
            self._branch_in[row], self._live[row] = branch, True
            self.prompt[row] = len(run.prompt)
            self.end[row] = len(run.prompt) + run.sampling.max_tokens
            self.heeds_eos[row], self.has_stops[row] = not run.sampling.ignore_eos, len(run.sampling.stop_ids) > 0
            self.columns.put(row, run.sampling, run.seed, branch.index)
        self.known[row], self.last[row] = branch.length, branch.last_token
        if self._ready[row] != ready:
            self._ready[row], self._batch = ready, None

    def leave(self, branch: Branch) -> None:
        """It is not ready any more. A step in flight may still have it."""
        row = self._row_of.get(branch)
        if row is not None and self._ready[row]:
            self._ready[row], self._batch = False, None

    def forget(self, branch: Branch) -> None:
        """It has no pages any more: what steps in flight make of it counts nothing."""
        self.leave(branch)
        row = self._row_of.pop(branch, None)
        if row is not None:
            self._live[row] = False
            del self._branch_in[row]

    # -- questions, of many rows at once -----------------------------------------------------------------------------

    @property
    def ready(self) -> Int32:
        """Rows whose next token can be computed."""
        return self._whole().rows

    @property
    def tenants(self) -> Counter[Tenant]:
        """How many each tenant has that are ready."""
        return self._whole().tenants

    def still_ready(self, rows: Int32) -> Int32:
        """Those of some rows that still are."""
        if self._batch is not None and rows is self._batch.rows:
            return rows
        there = self._ready[rows]
        return rows if np.count_nonzero(there) == len(rows) else rows[there]

    def live(self, batch: PlainBatch) -> Bools:
        """Which of a step's rows still have the branch, and the pages, that they had."""
        return self._live[batch.rows]

    def are_new(self, rows: Int32) -> Bools:
        """The cache has all their tokens but the last."""
        known = self.known[rows]
        fresh: Bools = (self._at.length[rows] < known) & (self._at.ran[rows] < known)
        return fresh

    def are_ahead(self, rows: Int32) -> Bools:
        """A step that was launched computes a token behind the last known one, which no step has been read to make."""
        ahead: Bools = self._at.ran[rows] > self.known[rows]
        return ahead

    def decodes(self, batch: PlainBatch) -> Decodes:
        """What a batch that was handed out computes. For a token that is still on its way stands the one before."""
        return Decodes(batch.rows, self._at.ran[batch.rows] - 1, self.last[batch.rows])

    def batch(self, rows: Int32) -> PlainBatch:
        """These rows for a step."""
        whole = self._whole()
        return whole if whole.rows is rows or np.array_equal(whole.rows, rows) else PlainBatch(self, rows)

    def branches_in(self, rows: Int32) -> list[Branch]:
        """Whose rows they are."""
        found = self._branch_in
        return [found[row] for row in rows.tolist()]

    def _whole(self) -> PlainBatch:
        if self._batch is None:
            self._batch = PlainBatch(self, np.flatnonzero(self._ready).astype(np.int32))
        return self._batch

    # -- what steps do to them ---------------------------------------------------------------------------------------

    def at_end(self, batch: PlainBatch, starts: Int64) -> list[Branch]:
        """Those of a launched step that have no room for one token more."""
        last = starts + 2 >= batch.ends
        return list(compress(batch.branches, last.tolist())) if np.count_nonzero(last) else []

    def append(self, batch: PlainBatch, tokens: Int32) -> Bools:
        """Each has one token more; which of them may have no other."""
        known = self.known[batch.rows] + 1
        self.known[batch.rows], self.last[batch.rows] = known, tokens
        full: Bools = known >= batch.ends
        return full
