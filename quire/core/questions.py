"""Questions: what a cache says of itself: its sequences, tables, room, counts and events. A part of Cache.

The answers are the caller's, but for whole tables, which are live views. Only `take_stats`, `take_events` and
`take_table_changes` change anything: from where they tell the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from quire.core.admission.probe import slots_to_completion
from quire.core.outside.take_events import take_events, wait_for_events
from quire.core.records.config import CacheConfig, check_place
from quire.core.records.errors import InputError, UnknownError, say, shown
from quire.core.records.events import EventBatch
from quire.core.records.reports.stats import Counts, Usage, counts
from quire.core.records.request import Int32, check_id
from quire.core.sequences.release import tokens_of
from quire.core.sequences.rows import Sequences
from quire.core.sequences.tables import Progress, copy_rows, progress_of, read_only
from quire.core.sequences.usage import usage_of
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence, own_row


class Questions:
    """What Cache can be asked."""

    config: CacheConfig
    _registry: Registry
    _lock: AbstractContextManager[bool]
    _asked: Callable[[], AbstractContextManager[bool]]
    _marks: list[NDArray[np.int64]]  # by group: counts when `take_stats` was last called

    def sequence(self, id: Hashable) -> Sequence:
        """The live sequence of an id."""
        check_id(id, "sequence")
        with self._lock:
            found = self._registry.sequences.get(id)
        if found is None:
            raise UnknownError(say(f"sequence {shown(id)}", "no live sequence has that id", "admit its request first"))
        return found

    @property
    def num_sequences(self) -> int:
        """Live sequences."""
        return len(self._registry.sequences)

    def tokens(self, sequence: Sequence) -> Int32:
        """Every token of a sequence so far (a copy)."""
        with self._lock:
            return tokens_of(self._registry.setup, sequence)

    def table(self, group: int = 0, *, rows: Sequences | None = None, out: Int32 | None = None) -> Int32:
        """The group's block table: device slot by [row, block], -1 for none. A live, read-only view.

        With `rows` a copy of those rows, in their order, as wide as the longest of them; into the front of `out`, an
        int32 array at least as large, if that is given: then the result is a view of it.
        """
        check_place(self.config, group)
        if rows is None:
            if out is not None:
                raise InputError(say("a table with out", "no rows are named", "pass the rows that it shall have"))
            store, place = self._registry.setup.pools[group]
            return read_only(store.slots[place])
        with self._lock:
            return copy_rows(self._registry, group, rows, out)

    def take_table_changes(self, group: int = 0) -> Int32:
        """What `table` has changed by since the last call: rows, columns and slots of its cells, ascending; [3, cells].

        A copy of the table that takes them all, `copy[rows, columns] = slots`, equals it; at first all of it is -1.
        """
        check_place(self.config, group)
        store, place = self._registry.setup.pools[group]
        with self._lock:
            return store.take_cells(place)

    def state_table(self, group: int) -> Int32:
        """Device slot of the current state by row, -1 for none. A live, read-only view."""
        check_place(self.config, group)
        store, place = self._registry.setup.pools[group]
        return read_only(store.current_slots[place])

    def progress(self) -> Progress:
        """How far every sequence is, by row: for a whole batch at once what `Sequence` says of one. Live views."""
        return progress_of(self._registry.setup)

    def num_free(self, group: int = 0) -> int:
        """Device slots that can be had now: empty, or cached and neither held nor claimed."""
        check_place(self.config, group)
        store, place = self._registry.setup.pools[group]
        with self._asked():
            return store.available(place)

    def slots_to_completion(self, sequence: Sequence) -> tuple[int, ...]:
        """Slots a live sequence may still take, per group."""
        with self._lock:
            own_row(self._registry.setup, sequence)
            return slots_to_completion(self._registry.setup, sequence)

    def usage(self, tier: int = 0, group: int = 0) -> Usage:
        """Where the slots of one tier and group are."""
        check_place(self.config, group, tier)
        with self._lock:
            return usage_of(self._registry, tier, group)

    def stats(self, group: int = 0) -> Counts:
        """Counts since construction."""
        check_place(self.config, group)
        with self._lock:
            store, place = self._registry.setup.pools[group]
            return self._counts(group, store.counters[place])

    def take_stats(self, group: int = 0) -> Counts:
        """Counts since the last call: one step's worth when called once per step."""
        check_place(self.config, group)
        with self._lock:
            store, place = self._registry.setup.pools[group]
            now = store.counters[place].copy()
            step, self._marks[group] = now - self._marks[group], now
            return self._counts(group, step)

    def _counts(self, group: int, numbers: NDArray[np.int64]) -> Counts:
        return counts(numbers, self.config.groups[group].page_bytes, len(self.config.tiers))

    def take_events(self, timeout: float | None = 0.0, *, whole: bool = False) -> EventBatch:
        """Events since the last call; empty unless the config turns them on. Waits up to `timeout` seconds for some.

        None waits for ever. With `whole` the state itself is reported instead, as if everything had just been stored.
        """
        wait_for_events(self._registry.setup, timeout, whole)
        with self._lock:
            return take_events(self._registry.setup, whole)
