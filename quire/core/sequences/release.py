"""Release: a sequence gives up its pages."""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.records.errors import StateError, listed, say, shown
from quire.core.records.hint_words import NO_HINT
from quire.core.records.request import Int32
from quire.core.state.registry import Ending, Registry
from quire.core.state.sequence import RELEASED, Sequence, own_row, running_of
from quire.core.state.setup import Setup


def ending_of(registry: Registry, sequences: Sequence | Iterable[Sequence]) -> list[Sequence]:
    """The sequences that a release speaks of, all of them live, each once."""
    if isinstance(sequences, Sequence):
        own_row(registry.setup, sequences)
        return [sequences]
    many = listed("release", sequences)
    seen: set[int] = set()
    for sequence in many:
        row = own_row(registry.setup, sequence)
        if row in seen:
            raise StateError(say("release", f"sequence {shown(sequence.id)} is given twice", "pass each once"))
        seen.add(row)
    if coming := registry.in_flight.coming:
        _check_shared(registry, seen)
        behind = [ride.row for ride in coming]  # who shares goes before the one that it shares with
        many = sorted(many, key=lambda sequence: -behind.index(sequence.row) if sequence.row in behind else 1)
    return many


def _check_shared(registry: Registry, rows: set[int]) -> None:
    """Nobody else shares what these rows are to compute in a step that is yet to be launched."""
    for row, owner, _, end in registry.in_flight.coming:
        if owner in rows and row not in rows:
            name = shown(registry.sequence_in(owner))
            fact = f"sequence {shown(registry.sequence_in(row))} shares what it is to compute up to {end}"
            raise StateError(say(f"release of sequence {name}", fact, "launch both first, or release that one before"))


def release_sequence(registry: Registry, sequence: Sequence, store: bool, back: int = NO_HINT) -> None:
    """Give up its pages, the deepest first; what was computed stays findable unless `store` is False. `back`: when it
    is asked for again, as the store numbers it. While a step in flight has the row all of that waits for it."""
    setup, flight = registry.setup, registry.in_flight
    row = own_row(setup, sequence)
    now = setup.now()  # before the first change: a caller's clock may raise
    later = flight.busy and _ends_later(registry, row)
    if registry.page_watcher is not None:
        registry.page_watcher.leaving(sequence)
    if later:
        flight.ending[row] = Ending(sequence, store, back)
        setup.store.take_back(row, max(setup.store.launched.item(row), setup.store.computed.item(row)), False)
    elif sequence.request.session is None and not back and setup.cross is None:  # the usual case
        setup.store.release(row, store, now)
        registry.free_rows.append(row)
    else:
        end_row(registry, row, (sequence, store, back), now)
    del registry.sequences[sequence.id]
    registry.commit_checked.pop(row, None)
    sequence.row = RELEASED


def _ends_later(registry: Registry, row: int) -> bool:
    """A step in flight has the row; else it shares nothing any more that is yet to be launched."""
    flight = registry.in_flight
    _check_shared(registry, {row})
    later = flight.has(row)
    if flight.coming and not later:
        flight.get_off({row})
    return later


def end_row(registry: Registry, row: int, ending: tuple[Sequence, bool, int], now: int) -> None:
    """No step in flight has the row: its pages go, and it is another sequence's."""
    setup, (sequence, store, back) = registry.setup, ending
    session = sequence.request.session
    if session is not None:
        end = setup.store.release(row, store, now, back, True)
        registry.end_session((running_of(sequence).prepared.scope_key, session), end)
    elif back:
        setup.store.release(row, store, now, back)
    else:
        setup.store.release(row, store, now)
    if setup.cross is not None and setup.cross.has(row):
        setup.cross.store.release(row, store, now)
    registry.free_rows.append(row)


def tokens_of(setup: Setup, sequence: Sequence) -> Int32:
    """Every token so far (a copy)."""
    return setup.store.tokens(own_row(setup, sequence))
