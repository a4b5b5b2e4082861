"""Hold: pages of a sequence kept beyond its release, for a transfer that still reads them. Knows no peers."""

from __future__ import annotations

import numpy as np

from quire.core.records.errors import BrokenInvariant, InputError, StateError, UnknownError, say, shown
from quire.core.records.request import Int32
from quire.core.records.span import Span
from quire.core.state.sequence import Sequence
from quire.core.state.state import State


class Hold:
    """Pages of one span, per group. They stay where they are until `Cache.drop` gives them up."""

    __slots__ = ("blocks", "dropped", "pages", "slots", "span", "state")

    def __init__(self, state: State, span: Span, blocks: tuple[Int32, ...], pages: tuple[Int32, ...]) -> None:
        self.state = state
        self.span = span
        self.blocks = blocks  # which blocks they are of: a group that forgets has not all of them
        self.pages = pages
        self.slots = tuple(_slots(state, group, held) for group, held in enumerate(pages))  # on the device
        self.dropped = False

    def __repr__(self) -> str:
        state = "dropped" if self.dropped else f"{[len(pages) for pages in self.pages]} pages"
        return f"Hold([{self.span.start}, {self.span.end}), {state})"


def hold(state: State, sequence: Sequence, row: int, span: Span) -> Hold | None:
    """Hold the pages that cover `span`, of a state group the current state when `span` ends with it, of cross all.

    A state is not held while more is handed out than computed: a step may have moved it on.
    None when pages of an unfinished prompt would have to stay that were promised to make room.
    """
    if not isinstance(span, Span):
        raise InputError(say(f"hold of {shown(span)}", "it is no Span", "pass Span(start, end)"))
    paged = [group for group in state.own_groups if not state.layers[group].current]
    capacity = min((sequence.capacity(group) for group in paged), default=sequence.length)
    if span.end > capacity:
        fact = f"sequence {shown(sequence.id)} has slots for {capacity} tokens"
        raise StateError(say(f"hold of tokens [{span.start}, {shown(span.end)})", fact, "hold less"))
    first = span.start // state.block_size
    last = max(first, -(-span.end // state.block_size)) if span else first
    if _breaks_a_promise(state, sequence, (first, last)):
        return None
    blocks = tuple(_blocks(state, group, row, (first, last)) for group in state.groups)
    pages = tuple(_hold_group(state, group, row, held) for group, held in enumerate(blocks))
    blocks = tuple(held[: len(had)] for held, had in zip(blocks, pages, strict=True))  # less a state that went on
    made = Hold(state, span, blocks, pages)
    state.holds[made] = None
    return made


def _breaks_a_promise(state: State, sequence: Sequence, columns: tuple[int, int]) -> bool:
    """Own pages of an unfinished prompt were promised to make room for its later ones; held, they need that much."""
    if not state.bounded or sequence.granted >= sequence.prompt_end:
        return False
    first, last = max(columns[0], sequence.start // state.block_size), columns[1]
    for group in state.own_groups:
        if state.layers[group].bounded and not state.layers[group].current:
            pages = state.store.pages[group][sequence.row, first : max(first, last)]
            if np.count_nonzero(pages >= 0) > state.available(group):
                return True
    return False


def _blocks(state: State, group: int, row: int, columns: tuple[int, int]) -> Int32:
    """Blocks the row has a page of; of a state group the one that its current state ends."""
    store, place = state.pools[group]
    first, last = columns if group < state.own_groups.stop else (0, int(store.capacity[place][row]))
    if state.layers[group].current:
        computed = int(store.computed[row])
        ends = first * state.block_size < computed <= last * state.block_size
        return np.array([(computed - 1) // state.block_size] if ends else [], np.int32)
    return (np.flatnonzero(store.pages[place][row, first:last] >= 0) + first).astype(np.int32)


def _hold_group(state: State, group: int, row: int, blocks: Int32) -> Int32:
    store, place = state.pools[group]
    if not len(blocks):
        return blocks
    held = store.hold(place, row, int(blocks[0]), int(blocks[-1]) + 1)
    if held is None or (len(held) != len(blocks) and not state.layers[group].current):
        raise BrokenInvariant(f"hold of blocks {blocks.tolist()} of row {row}: their room was counted before")
    return held


def _slots(state: State, group: int, pages: Int32) -> Int32:
    store, place = state.pools[group]
    return np.fromiter((store.page_slots(place, page)[0] for page in pages.tolist()), np.int32, len(pages))


def _unhold(state: State, group: int, pages: Int32, now: int) -> None:
    store, place = state.pools[group]
    store.unhold(place, pages, now)


def drop(state: State, held: Hold) -> None:
    """Give up a hold, once."""
    if not isinstance(held, Hold):
        raise InputError(say(f"drop of a {type(held).__name__}", "it is no Hold", "pass what hold returned"))
    if held.state is not state:
        raise UnknownError(say("drop of a hold", "another cache made it", "drop it there"))
    if held.dropped:
        raise StateError(say("drop of a hold", "it was dropped before", "drop it once"))
    now = state.now()  # before the first change: a caller's clock may raise
    held.dropped = True
    state.holds.pop(held, None)
    for group, pages in enumerate(held.pages):
        _unhold(state, group, pages, now)
