"""Slices: blocks of one prompt by ordinal, group by group. Owns every rule of alignment. Knows no peers and no bytes.

ordinal    0   1   2   3   4          a list has one place per block of the prompt; -1: no slot
source    -1  -1  12  13  14          as runs: (2, [12, 13, 14])
target    -1  -1  -1   7   8          as runs: (3, [7, 8])
moved                13->7 14->8      where both have a slot; nothing is guessed from the length of a list
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, say
from quire.core.records.groups import LayerGroup
from quire.core.records.span import Span, merged, without

NONE = -1
Places = NDArray[np.int32]  # slot by ordinal
Spans = tuple[Span, ...]  # of blocks


class BlockRun(NamedTuple):
    """Slots of consecutive blocks, from the ordinal `first` on."""

    first: int
    slots: tuple[int, ...]


def num_blocks(length: int, size: int) -> int:
    """Blocks that `length` tokens take."""
    return -(-length // size)


def nowhere(blocks: int) -> Places:
    """A list without any slot."""
    return np.full(blocks, NONE, np.int32)


def run_at(token: int, slots: Sequence[int], size: int) -> BlockRun:
    """Slots whose first block starts at `token`, which must be an edge: rounding would shift every pair."""
    if token % size:
        raise InputError(say(f"blocks from token {token}", f"blocks start every {size} tokens", "name a block's edge"))
    return BlockRun(token // size, tuple(slots))


def places_of(runs: Iterable[BlockRun], blocks: int) -> Places:
    """One place per block of the prompt. Runs ascend, and name no block twice."""
    places, end = nowhere(blocks), 0
    for first, slots in runs:
        if first < end or first + len(slots) > blocks or min(slots, default=0) < 0:
            fact = f"the prompt has {blocks} blocks, the runs before it end at {end}"
            raise InputError(say(f"a run of {len(slots)} blocks from {first}", fact, "give ascending runs of slots"))
        places[first : first + len(slots)] = slots
        end = first + len(slots)
    return places


def runs_of(places: Places) -> tuple[BlockRun, ...]:
    """The same as runs, for the wire."""
    return tuple(BlockRun(span.start, tuple(places[span.start : span.end].tolist())) for span in spans_of(places))


def spans_of(places: Places) -> Spans:
    """Blocks that have a slot."""
    return spans_at(np.flatnonzero(places >= 0))


def spans_at(ordinals: NDArray[np.intp]) -> Spans:
    """Ascending ordinals as spans."""
    if not len(ordinals):
        return ()
    breaks = np.flatnonzero(np.diff(ordinals) != 1)
    starts, ends = ordinals[np.r_[0, breaks + 1]], ordinals[np.r_[breaks, len(ordinals) - 1]]
    return tuple(Span(int(start), int(end) + 1) for start, end in zip(starts, ends, strict=True))


def only(places: Places, spans: Spans) -> Places:
    """What is left of a list inside `spans`."""
    kept = nowhere(len(places))
    for span in spans:
        kept[span.start : span.end] = places[span.start : span.end]
    return kept


def pairs(source: Places, target: Places) -> NDArray[np.intp]:
    """Ordinals that move: both sides have a slot. Pair first, translate to addresses afterwards."""
    if len(source) != len(target):
        fact = f"one side has {len(source)} blocks, the other {len(target)}"
        raise InputError(say("pairing two lists", fact, "agree on the prompt and the block size"))
    return np.flatnonzero((source >= 0) & (target >= 0))


def num_pages(spans: Iterable[Span]) -> int:
    """How many blocks the spans name."""
    return sum(len(span) for span in spans)


# -- the lists of other caches ---------------------------------------------------------------------------------------


def offered(
    group: LayerGroup, run: BlockRun, length: int, size: int, *, evicted: int = 0, done: int | None = None
) -> Places:
    """A block list as it comes from a cache, cut to what may be read of the prompt.

    The order matters: first what lies behind the prompt goes (room for drafts, the block of a sampled token), then what
    was evicted (`evicted` counts the leading blocks, sinks aside) and what no query after the prompt reads. Slots of
    these are never looked at: they may belong to another. A hole among the rest, as far as `done` tokens are computed,
    is an error.
    """
    blocks = num_blocks(length, size)
    ready = blocks if done is None or done >= length else done // size
    sink = Span(0, min(group.sink(size), blocks))
    gone = merged(Span(sink.end, max(sink.end, min(evicted, blocks))))
    needed = group.needs_at(length, size)
    kept = without(needed, (*gone, Span(min(ready, blocks), blocks)))
    places = nowhere(blocks)
    for span in kept:
        for block in range(span.start, span.end):
            place = block - run.first
            if not 0 <= place < len(run.slots) or run.slots[place] < 0:
                fact = f"block {block} has no slot, and it is neither evicted nor out of reach"
                raise InputError(say(f"a block list of group {group.name!r}", fact, "give every block that is held"))
            places[block] = run.slots[place]
    return places
