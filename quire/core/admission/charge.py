"""Charge: what a request takes of every layer group, at its peak, and what it asks of the store. Knows no pages.

Groups that keep everything get the whole prompt's pages at once. Groups that forget get them step by step; what later
steps will hold at once is reserved: the store keeps that many slots from all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.records.groups import (
    LayerGroup,
    Lengths,
    forked_pages,
    most_decoding,
    peak_pages,
    room_at,
    stored_at,
    yields_its_end,
)
from quire.core.state.prepared import Purpose, ReadyRequest
from quire.core.state.setup import Setup

if TYPE_CHECKING:
    from quire.core.store.interface import Hit

Ask = tuple[int, int, int, int]  # of one group: first and last column to fill, reserved peak, spare pages
Need = tuple[int, int, int]  # of one group: leading blocks, then first and last of the others
Owned = tuple[int, ...]  # by group: pages of its hit that a sequence alone had when it was seated; empty: none of any
NOTHING: Owned = ()


def chunk_of(setup: Setup, prepared: ReadyRequest, group: int) -> int | None:
    """Tokens one step may add in a group: the last one makes room for what follows the prompt."""
    chunk = setup.config.max_chunk
    return None if chunk is None else chunk + prepared.reaches[group] - prepared.end


def peak(setup: Setup, prepared: ReadyRequest, group: int, start: int, held: int = 0) -> int:
    """Own pages of a group held at once while the prompt is computed from `start` on; so many are held at first."""
    known = prepared.peaks.get((group, start, held))
    if known is None:
        end, chunk = max(start, prepared.reaches[group]), chunk_of(setup, prepared, group)
        known = peak_pages(setup.layers[group], start, end, chunk, setup.block_size, marks=prepared.marks, held=held)
        prepared.peaks[group, start, held] = known
    return known


def spared(setup: Setup, prepared: ReadyRequest, group: int, start: int, alone: int) -> int:
    """Slots that it saves because no other row has so many pages of its hit: they make room when they leave."""
    if not alone:
        return 0
    return peak(setup, prepared, group, start) + alone - peak(setup, prepared, group, start, alone)


def takes(setup: Setup, prepared: ReadyRequest, hit: Hit) -> tuple[int, ...]:
    """Device slots per group, at the peak, that computing takes on top of the hit's own pages."""
    if setup.only_full:
        return (prepared.blocks - hit.blocks + prepared.spare,) * len(prepared.reaches)
    counts = []
    for group in setup.own_groups:
        layer, own = setup.layers[group], peak(setup, prepared, group, hit.start)
        counts.append(own + layer.current + _spare(setup, prepared, layer))
    return tuple(counts)


def decode_takes(setup: Setup, prepared: ReadyRequest, hit: Hit) -> tuple[int, ...]:
    """The same for a sequence that only decodes: pages for what it needs and does not hold."""
    size, counts = setup.block_size, []
    for group, (first, stop, _, spare) in enumerate(decode_asks(setup, prepared)):
        layer = setup.layers[group]
        held = 0 if layer.current else len(hit.held(group))
        counts.append(min(layer.sink(size), first) + stop - first - held + layer.current + spare)
    return tuple(counts)


def needs(setup: Setup, prepared: ReadyRequest) -> list[Need]:
    """Blocks of every group that decoding after the prompt reads."""
    found = []
    for group in setup.own_groups:
        spans = setup.layers[group].needs_at(prepared.end, setup.block_size)
        sink = spans[0].end if len(spans) > 1 else 0
        found.append((sink, spans[-1].start, spans[-1].end) if spans else (0, 0, 0))
    return found


def asks(setup: Setup, prepared: ReadyRequest, hit: Hit, end: int, owned: Owned = NOTHING) -> list[Ask]:
    """What the store shall give a new sequence that computes up to `end` in its first step."""
    if setup.only_full:
        return [(hit.blocks, prepared.blocks, 0, prepared.spare)] * len(prepared.reaches)
    start, asked = hit.start, []
    for group in setup.own_groups:
        begun = (start, owned[group] if owned else 0)
        first, stop, reserved = _stored(setup, prepared, group, begun, (start, max(end, start)), 1)
        asked.append((first, stop, reserved, _spare(setup, prepared, setup.layers[group])))
    return asked


def decode_asks(setup: Setup, prepared: ReadyRequest) -> list[Ask]:
    """What the store shall give a sequence that only decodes: room for what a transfer brings."""
    asked: list[Ask] = []
    for group, layer in enumerate(setup.layers[: setup.own_groups.stop]):
        room = room_at(layer, prepared.end, prepared.reaches[group], setup.block_size)
        asked.append((room.start, room.end, 0, _spare(setup, prepared, layer)))
    return asked


def later_asks(
    setup: Setup, prepared: ReadyRequest, origin: int, span: tuple[int, int], owned: Owned = NOTHING
) -> list[Ask]:
    """What a running prompt, computed from `origin` on, gets for its next step."""
    asked: list[Ask] = []
    for group in setup.own_groups:
        bounded = setup.layers[group].bounded
        begun = (origin, owned[group] if owned else 0)
        first, stop, reserved = _stored(setup, prepared, group, begun, span, 0) if bounded else (0, 0, 0)
        asked.append((first, stop, reserved, 0))
    return asked


def _stored(
    setup: Setup, prepared: ReadyRequest, group: int, begun: tuple[int, int], span: tuple[int, int], taken: int
) -> tuple[int, int, int]:
    """Columns, from and to, that get pages for this step, and the peak reserved for later ones; `begun`: from where,
    with how many pages that no other row had; `taken`: slots that are taken first, of what is not reserved for it.

    With the last step, and where nothing is forgotten, all pages up to the very end, and no reserve.
    """
    layer, (start, end) = setup.layers[group], span
    if layer.bounded and end < prepared.end:
        return (*stored_at(layer, start, end, setup.block_size, prepared.marks), peak(setup, prepared, group, *begun))
    reserved = peak(setup, prepared, group, *begun) if layer.snapshot_inside else 0  # until its snapshots are opened
    first, stop = stored_at(layer, start, max(start, prepared.reaches[group]), setup.block_size, prepared.marks)
    beside = beside_end(setup, prepared, group, start) if layer.current and first < stop else -1
    return stop if beside >= 0 and setup.available(group) < taken + beside else first, stop, reserved


def beside_end(setup: Setup, prepared: ReadyRequest, group: int, start: int) -> int:
    """Slots that must be left where a step from `start` on takes one for the state at the prompt's end, -1: no matter.

    The one before it more likely resumes: the identical prompt does. It goes down where there are colder slots.
    """
    marks = prepared.marks
    if marks is None or not yields_its_end(setup.layers[group], marks, setup.block_size):
        return -1
    if start < marks.end:
        return 0  # the step writes both
    colder = any(setup.config.slots_of(tier, group) for tier in range(1, len(setup.config.tiers)))
    return -1 if colder else 1


def _spare(setup: Setup, prepared: ReadyRequest, layer: LayerGroup) -> int:
    """Pages set aside for the beams that the prompt will be forked into."""
    beams = prepared.request.beams
    return (beams - 1) * forked_pages(layer, prepared.end, setup.block_size) if beams > 1 else 0


def worst(setup: Setup, prepared: ReadyRequest, group: int, purpose: Purpose) -> int:
    """Device pages it may ever hold at once."""
    if group >= setup.own_groups.stop:
        return 0 if prepared.encoder is None else prepared.encoder.blocks
    request, layer = prepared.request, setup.layers[group]
    behind, always = (request.extra_tokens, 0) if layer.extra_tokens is None else (0, layer.extra_tokens)
    longest = prepared.length + max(behind, prepared.new_tokens) + always
    lengths = Lengths(prepared.end, prepared.reaches[group], longest)
    if layer.current and not prepared.keep:
        return request.beams
    if purpose == "decode":
        return most_decoding(layer, lengths, request.beams, setup.block_size)
    return layer.most(lengths, request.beams, setup.block_size, chunk_of(setup, prepared, group))
