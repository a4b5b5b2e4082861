"""Launch: a handed-out step is on its way; the next may be handed out before this one is committed or has failed.

Owns what its end means for each row: tokens, edges, a release that has waited for it. Knows nothing of hits or slots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.request import Int32
from quire.core.sequences.commit import add_tokens, commit_rows, known_with, new_tokens, numbers_of
from quire.core.sequences.release import end_row, release_sequence
from quire.core.sequences.rows import Sequences, check_live, rows_of, sequences_of
from quire.core.sequences.setbacks import Setback, cut_row, reclaim
from quire.core.sequences.sharers import let_go_of_failed, with_landing
from quire.core.sequences.suspend import suspended
from quire.core.state.claim import Promise
from quire.core.state.registry import LaunchedStep, Registry
from quire.core.state.sequence import Sequence


class _Ran(NamedTuple):
    """What is said of a step that has run, by row."""

    rows: Int32
    ends: Int32  # that it was handed out
    numbers: Int32  # that are computed
    known: Int32  # with the tokens that it has made


def launch_step(registry: Registry, sequences: Sequences | None) -> LaunchedStep:
    """What these rows were handed out since their last launch (None: whatever was handed out) is on its way."""
    setup, flight = registry.setup, registry.in_flight
    store = setup.store
    if sequences is None:
        rows = np.flatnonzero(store.handed > np.maximum(store.computed, store.launched)).astype(np.int32)
    else:
        rows = rows_of(setup, sequences).copy()
        check_live(registry, "launch", rows)
    starts, ends = np.maximum(store.computed[rows], store.launched[rows]), store.handed[rows]
    for place in np.flatnonzero(starts >= ends)[:1].tolist():
        (idle,) = sequences_of(registry, rows[place : place + 1])
        fact = "it was handed out nothing since its last step"
        raise StateError(say(f"launch of sequence {shown(idle.id)}", fact, "admit or grow it first, or leave it out"))
    if flight.coming:
        _check_boards(registry, set(rows.tolist()))
    store.launch(rows, ends)
    return flight.add(rows, starts, ends)


def _check_boards(registry: Registry, rows: set[int]) -> None:
    """Who shares with one of its batch goes with that one, or after it."""
    for row, owner, _, end in registry.in_flight.coming:
        if row in rows and owner not in rows:
            name = shown(registry.sequence_in(owner))
            fact = f"it shares what sequence {name} is to compute up to {end}"
            ask = f"launch of sequence {shown(registry.sequence_in(row))}"
            raise StateError(say(ask, fact, f"launch {name} with it, or before"))


def commit_step(registry: Registry, step: LaunchedStep, computed: int | Int32 | None, tokens: Int32 | None) -> int:
    """The oldest step in flight has run, up to `computed` of each of its rows; `tokens` are known now. New pages."""
    setup, flight = registry.setup, registry.in_flight
    if _place_of(registry, step, "commit"):
        fact = f"step {flight.steps[0].number} was launched before it"
        raise StateError(say(f"commit of step {step.number}", fact, "commit the steps in the order of their launch"))
    now = setup.now()  # before the first change: a caller's clock may raise
    numbers = step.ends if computed is None else numbers_of(computed, step.rows)
    new = new_tokens(np.full(len(step.rows), -1, np.int32) if tokens is None else tokens, len(step.rows))
    rows, ends, valid = step.rows, step.ends, flight.valid(step)
    if not valid.all():
        rows, ends, new, numbers = rows[valid], ends[valid], new[valid], numbers[valid]
    known = known_with(setup.store, rows, new)
    if flight.ending:  # the last token of a sequence that has ended may not have come
        numbers = np.where(np.isin(rows, list(flight.ending)), np.minimum(numbers, known), numbers).astype(np.int32)
    _check_ran(registry, step, _Ran(rows, ends, numbers, known))
    landing = with_landing(registry, step, rows, numbers) if setup.shares_pending else (rows, numbers)
    if tokens is not None:
        add_tokens(registry, rows, new)
    added = commit_rows(registry, *landing, False, now)
    short = (flight.last[rows] == step.number) & (numbers < ends)
    for row in rows[short].tolist():  # it goes on from what is computed; its state has gone further
        setup.store.take_back(row, setup.store.computed.item(row), True)
    closed = flight.close()
    done = closed[~flight.have(closed)]
    setup.store.launch(done, np.zeros(len(done), np.int32))
    _end(registry, done, now)
    return added


def fail_step(registry: Registry, step: LaunchedStep) -> tuple[Setback, ...]:
    """A step has raised: what it and those behind it were to compute is not handed out any more. Who goes back, and how
    far, sharers too; with recurrent groups a state may have moved on, and such a sequence is lost."""
    setup, flight = registry.setup, registry.in_flight
    place = _place_of(registry, step, "fail")
    now = setup.now()  # before the first change: a caller's clock may raise
    by_row = {sequence.row: sequence for sequence in registry.sequences.values()}
    starts: dict[int, int] = {}  # where the first of the failed steps has begun
    for one in reversed(flight.steps[place:]):
        there = flight.valid(one)
        starts.update(zip(one.rows[there].tolist(), one.starts[there].tolist(), strict=True))
    shared, stranded, claims = flight.shared_ends(), flight.stranded(place), list[Promise]()
    failed = flight.cut(place, stranded)
    if setup.shares_pending:
        left = flight.shared_ends()
        starts |= {row: left.get(row, 0) for row in stranded}
        edges = {row: max(start, setup.store.computed.item(row)) for row, start in starts.items()}
        claims = let_go_of_failed(registry, edges)
    backs = [(row, *_go_back(registry, row, start)) for row, start in sorted(starts.items())]
    rows = np.concatenate([*(one.rows for one in failed), np.array(sorted(stranded), np.int32)])
    _end(registry, np.unique(rows), now)  # first: what these had is room, or a sharer's own
    setbacks = [
        _set_back(registry, by_row[row], old, edge, shared[row] if row in stranded else 0)
        for row, old, edge in backs if row in by_row
    ]  # fmt: skip
    return (*setbacks, *(reclaim(registry, claim, now) for claim in claims))


def _go_back(registry: Registry, row: int, start: int) -> tuple[int, int]:
    """A row of failed steps has been handed out only what steps before them compute: how far it was, and is now."""
    setup, flies = registry.setup, registry.in_flight.has(row)
    old, computed = setup.store.handed.item(row), setup.store.computed.item(row)
    edge = max(start, computed) if flies else computed
    setup.store.take_back(row, edge, True)
    setup.store.launch(np.array([row], np.int32), np.array([edge if flies else 0], np.int32))
    return old, edge


def _set_back(registry: Registry, sequence: Sequence, old: int, edge: int, shared: int) -> Setback:
    """It goes on from `edge`; what it was to share behind that, up to `shared`, it computes itself."""
    setup = registry.setup
    cut = edge // setup.block_size
    if not setup.state_groups and (not shared or cut_row(registry, sequence, cut, shared, edge)):
        return Setback(sequence, old, edge)
    request = suspended(setup, sequence)
    release_sequence(registry, sequence, True)
    return Setback(sequence, old, 0, lost=True, request=request)


def _place_of(registry: Registry, step: LaunchedStep, verb: str) -> int:
    """Which of the steps in flight it is."""
    for place, one in enumerate(registry.in_flight.steps):
        if one is step:
            return place
    if not isinstance(step, LaunchedStep):
        raise InputError(
            say(f"{verb} of a {type(step).__name__}", "it is not a LaunchedStep", "pass what launch returned")
        )
    fact = "it is not in flight here: it was committed or has failed, or is another cache's"
    raise StateError(say(f"{verb} of step {step.number}", fact, "close each launched step once"))


def _check_ran(registry: Registry, step: LaunchedStep, ran: _Ran) -> None:
    """What it has computed it was handed out, and is known; a state goes on from all of it, not from a part."""
    over = np.flatnonzero((ran.numbers < 0) | (ran.numbers > np.minimum(ran.ends, ran.known)))
    short = over[:0]
    if registry.setup.state_groups:
        ending, last = list(registry.in_flight.ending), registry.in_flight.last
        goes_on = (ran.numbers < ran.ends) & (last[ran.rows] > step.number) & ~np.isin(ran.rows, ending)
        short = np.flatnonzero(goes_on)
    if not len(over) and not len(short):
        return
    place = int(over[0] if len(over) else short[0])
    row, number, end, known = (array.item(place) for array in (ran.rows, ran.numbers, ran.ends, ran.known))
    ask = f"commit of {number} tokens of sequence {shown(registry.sequence_in(row))} in step {step.number}"
    if not len(over):
        fact = f"it was handed out up to {end}, and a later step goes on from the state there"
        raise StateError(say(ask, fact, "commit all of it, or fail the later step first"))
    fact = f"it was handed out up to {end}, and {known} are known"
    raise InputError(say(ask, fact, "pass no more, and with each commit the tokens that the step has made"))


def _end(registry: Registry, rows: Int32, now: int) -> None:
    """Of these rows, those in no step any more are given up now if they were released."""
    flight = registry.in_flight
    for row in rows[~flight.have(rows)].tolist() if flight.ending else ():
        ending = flight.ending.pop(row, None)
        if ending is not None:
            if flight.coming:
                flight.get_off({row})
            end_row(registry, row, ending, now)
