"""Hold: pages of a sequence kept beyond its release, for a transfer that still reads them. Knows no peers."""

from __future__ import annotations

from quire.core.errors import StateError, say
from quire.core.request import Int32
from quire.core.sequence import Sequence
from quire.core.span import Span
from quire.core.state import State


class Hold:
    """Pages of one span, per group. They stay where they are until `Cache.drop` gives them up."""

    __slots__ = ("dropped", "pages", "slots", "span")

    def __init__(self, span: Span, pages: tuple[Int32, ...], slots: tuple[Int32, ...]) -> None:
        self.span = span
        self.pages = pages
        self.slots = slots  # device slots, in block order
        self.dropped = False


def hold(state: State, sequence: Sequence, row: int, span: Span) -> Hold:
    """Hold the pages that cover `span`."""
    capacity = sequence.capacity()
    if span.end > capacity:
        fact = f"sequence {sequence.id!r} has slots for {capacity} tokens"
        raise StateError(say(f"hold of tokens [{span.start}, {span.end})", fact, "hold less"))
    first, last = span.start // state.config.block_size, state.config.blocks(span.end) if span else 0
    groups = range(len(state.config.groups))
    slots = tuple(state.store.slots[group][row, first:last].copy() for group in groups)
    held = Hold(span, tuple(state.store.hold(group, row, first, max(first, last)) for group in groups), slots)
    state.holds.add(held)
    return held


def drop(state: State, held: Hold) -> None:
    """Give up a hold, once."""
    if held.dropped:
        raise StateError(say("drop of a hold", "it was dropped before", "drop it once"))
    held.dropped = True
    state.holds.discard(held)
    for group, pages in enumerate(held.pages):
        state.store.unhold(group, pages, state.now())
