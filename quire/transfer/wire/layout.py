"""Layout: what one worker's pages look like, described for its peers; why two of them do not fit. Knows no sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire.core.records.errors import InputError, say
from quire.transfer.geometry.ranks import Grid, Seat
from quire.transfer.geometry.shards import PageShape, Section, Shard, gaps, misfit, opaque, overlap, short
from quire.transfer.views.view import CacheShape
from quire.transfer.wire.messages import Hello, WirePage, WireSection

PER_GROUP = "per-group wants"
MAX_RANKS = 1 << 16  # of one instance


@dataclass(frozen=True, slots=True)
class Layout:
    """One rank: facts that must be equal on both sides, its place, its pages, what it can do."""

    name: str
    facts: Mapping[str, str]
    pages: tuple[PageShape, ...]
    grid: Grid = field(default_factory=Grid)
    rank: int = 0
    can: tuple[str, ...] = (PER_GROUP,)

    def __repr__(self) -> str:
        pages = [page.page_bytes for page in self.pages]
        return f"Layout({self.name!r}, rank {self.rank} of {self.grid.num_ranks}, pages of {pages} bytes)"

    @property
    def seat(self) -> Seat:
        """Its place in the grid."""
        return self.grid.seat(self.rank)


def layout_of(
    shape: CacheShape, name: str, *, model: str = "", dtype: str = "", pages: Sequence[PageShape] | None = None,
    grid: Grid | None = None, rank: int = 0, can: tuple[str, ...] = (PER_GROUP,),
) -> Layout:  # fmt: skip
    """The layout of a cache's pages; without `pages` a page is moved as it is."""
    shapes = tuple(opaque(group.page_bytes) for group in shape.groups) if pages is None else tuple(pages)
    sizes = [page.page_bytes for page in shapes]
    if len(shapes) != len(shape.groups) or sizes != [group.page_bytes for group in shape.groups]:
        fact = f"groups have pages of {[group.page_bytes for group in shape.groups]} bytes, the layout of {sizes}"
        raise InputError(say(f"layout {name!r}", fact, "describe every group's page to the byte"))
    facts = {"block size": str(shape.block_size), "model": model, "dtype": dtype}
    facts["a state stands after"] = "the whole prompt"
    for number, group in enumerate(shape.groups):
        facts[f"group {number}"] = f"{group.name}: {group.kind}, window {group.window}, sinks {group.sinks}"
    return Layout(name, facts, shapes, grid or Grid(), rank, can)


def misfits(mine: Layout, theirs: Layout) -> str | None:
    """What differs, fact by fact; None when pages can go from one to the other."""
    names = sorted({*mine.facts, *theirs.facts})
    wrong = [
        f"{name}: {mine.facts.get(name)!r} here, {theirs.facts.get(name)!r} there"
        for name in names
        if mine.facts.get(name) != theirs.facts.get(name)
    ]
    if len(mine.pages) != len(theirs.pages):
        wrong.append(f"{len(mine.pages)} groups here, {len(theirs.pages)} there")
    else:
        shapes = (misfit(here, there) for here, there in zip(mine.pages, theirs.pages, strict=True))
        wrong += [f"group {nth}: {why}" for nth, why in enumerate(shapes) if why is not None]
    return "; ".join(wrong)[:1000] or None


def uncovered(mine: Layout, writers: Sequence[Layout]) -> str | None:
    """Which bytes of a page here none of these peers would fill; None when together they fill every byte."""
    for group, page in enumerate(mine.pages):
        sent = [overlap(theirs.pages[group], page, mine.seat.group) for theirs in writers]
        missing = gaps(page.page_bytes, [fragment for fragments in sent for fragment in fragments])
        if missing:
            first, there = missing[0], sorted({layer for peer in writers for layer in peer.pages[group].layers})
            more = f" and {len(missing) - 1} more parts" if len(missing) > 1 else ""
            layers = f"layers {short(page.layers)} here, {short(there)} there"
            return f"bytes [{first.start}, {first.end}){more} of group {group}'s page have no sender: {layers}"
    return None


def hello(layout: Layout) -> Hello:
    """The layout for the wire."""
    pages = tuple(WirePage(page.layers, tuple(map(_section, page.sections))) for page in layout.pages)
    grid = layout.grid
    ranks = (grid.tensor, grid.stages, grid.groups, grid.context)
    return Hello(layout.name, dict(layout.facts), ranks, layout.rank, pages, layout.can)


def _section(section: Section) -> WireSection:
    shard = section.shard
    parts = (shard.count, shard.index, shard.replicas, shard.replica)
    return WireSection(section.name, section.num_bytes, parts, section.rows)


def from_hello(message: Hello) -> Layout:
    """The layout back; checked."""
    pages = tuple(
        PageShape(page.layers, tuple(Section(s.name, s.num_bytes, Shard(*s.shard), s.rows) for s in page.sections))
        for page in message.pages
    )
    tensor, stages, groups, context = message.ranks
    grid = Grid(tensor, stages, groups, context)
    if grid.num_ranks > MAX_RANKS:
        raise InputError(say("ranks of a peer", f"there are {grid.num_ranks}", f"use at most {MAX_RANKS}"))
    layout = Layout(message.name, message.facts, pages, grid, message.rank, message.can)
    layout.grid.seat(layout.rank)
    return layout
