"""Sequence: an admitted request as its caller sees it. Its numbers live in the store; this is the handle.

0 ......... committed ......... computed ......... ran ............ length ......... capacity
  final        | KV exists        | handed out       | tokens known     | slots
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from quire.core.records.errors import StateError, UnknownError, say, shown
from quire.core.records.reports.stats import Counts, ReuseCounts, counts, reuse
from quire.core.records.request import Int32, Request
from quire.core.records.span import Span, merged
from quire.core.state.prepared import Prepared
from quire.core.state.setup import GroupPool, Setup

RELEASED = -1


class Sequence:
    """A live request: tokens so far and pages held.

    `id` is its request's; `row` is its line in every block table, `start` the first token that had to be computed,
    `prompt_end` where its prompt ends: what is to be computed before it can grow. `request` is what was asked,
    `prepared` the same made ready.
    """

    __slots__ = (
        "_granted",
        "_kept",
        "_owned",
        "_received",
        "_setup",
        "id",
        "prepared",
        "prompt_end",
        "request",
        "row",
        "start",
    )

    def __init__(self, setup: Setup, prepared: Prepared, row: int, start: int) -> None:
        self._setup = setup
        self.request: Request = prepared.request
        self.id: Hashable = prepared.request.id
        self.prepared = prepared
        self.prompt_end = prepared.end
        self._granted = start  # furthest end of a span handed out: pages are there up to it
        self._kept = prepared.end  # leading tokens that are still the request's own; trimming may lower it
        self._owned: tuple[int, ...] = ()  # by group: pages of its hit that nobody else had
        self._received = False  # a transfer brings its prompt: pages of the tree may stand behind `computed`
        self.row = row
        self.start = start  # first token that had to be computed

    @property
    def live(self) -> bool:
        """Not released yet."""
        return self.row != RELEASED

    @property
    def tenant(self) -> str | None:
        """Whose it is, as its request said."""
        return self.request.tenant

    @property
    def length(self) -> int:
        """Tokens known."""
        return self._setup.store.length.item(self._live_row())

    @property
    def computed(self) -> int:
        """Leading tokens whose KV exists."""
        return self._setup.store.computed.item(self._live_row())

    @property
    def committed(self) -> int:
        """Leading tokens that are final, whole blocks: what the tree may have of it, what trimming never takes."""
        return self._setup.store.committed.item(self._live_row()) * self._setup.block_size

    @property
    def ran(self) -> int:
        """Leading tokens that were handed out to be computed: those with KV once the step has run."""
        return self._setup.store.handed.item(self._live_row())

    @property
    def span_end(self) -> int:
        """Of 0.1: where the last span of its prompt ended that was handed out."""
        fact = "Sequence.span_end is called ran since 0.2, which counts answers too; the old name goes with 0.3"
        warnings.warn(fact, DeprecationWarning, stacklevel=2)
        return min(self.ran, self.prompt_end)

    @property
    def encoder_computed(self) -> int:
        """Leading places of the encoder's KV that exist; 0 without encoder."""
        places, cross = self.prepared._encoder, self._setup.cross
        if places is None or cross is None:
            return 0
        return min(places.length, int(cross.store.computed[self._live_row()]))

    def capacity(self, group: int = 0) -> int:
        """Tokens it has slots for in a group, holes included."""
        store, place = self._pool(group)
        return int(store.capacity[place][self._live_row()]) * self._setup.block_size

    def _pool(self, group: int) -> GroupPool:
        if not isinstance(group, int) or not 0 <= group < len(self._setup.groups):
            fact = f"there are {len(self._setup.groups)} groups"
            raise UnknownError(say(f"group {shown(group)}", fact, "number them from 0"))
        return self._setup.pools[group]

    def slots(self, group: int = 0) -> Int32:
        """Device slot per block (a copy); -1 is a hole."""
        row, (store, place) = self._live_row(), self._pool(group)
        return store.slots[place][row, : store.capacity[place][row]].copy()

    def pages(self, group: int = 0) -> Int32:
        """Page id per block (a copy); -1 is a hole."""
        row, (store, place) = self._live_row(), self._pool(group)
        return store.pages[place][row, : store.capacity[place][row]].copy()

    def state_slot(self, group: int) -> int:
        """Device slot of the current state, which is updated in place; -1 in groups that have none."""
        row, (store, place) = self._live_row(), self._pool(group)
        return int(store.current_slots[place][row])

    def held(self, group: int = 0) -> tuple[Span, ...]:
        """Computed tokens that its pages hold; of a state group none: its state stands for all of them."""
        row, (store, place) = self._live_row(), self._pool(group)
        if self._setup.layers[group].current:
            return ()
        size, computed = self._setup.block_size, int(store.computed[row])
        blocks = np.flatnonzero(store.pages[place][row] >= 0).tolist()
        return merged(*(Span(min(b * size, computed), min((b + 1) * size, computed)) for b in blocks))

    def counts(self, group: int = 0) -> Counts:
        """What its admission took and reused."""
        (store, place), config = self._pool(group), self._setup.config
        numbers: np.ndarray[tuple[int], np.dtype[np.int64]] = store.row_counters[place][self._live_row()]
        return counts(numbers, config.groups[group].page_bytes, len(config.tiers))

    def _reuse(self, group: int) -> ReuseCounts:
        """The part of it that says where its prompt came from."""
        store, place = self._setup.pools[group]
        return reuse(store.row_counters[place][self._live_row()], len(self._setup.config.tiers))

    def _live_row(self) -> int:
        """Its row, or an error after release."""
        if self.row == RELEASED:
            raise StateError(say(f"use of sequence {shown(self.id)}", "it was released", "claim its request again"))
        return self.row

    def _forked(self, id: Hashable, row: int) -> Sequence:
        """The handle of a fork that the store has put into `row`."""
        twin = object.__new__(Sequence)
        twin._setup, twin.id, twin.request = self._setup, id, replace(self.request, id=id, beams=1)
        twin.prompt_end, twin.row, twin.start = self.prompt_end, row, self.start
        twin._granted, twin._kept = self._granted, self._kept
        twin.prepared, twin._received = self.prepared, self._received
        return twin

    def __repr__(self) -> str:
        state = f"row={self.row}, length={self.length}, computed={self.computed}" if self.live else "released"
        return f"Sequence({shown(self.id)}, {state})"
