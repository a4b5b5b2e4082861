"""Holding pages of a sequence beyond its release, and giving them up. Knows no peers."""

from __future__ import annotations

import numpy as np

from quire.core.records.errors import BrokenInvariant, InputError, StateError, UnknownError, say, shown
from quire.core.records.request import Int32
from quire.core.records.span import Span
from quire.core.state.hold import Hold, is_made_by
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence, own_row, running_of
from quire.core.state.setup import Setup


def hold_pages(registry: Registry, sequence: Sequence, span: Span) -> Hold | None:
    """Hold the pages that cover `span`, of a state group the current state when `span` ends with it, of cross all.

    A state is not held while more is handed out than computed: a step may have moved it on.
    None when pages of an unfinished prompt would have to stay that are to make room.
    """
    setup = registry.setup
    row = own_row(setup, sequence)
    if not isinstance(span, Span):
        raise InputError(say(f"hold of {shown(span)}", "it is not a Span", "pass Span(start, end)"))
    paged = [group for group in setup.own_groups if not setup.layers[group].current]
    capacity = min((sequence.capacity(group) for group in paged), default=max(sequence.length, sequence.ran))
    if span.end > capacity:
        fact = f"sequence {shown(sequence.id)} has slots for {capacity} tokens"
        raise StateError(say(f"hold of tokens [{span.start}, {shown(span.end)})", fact, "hold less"))
    first = span.start // setup.block_size
    last = max(first, -(-span.end // setup.block_size)) if span else first
    if _takes_from_the_reserve(setup, sequence, (first, last)):
        return None
    blocks = tuple(_blocks(setup, group, row, (first, last)) for group in setup.groups)
    pages = tuple(_hold_group(setup, group, row, held) for group, held in enumerate(blocks))
    blocks = tuple(held[: len(had)] for held, had in zip(blocks, pages, strict=True))  # less a state that moved on
    made = Hold(setup, span, blocks, pages)
    registry.holds[made] = None
    return made


def _takes_from_the_reserve(setup: Setup, sequence: Sequence, columns: tuple[int, int]) -> bool:
    """Own pages of an unfinished prompt are to make room for its later ones; held, they need that much."""
    running = running_of(sequence)
    if not setup.bounded or running.granted >= sequence.prompt_end:
        return False
    wanted = [0] * len(setup.sharers)
    for group in setup.windows:
        own = sequence.start // setup.block_size - running.owned[group]
        first = max(columns[0], own)
        pages = setup.store.pages[group][sequence.row, first : max(first, columns[1])]
        wanted[setup.pool_of[group]] += int(np.count_nonzero(pages >= 0))
    return any(need and need > setup.available(some[0]) for need, some in zip(wanted, setup.sharers, strict=True))


def _blocks(setup: Setup, group: int, row: int, columns: tuple[int, int]) -> Int32:
    """Blocks the row has a page of; of a state group the one that its current state ends."""
    store, place = setup.pools[group]
    first, last = columns if group < setup.own_groups.stop else (0, int(store.capacity[place][row]))
    if setup.layers[group].current:
        computed = int(store.computed[row])
        ends = first * setup.block_size < computed <= last * setup.block_size
        return np.array([(computed - 1) // setup.block_size] if ends else [], np.int32)
    return (np.flatnonzero(store.pages[place][row, first:last] >= 0) + first).astype(np.int32)


def _hold_group(setup: Setup, group: int, row: int, blocks: Int32) -> Int32:
    store, place = setup.pools[group]
    if not len(blocks):
        return blocks
    held = store.hold(place, row, int(blocks[0]), int(blocks[-1]) + 1)
    if held is None or (len(held) != len(blocks) and not setup.layers[group].current):
        raise BrokenInvariant(f"hold of blocks {blocks.tolist()} of row {row}: their room was counted before")
    return held


def drop_hold(registry: Registry, held: Hold) -> None:
    """Give up a hold, once."""
    if not isinstance(held, Hold):
        raise InputError(say(f"drop of a {type(held).__name__}", "it is not a Hold", "pass what hold returned"))
    setup = registry.setup
    if not is_made_by(setup, held):
        raise UnknownError(say("drop of a hold", "another cache made it", "drop it there"))
    if held.dropped:
        raise StateError(say("drop of a hold", "it was dropped before", "drop it once"))
    now = setup.now()  # before the first change: a caller's clock may raise
    held.dropped = True
    registry.holds.pop(held, None)
    for (store, place), pages in zip(setup.pools, held.pages, strict=True):
        store.unhold(place, pages, now)
