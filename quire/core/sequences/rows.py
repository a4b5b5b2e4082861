"""Which rows a call speaks of: those of one sequence, of several, or an array of rows. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from quire.core.records.errors import BrokenInvariant, StateError, UnknownError, listed, say, shown
from quire.core.records.request import Int32, check_tokens
from quire.core.state.registry import Registry, check_boarded
from quire.core.state.sequence import Sequence, own_rows
from quire.core.state.setup import Setup

Sequences = Sequence | Iterable[Sequence] | Int32


def rows_of(setup: Setup, sequences: Sequences) -> Int32:
    """Rows of one sequence, of several, or as given: an int32 array of rows is taken as it is."""
    if isinstance(sequences, np.ndarray):
        check_tokens(sequences, "an array of rows")
        return sequences
    if type(sequences) is list:
        return own_rows(setup, sequences)  # the usual case
    return own_rows(setup, [sequences] if isinstance(sequences, Sequence) else listed("sequences", sequences))


def check_landed(registry: Registry, verb: str, rows: Int32) -> None:
    """No step in flight has any of these rows."""
    found = rows[registry.in_flight.have(rows)] if _in_table(registry, rows) else rows[:0]
    for sequence in sequences_of(registry, found):
        fact = "a step in flight computes it"
        raise StateError(say(f"{verb} of sequence {shown(sequence.id)}", fact, "commit that step, or fail it, before"))
    for sequence in sequences_of(registry, rows) if registry.in_flight.coming else ():
        check_boarded(registry.in_flight, verb, sequence)
    check_not_ended(registry, verb, rows)


def check_not_ended(registry: Registry, verb: str, rows: Int32) -> None:
    """None of these rows waits for a step in flight to be given up."""
    if registry.in_flight.ending and not registry.in_flight.ending.keys().isdisjoint(rows.tolist()):
        raise wrong_rows(registry, verb, rows)


def check_live(registry: Registry, verb: str, rows: Int32) -> None:
    """These are rows of live sequences, each once. In a usual step no row is looked at by itself."""
    length, ending = registry.setup.store.length, registry.in_flight.ending
    if len(rows) and int(rows.min()) >= 0 and (not ending or ending.keys().isdisjoint(rows.tolist())):
        times = np.bincount(rows)
        if len(times) <= len(length) and int(times.max()) == 1 and length[rows].all():
            return
    live = {sequence.row for sequence in registry.sequences.values()}
    if len(np.unique(rows)) != len(rows) or not live.issuperset(rows.tolist()):
        raise wrong_rows(registry, verb, rows)


def _in_table(registry: Registry, rows: Int32) -> bool:
    return len(rows) > 0 and 0 <= int(rows.min()) <= int(rows.max()) < registry.setup.config.max_sequences


def sequences_of(registry: Registry, rows: Int32) -> list[Sequence]:
    """The live sequences of some rows, for a message: callers know them by id too."""
    by_row = {sequence.row: sequence for sequence in registry.sequences.values()}
    return [by_row[row] for row in rows.tolist() if row in by_row]


def wrong_rows(registry: Registry, verb: str, rows: Int32) -> UnknownError:
    """Why some rows are no batch: the first that no live sequence has, or else the first sequence that is twice."""
    live = {sequence.row for sequence in registry.sequences.values()}
    unknown = [row for row in rows.tolist() if row not in live]
    if unknown:
        return UnknownError(say(verb, f"row {unknown[0]} is of no live sequence", "pass rows of live sequences"))
    found = sequences_of(registry, rows)
    twice = next((one for place, one in enumerate(found) if one in found[:place]), None)
    if twice is None:
        raise BrokenInvariant(f"{verb}: rows {rows.tolist()} were refused, and all are live")
    return UnknownError(say(verb, f"sequence {shown(twice.id)} is given twice", "pass each once"))
