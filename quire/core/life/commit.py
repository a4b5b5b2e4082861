"""Commit: KV exists up to here. Full pages become final and findable; what no later query reads leaves."""

from __future__ import annotations

import numpy as np

from quire.core.life.sequences import Sequences, own, rows_of
from quire.core.records.errors import InputError, UnknownError, say, shown
from quire.core.records.request import Int32
from quire.core.state.sequence import Sequence, watch
from quire.core.state.state import State


def commit(state: State, sequences: Sequences, computed: int | Int32 | None) -> int:
    """KV exists up to `computed` (None: what was handed out has run): make full pages findable; returns new ones."""
    if isinstance(sequences, Sequence) and not isinstance(computed, np.ndarray):
        return _commit_one(state, sequences, computed)
    told = computed is not None
    rows = rows_of(state, sequences)
    numbers = np.full(len(rows), _bounded(computed), np.int32) if isinstance(computed, int) else computed
    if numbers is not None:
        _check_computed(state, rows, numbers)
    return _commit_rows(state, rows, numbers, told)


def _commit_rows(state: State, rows: Int32, numbers: Int32 | None, told: bool) -> int:
    for place, row in enumerate(rows.tolist() if state.watched else ()):
        if row in state.watched:
            asked = int(state.store.handed[row]) if numbers is None else int(numbers[place])
            _check_watched(state.watched[row], asked)
    _tell_time(state)
    readers = _readers(state, rows, numbers, told)
    try:
        added = state.store.commit(rows, numbers)
    except LookupError as unknown:
        raise UnknownError(say("commit", str(unknown), "pass rows of live sequences, each once")) from None
    for row in rows.tolist() if state.watched else ():
        if row in state.watched:
            watch(state, state.watched[row])
    return added + _commit_across(state, readers)


def _commit_one(state: State, sequence: Sequence, computed: int | None) -> int:
    row = sequence.row if sequence.row >= 0 and sequence.state is state else own(state, sequence)
    told = computed is not None
    if computed is None:
        computed = sequence.ran
    elif type(computed) is not int or not 0 <= computed <= state.config.max_length:
        raise _not_computed(computed, sequence.length)
    if state.cross is not None:
        if computed > sequence.length:
            raise _not_computed(computed, sequence.length)
        return _commit_rows(state, np.array([row], np.int32), np.array([computed], np.int32), told)
    watched = row in state.watched
    if watched:
        _check_watched(sequence, computed)
    _tell_time(state)
    try:
        added = state.store.commit_row(row, computed)
    except ValueError:
        raise _not_computed(computed, sequence.length) from None
    if watched:
        watch(state, sequence)
    return added


def _not_computed(computed: object, length: int) -> InputError:
    return InputError(say(f"commit of {shown(computed)} tokens", f"the sequence has {length}", "grow it before"))


def _tell_time(state: State) -> None:
    """Pages may leave a window now, and their retention runs from then on."""
    if state.timed and state.bounded:
        state.store.refresh(state.now())


def _readers(state: State, rows: Int32, numbers: Int32 | None, told: bool) -> Int32:
    """Rows whose encoder's KV is there now, the whole of it: a step that has run has read it.

    Where all text was found no step has run when it comes: whoever brings it tells the length, and a bare commit, which
    counts what was handed out, counts nothing.
    """
    if state.cross is None or (len(rows) and not 0 <= rows.min() <= rows.max() < state.config.max_sequences):
        return rows[:0]
    own, across = state.store, state.cross.store
    length = own.length[rows]
    done = own.handed[rows] if numbers is None else numbers
    there = done > own.computed[rows]
    if told:
        there |= done >= length
    first: Int32 = rows[there & (across.length[rows] > across.computed[rows])]
    return first


def _commit_across(state: State, rows: Int32) -> int:
    return 0 if state.cross is None else state.cross.store.commit(rows, None)


def _check_watched(sequence: Sequence, asked: int) -> None:
    """What a transfer brings is there when all of it is; of a prompt under way only handed-out tokens have pages."""
    if sequence.received and asked < sequence.prompt_end:
        fact = f"a transfer brings all {sequence.prompt_end} of its prompt"
        cure = "commit when it has arrived; to compute instead, release and claim again"
        raise InputError(say(f"commit of {asked} tokens of {shown(sequence.id)}", fact, cure))
    if not sequence.received and asked > sequence.granted:
        fact = f"{sequence.granted} were handed out to be computed"
        cure = "pass it as continuing, and commit what admit hands out"
        raise InputError(say(f"commit of {asked} tokens of {shown(sequence.id)}", fact, cure))


def _bounded(computed: int) -> int:
    """As int32, where any number beyond it is refused like the next smaller one."""
    return max(min(computed, 2**31 - 1), -1)


def _check_computed(state: State, rows: Int32, numbers: Int32) -> None:
    if not isinstance(numbers, np.ndarray) or numbers.dtype != np.int32 or numbers.shape != rows.shape:
        raise InputError(
            say("commit", "computed must be an int32 array with one number per sequence", "or an int, or None")
        )
    if len(rows) and not (rows.min() >= 0 and rows.max() < state.config.max_sequences):
        raise UnknownError(say(f"commit of rows {rows.tolist()}", "not all are rows", "pass rows of live sequences"))
    wrong = (numbers > state.store.length[rows]) | (numbers < 0)
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        have = int(state.store.length[rows[place]])
        raise _not_computed(int(numbers[place]), have)
