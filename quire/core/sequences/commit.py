"""Commit: KV exists up to here. Full pages become final and findable; what no later query reads leaves."""

from __future__ import annotations

import numpy as np

from quire.core.records.errors import InputError, say, shown
from quire.core.records.request import Int32
from quire.core.sequences.rows import Sequences, rows_of, wrong_rows
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence, own_row, running_of
from quire.core.state.setup import Setup


def commit_batch(registry: Registry, sequences: Sequences, computed: int | Int32 | None) -> int:
    """KV exists up to `computed` (None: what was handed out has run): make full pages findable; returns new ones."""
    if isinstance(sequences, Sequence) and not isinstance(computed, np.ndarray):
        return _commit_one(registry, sequences, computed)
    told = computed is not None
    rows = rows_of(registry.setup, sequences)
    numbers = np.full(len(rows), _bounded(computed), np.int32) if isinstance(computed, int) else computed
    if numbers is not None and (
        not isinstance(numbers, np.ndarray) or numbers.dtype != np.int32 or numbers.shape != rows.shape
    ):
        cure = "pass an int32 array with one number per sequence"
        raise InputError(say("commit", f"computed is {shown(numbers)}", cure))
    return _commit_rows(registry, rows, numbers, told)


def _commit_rows(registry: Registry, rows: Int32, numbers: Int32 | None, told: bool) -> int:
    setup, checked = registry.setup, registry.commit_checked
    if checked:
        _check_rows(registry, rows, numbers)
    now = _now(registry)
    readers = None if setup.cross is None else _readers(setup, rows, numbers, told)
    try:
        added = setup.store.commit(rows, numbers, now)
    except LookupError:
        raise wrong_rows(registry, "commit", rows) from None
    except ValueError:
        raise _too_much(registry, rows, numbers) from None
    for row in rows.tolist() if checked else ():
        if row in checked:
            registry.check_commits(checked[row])
    return added if readers is None else added + _commit_across(setup, readers)


def _check_rows(registry: Registry, rows: Int32, numbers: Int32 | None) -> None:
    """Of rows whose commits are checked: those are no more than was handed out."""
    store, checked = registry.setup.store, registry.commit_checked
    for place, row in enumerate(rows.tolist()):
        if row in checked:
            asked = store.handed.item(row) if numbers is None else numbers.item(place)
            if asked > store.length.item(row):
                raise _not_computed(asked, store.length.item(row))
            _check_handed_out(checked[row], asked)


def _commit_one(registry: Registry, sequence: Sequence, computed: int | None) -> int:
    setup = registry.setup
    row = own_row(setup, sequence)
    told = computed is not None
    if computed is None:
        computed = setup.store.handed.item(row)
    elif type(computed) is not int or not 0 <= computed <= setup.config.max_length:
        raise _not_computed(computed, sequence.length)
    if setup.cross is not None:
        if computed > sequence.length:
            raise _not_computed(computed, sequence.length)
        return _commit_rows(registry, np.array([row], np.int32), np.array([computed], np.int32), told)
    checked = row in registry.commit_checked
    if checked:
        _check_handed_out(sequence, computed)
    now = _now(registry)
    try:
        added = setup.store.commit_row(row, computed, now)
    except ValueError:
        raise _not_computed(computed, sequence.length) from None
    if checked:
        registry.check_commits(sequence)
    return added


def _not_computed(computed: object, length: int) -> InputError:
    return InputError(say(f"commit of {shown(computed)} tokens", f"the sequence has {length}", "grow it before"))


def _now(registry: Registry) -> int | None:
    """The time, if pages may leave a window: their retention runs from then on. The store hears it after its checks."""
    return registry.setup.now() if registry.timed and registry.setup.bounded else None


def _readers(setup: Setup, rows: Int32, numbers: Int32 | None, told: bool) -> Int32:
    """Rows whose encoder's KV is there now, the whole of it: a step that has run has read it.

    Where all text was found no step has run when it comes: whoever brings it tells the length, and a bare commit, which
    counts what was handed out, counts nothing.
    """
    if setup.cross is None or (len(rows) and not 0 <= rows.min() <= rows.max() < setup.config.max_sequences):
        return rows[:0]
    own, across = setup.store, setup.cross.store
    length = own.length[rows]
    done = own.handed[rows] if numbers is None else numbers
    there = done > own.computed[rows]
    if told:
        there |= done >= length
    first: Int32 = rows[there & (across.length[rows] > across.computed[rows])]
    return first


def _commit_across(setup: Setup, rows: Int32) -> int:
    return 0 if setup.cross is None else setup.cross.store.commit(rows, None)


def _check_handed_out(sequence: Sequence, asked: int) -> None:
    """What a transfer brings is there when all of it is; of a prompt under way only handed-out tokens have pages."""
    running = running_of(sequence)
    if running.received and asked < sequence.prompt_end:
        fact = f"a transfer brings all {sequence.prompt_end} of its prompt"
        cure = "commit when it has arrived"
        raise InputError(say(f"commit of {asked} tokens of {shown(sequence.id)}", fact, cure))
    if not running.received and asked > running.granted:
        fact = f"{running.granted} were handed out to be computed"
        cure = "pass it as continuing, and commit what admit hands out"
        raise InputError(say(f"commit of {asked} tokens of {shown(sequence.id)}", fact, cure))


def _bounded(computed: int) -> int:
    """As int32, where any number beyond it is refused like the next smaller one."""
    return max(min(computed, 2**31 - 1), -1)


def _too_much(registry: Registry, rows: Int32, numbers: Int32 | None) -> InputError:
    """The first row that has not so many tokens; the store has refused one."""
    length = registry.setup.store.length[rows]
    asked = registry.setup.store.handed[rows] if numbers is None else numbers
    place = int(np.flatnonzero((asked > length) | (asked < 0))[0])
    return _not_computed(asked.item(place), length.item(place))
