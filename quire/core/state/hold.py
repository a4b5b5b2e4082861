"""Hold: pages of a sequence kept beyond its release, for a transfer that still reads them. Knows no peers."""

from __future__ import annotations

from quire.core.records.request import Int32
from quire.core.records.span import Span
from quire.core.state.setup import Setup


class Hold:
    """Pages of one span, per group. They stay where they are until `Cache.drop` gives them up."""

    __slots__ = ("_setup", "blocks", "dropped", "pages", "slots", "span")

    def __init__(self, setup: Setup, span: Span, blocks: tuple[Int32, ...], pages: tuple[Int32, ...]) -> None:
        self._setup = setup
        self.span = span
        self.blocks = blocks  # which blocks they are of: a group that forgets has not all of them
        self.pages = pages
        self.slots = tuple(_slots(setup, group, held) for group, held in enumerate(pages))  # on the device
        self.dropped = False

    def __repr__(self) -> str:
        state = "dropped" if self.dropped else f"{[len(pages) for pages in self.pages]} pages"
        return f"Hold([{self.span.start}, {self.span.end}), {state})"


def is_made_by(setup: Setup, held: Hold) -> bool:
    """Whether this cache made it."""
    return held._setup is setup


def _slots(setup: Setup, group: int, pages: Int32) -> Int32:
    store, place = setup.pools[group]
    return store.slots_in(place, 0, pages)
