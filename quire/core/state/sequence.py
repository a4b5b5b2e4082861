"""Sequence: an admitted request as its caller sees it. Its numbers live in the store; this is the handle.

0 ......... committed ......... computed ......... ran ......... capacity
  final        | KV exists        | handed out       | slots
                                  computed .... length: known; before or behind `ran`, as a step makes tokens
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from quire.core.records.errors import InputError, StateError, UnknownError, say, shown
from quire.core.records.hint_words import Back
from quire.core.records.identity import Scope
from quire.core.records.reports.stats import Counts, ReuseCounts, counts, reuse
from quire.core.records.request import Int32, Request
from quire.core.records.span import Span, merged
from quire.core.state.prepared import Prepared, ReadyRequest
from quire.core.state.setup import GroupPool, Setup

RELEASED = -1


class Running:
    """What the cache notes of a live sequence besides what its caller sees."""

    __slots__ = ("granted", "kept", "owned", "prepared", "received")

    def __init__(self, prepared: ReadyRequest, granted: int, kept: int) -> None:
        self.prepared = prepared
        self.granted = granted  # furthest end of a span handed out: pages are there up to it
        self.kept = kept  # leading tokens that are still the request's own; trimming may lower it
        self.owned: tuple[int, ...] = ()  # by group: pages of its hit that no other row had
        self.received = False  # a transfer brings its prompt: pages of the tree may stand behind `computed`


class Sequence:
    """A live request: tokens so far and pages held.

    `id` is its request's; `row` is its line in every block table, `start` the first token that had to be computed,
    `prompt_end` where its prompt ends: what is to be computed before it can grow. `request` is what was asked,
    `prepared` the same made ready.
    """

    __slots__ = ("_back", "_running", "_setup", "id", "prompt_end", "request", "row", "start")
    _back: Back | None  # set by a release with a hint

    def __init__(self, setup: Setup, prepared: ReadyRequest, row: int, start: int) -> None:
        self._setup = setup
        self.request: Request = prepared.request
        self.id: Hashable = prepared.request.id
        self.prompt_end = prepared.end
        self._running = Running(prepared, start, prepared.end)
        self.row = row
        self.start = start  # first token that had to be computed

    @property
    def prepared(self) -> Prepared:
        """Its request made ready, for `gains_from` of claims."""
        return Prepared(self._running.prepared)

    @property
    def live(self) -> bool:
        """Not released yet."""
        return self.row != RELEASED

    @property
    def tenant(self) -> str | None:
        """Whose it is, as its request said."""
        return self.request.tenant

    @property
    def back(self) -> Back | None:
        """The hint of its release: when its text comes back; None: there was none."""
        return self._back if hasattr(self, "_back") else None

    @property
    def session(self) -> str | None:
        """The session it belongs to, as its request said."""
        return self.request.session

    @property
    def length(self) -> int:
        """Tokens known."""
        return self._setup.store.length.item(self.row if self.row >= 0 else self._live_row())

    @property
    def computed(self) -> int:
        """Leading tokens whose KV exists."""
        return self._setup.store.computed.item(self.row if self.row >= 0 else self._live_row())

    @property
    def committed(self) -> int:
        """Leading tokens that are final, whole blocks: what the tree may have of it, what trimming never takes."""
        return self._setup.store.committed.item(self._live_row()) * self._setup.block_size

    @property
    def ran(self) -> int:
        """Leading tokens that were handed out to be computed, known or not: those with KV once their steps have run."""
        return self._setup.store.handed.item(self.row if self.row >= 0 else self._live_row())

    @property
    def span_end(self) -> int:
        """Its name in 0.1: where the last span of its prompt that was handed out ends."""
        fact = "Sequence.span_end is called ran since 0.2, which counts answers too; the old name goes with 0.3"
        warnings.warn(fact, DeprecationWarning, stacklevel=2)
        return min(self.ran, self.prompt_end)

    @property
    def encoder_computed(self) -> int:
        """Leading places of the encoder's KV that exist; 0 without encoder."""
        places, cross = self._running.prepared.encoder, self._setup.cross
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
            raise _released(self)
        return self.row

    def __repr__(self) -> str:
        state = f"row={self.row}, length={self.length}, computed={self.computed}" if self.live else "released"
        return f"Sequence({shown(self.id)}, {state})"


def setup_of(sequence: Sequence) -> Setup:
    """What its cache is made of, for those that watch it."""
    return sequence._setup


def running_of(sequence: Sequence) -> Running:
    """What the cache notes behind the handle."""
    return sequence._running


def note_back(sequence: Sequence, back: Back | None) -> None:
    """Its release has a hint of when its text comes back."""
    sequence._back = back


def shared_scope(sequence: Sequence) -> Scope | None:
    """What it shares its blocks under, with an encoder's input if it reads one; None: not at all."""
    return sequence._running.prepared.scope if sequence.request.reuse else None


def fork_of(sequence: Sequence, id: Hashable, row: int) -> Sequence:
    """The handle of a fork that the store has put into `row`."""
    fork, source = object.__new__(Sequence), sequence._running
    fork._setup, fork.id, fork.request = sequence._setup, id, replace(sequence.request, id=id, beams=1)
    fork.prompt_end, fork.row, fork.start = sequence.prompt_end, row, sequence.start
    fork._running = Running(source.prepared, source.granted, source.kept)
    fork._running.received = source.received
    return fork


def own_row(setup: Setup, sequence: Sequence) -> int:
    """The row of a live sequence of this cache."""
    if isinstance(sequence, Sequence) and sequence._setup is setup and sequence.row >= 0:
        return sequence.row  # the usual case
    if not isinstance(sequence, Sequence):
        raise InputError(say(f"a {type(sequence).__name__}", "it is not a Sequence", "pass what admit returned"))
    if not sequence.live:
        raise _released(sequence)
    raise UnknownError(
        say(f"sequence {shown(sequence.id)}", "it belongs to another cache", "use the cache that admitted it")
    )


def own_rows(setup: Setup, sequences: list[Sequence]) -> Int32:
    """The rows of live sequences of this cache, all at once: engines ask with all that decode, in every step."""
    rows = [one.row for one in sequences if isinstance(one, Sequence) and one._setup is setup]
    if len(rows) < len(sequences) or (rows and min(rows) < 0):
        for sequence in sequences:
            own_row(setup, sequence)  # which of them is refused, and why
    return np.array(rows, np.int32)


def _released(sequence: Sequence) -> StateError:
    return StateError(say(f"use of sequence {shown(sequence.id)}", "it was released", "claim its request again"))
