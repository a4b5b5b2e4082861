"""Hold: pages of a sequence kept beyond its release, for a transfer that still reads them. Knows no peers."""

from __future__ import annotations

from quire.core.errors import InputError, StateError, UnknownError, say
from quire.core.request import Int32
from quire.core.sequence import Sequence
from quire.core.span import Span
from quire.core.state import State


class Hold:
    """Pages of one span, per group. They stay where they are until `Cache.drop` gives them up."""

    __slots__ = ("dropped", "pages", "slots", "span", "state")

    def __init__(self, state: State, span: Span, pages: tuple[Int32, ...], slots: tuple[Int32, ...]) -> None:
        self.state = state
        self.span = span
        self.pages = pages
        self.slots = slots  # device slots, in block order
        self.dropped = False


def hold(state: State, sequence: Sequence, row: int, span: Span) -> Hold:
    """Hold the pages that cover `span`."""
    if not isinstance(span, Span):
        raise InputError(say(f"hold of {span!r}", "it is no Span", "pass Span(start, end)"))
    capacity = sequence.capacity()
    if span.end > capacity:
        fact = f"sequence {sequence.id!r} has slots for {capacity} tokens"
        raise StateError(say(f"hold of tokens [{span.start}, {span.end})", fact, "hold less"))
    first, last = span.start // state.config.block_size, state.config.blocks(span.end) if span else 0
    groups = range(len(state.config.groups))
    slots = tuple(state.store.slots[group][row, first:last].copy() for group in groups)
    held = Hold(state, span, tuple(state.store.hold(group, row, first, max(first, last)) for group in groups), slots)
    state.holds[held] = None
    return held


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
        state.store.unhold(group, pages, now)
