"""Commit: KV exists up to here. Full pages become final and findable; what no later query reads leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.request import Int32
from quire.core.sequences.rows import Sequences, check_landed, check_live, rows_of, sequences_of, wrong_rows
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence, own_row, running_of
from quire.core.state.setup import Setup

if TYPE_CHECKING:
    from quire.core.store.interface import Store


def commit_batch(
    registry: Registry, sequences: Sequences, computed: int | Int32 | None, tokens: Int32 | None = None
) -> int:
    """KV exists up to `computed` (None: what was handed out has run): make full pages findable; returns new ones."""
    if isinstance(sequences, Sequence) and not isinstance(computed, np.ndarray) and tokens is None:
        return _commit_one(registry, sequences, computed)
    told = computed is not None
    rows = rows_of(registry.setup, sequences)
    if registry.in_flight.busy:
        check_landed(registry, "commit", rows)
    numbers = None if computed is None else numbers_of(computed, rows)
    now = registry.setup.now() if tokens is not None or _needs_time(registry) else 0
    if tokens is not None:
        numbers = _commit_known(registry, rows, numbers, new_tokens(tokens, len(rows)))
    return commit_rows(registry, rows, numbers, told, now)


def _commit_known(registry: Registry, rows: Int32, numbers: Int32 | None, new: Int32) -> Int32:
    """Tokens that a step has made are known from now on, if all that it computed can be committed with them."""
    store = registry.setup.store
    check_live(registry, "commit", rows)
    known = known_with(store, rows, new)
    marks: Int32 = np.minimum(store.handed[rows], known) if numbers is None else numbers
    for place in np.flatnonzero((marks < 0) | (marks > known))[:1].tolist():
        raise _not_computed(marks.item(place), known.item(place))
    if registry.commit_checked:
        for place, row in enumerate(rows.tolist()):
            if row in registry.commit_checked:
                _check_handed_out(registry.commit_checked[row], marks.item(place))
    add_tokens(registry, rows, new)
    return marks


def numbers_of(computed: int | Int32, rows: Int32) -> Int32:
    """One number for each row, or an error."""
    if isinstance(computed, int):
        return np.full(len(rows), _bounded(computed), np.int32)
    if not isinstance(computed, np.ndarray) or computed.dtype != np.int32 or computed.shape != rows.shape:
        cure = "pass an int32 array with one number per sequence"
        raise InputError(say("commit", f"computed is {shown(computed)}", cure))
    return computed


def new_tokens(tokens: Int32, count: int) -> Int32:
    """Tokens that a step has made, [sequences, most of one]: those of a row end at its first negative one."""
    if (
        not isinstance(tokens, np.ndarray) or tokens.dtype != np.int32 or tokens.ndim not in (1, 2)
        or len(tokens) != count
    ):  # fmt: skip
        fact = f"the tokens are {shown(tokens)}, of {count} sequences"
        raise InputError(say("commit", fact, "pass an int32 array with a row for each, negative where it made none"))
    return tokens.reshape(count, tokens.shape[1] if tokens.ndim == 2 else 1)


def known_with(store: Store, rows: Int32, new: Int32) -> Int32:
    """Tokens of rows with the new ones."""
    there = new >= 0
    known: Int32 = store.length[rows]
    known += there[:, 0] if new.shape[1] == 1 else there.cumprod(axis=1, dtype=np.int32).sum(axis=1, dtype=np.int32)
    return known


def add_tokens(registry: Registry, rows: Int32, new: Int32) -> None:
    """Append them to sequences whose prompt was handed out."""
    try:
        registry.setup.store.append(rows, np.ascontiguousarray(new).reshape(-1), new.shape[1])
    except RuntimeError:
        found = sequences_of(registry, rows)
        first = next((one for one in found if one.ran < one.prompt_end), found[0])
        fact = f"{first.ran} of its {first.prompt_end} prompt tokens were handed out"
        cure = "pass a negative token until its prompt is computed"
        raise StateError(say(f"commit of tokens of sequence {shown(first.id)}", fact, cure)) from None
    except ValueError:
        longest = max(sequences_of(registry, rows), key=lambda sequence: sequence.length)
        fact = f"it has {longest.length}, and max_length is {registry.setup.config.max_length}"
        raise InputError(say(f"commit of tokens of sequence {shown(longest.id)}", fact, "release it")) from None


def _needs_time(registry: Registry) -> bool:
    """Whether pages may leave a window, and must know when."""
    return registry.timed and registry.setup.bounded


def commit_rows(registry: Registry, rows: Int32, numbers: Int32 | None, told: bool, time: int) -> int:
    """Commit of rows; `told`: their numbers are what the caller gave. `time`: now, where it matters."""
    setup, checked = registry.setup, registry.commit_checked
    if checked:
        _check_rows(registry, rows, numbers)
    now = time if _needs_time(registry) else None
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
            asked = min(store.handed.item(row), store.length.item(row)) if numbers is None else numbers.item(place)
            if asked > store.length.item(row):
                raise _not_computed(asked, store.length.item(row))
            _check_handed_out(checked[row], asked)


def _commit_one(registry: Registry, sequence: Sequence, computed: int | None) -> int:
    setup = registry.setup
    row = own_row(setup, sequence)
    told = computed is not None
    if registry.in_flight.busy:
        check_landed(registry, "commit", np.array([row], np.int32))
    if computed is None:
        computed = min(setup.store.handed.item(row), setup.store.length.item(row))
    elif type(computed) is not int or not 0 <= computed <= setup.config.max_length:
        raise _not_computed(computed, sequence.length)
    if setup.cross is not None:
        if computed > sequence.length:
            raise _not_computed(computed, sequence.length)
        now = setup.now() if _needs_time(registry) else 0
        return commit_rows(registry, np.array([row], np.int32), np.array([computed], np.int32), told, now)
    checked = row in registry.commit_checked
    if checked:
        _check_handed_out(sequence, computed)
    time = setup.now() if registry.timed and setup.bounded else None
    try:
        added = setup.store.commit_row(row, computed, time)
    except ValueError:
        raise _not_computed(computed, sequence.length) from None
    if checked:
        registry.check_commits(sequence)
    return added


def _not_computed(computed: object, length: int) -> InputError:
    return InputError(say(f"commit of {shown(computed)} tokens", f"the sequence has {length}", "grow it before"))


def _readers(setup: Setup, rows: Int32, numbers: Int32 | None, told: bool) -> Int32:
    """Rows whose encoder's KV is there now, the whole of it: a step that has run has read it.

    Where all text was found no step has run when it comes: the caller that brings it gives the length, and a bare
    commit, which counts what was handed out, counts nothing.
    """
    if setup.cross is None or (len(rows) and not 0 <= rows.min() <= rows.max() < setup.config.max_sequences):
        return rows[:0]
    own, across = setup.store, setup.cross.store
    length = own.length[rows]
    done = np.minimum(own.handed[rows], length) if numbers is None else numbers
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
    asked = length if numbers is None else numbers
    place = int(np.flatnonzero((asked > length) | (asked < 0))[0])
    return _not_computed(asked.item(place), length.item(place))
