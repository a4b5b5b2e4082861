"""Charge: what a request takes of every layer group, at its peak, and what it asks of the store. Knows no pages.

Groups that keep everything get the whole prompt's pages at once. Groups that forget get them step by step; what later
steps will hold at once is promised: the store keeps that many slots from everybody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.groups import LayerGroup
from quire.core.prepare import Prepared, Purpose
from quire.core.span import Span
from quire.core.state import State

if TYPE_CHECKING:
    from quire.core.store.twin import Hit

Ask = tuple[int, int, int, int]  # of one group: first and last column to fill, promised peak, spare pages
Need = tuple[int, int, int]  # of one group: leading blocks, then first and last of the others


def chunk_of(state: State, prepared: Prepared, group: int) -> int | None:
    """Tokens one step may add in a group: the last one makes room for what follows the prompt."""
    chunk = state.config.max_chunk
    return None if chunk is None else chunk + prepared.reaches[group] - prepared.end


def peak(state: State, prepared: Prepared, group: int, start: int) -> int:
    """Own pages of a group held at once while the prompt is computed from `start` on."""
    known = prepared.peaks.get((group, start))
    if known is None:
        span = Span(start, max(start, prepared.reaches[group]))
        chunk = chunk_of(state, prepared, group)
        known = state.layers[group].peak(span, chunk, state.block_size, prepared.marks)
        prepared.peaks[group, start] = known
    return known


def takes(state: State, prepared: Prepared, hit: Hit) -> tuple[int, ...]:
    """Device slots per group, at the peak, that computing takes on top of the hit's own pages."""
    if state.plain:
        return (prepared.blocks - hit.blocks + prepared.spare,) * len(prepared.reaches)
    size, beams = state.block_size, prepared.request.beams
    counts = []
    for group in state.own_groups:
        layer, own = state.layers[group], peak(state, prepared, group, hit.start)
        counts.append(own + layer.current + (beams - 1) * layer.forked(prepared.end, size))
    return tuple(counts)


def decode_takes(state: State, prepared: Prepared, hit: Hit) -> tuple[int, ...]:
    """The same for a sequence that only decodes: pages for what it needs and does not hold."""
    size, counts = state.block_size, []
    for group, (first, stop, _, spare) in enumerate(decode_asks(state, prepared)):
        layer = state.layers[group]
        held = 0 if layer.current else len(hit.held(group))
        counts.append(min(layer.sink(size), first) + stop - first - held + layer.current + spare)
    return tuple(counts)


def needs(state: State, prepared: Prepared) -> list[Need]:
    """Blocks of every group that decoding after the prompt reads."""
    found = []
    for group in state.own_groups:
        spans = state.layers[group].needs_at(prepared.end, state.block_size)
        sink = spans[0].end if len(spans) > 1 else 0
        found.append((sink, spans[-1].start, spans[-1].end) if spans else (0, 0, 0))
    return found


def asks(state: State, prepared: Prepared, hit: Hit, end: int) -> list[Ask]:
    """What the store shall give a new sequence that computes up to `end` in its first step."""
    if state.plain:
        return [(hit.blocks, prepared.blocks, 0, prepared.spare)] * len(prepared.reaches)
    size, beams = state.block_size, prepared.request.beams
    asked: list[Ask] = []
    for group in state.own_groups:
        layer = state.layers[group]
        stored = _stored(state, prepared, group, Span(hit.start, max(end, hit.start)))
        last = end >= prepared.end or not layer.bounded
        promised = 0 if last else peak(state, prepared, group, hit.start)
        asked.append((stored.start, stored.end, promised, (beams - 1) * layer.forked(prepared.end, size)))
    return asked


def decode_asks(state: State, prepared: Prepared) -> list[Ask]:
    """What the store shall give a sequence that only decodes: room for what a transfer brings."""
    size, beams = state.block_size, prepared.request.beams
    asked: list[Ask] = []
    for group, layer in enumerate(state.layers[: state.own_groups.stop]):
        room = layer.room_at(prepared.end, prepared.reaches[group], size)
        asked.append((room.start, room.end, 0, (beams - 1) * layer.forked(prepared.end, size)))
    return asked


def later_asks(state: State, prepared: Prepared, start: int, span: Span) -> list[Ask]:
    """What a running prompt, computed from `start` on, gets for its next step."""
    asked: list[Ask] = []
    for group in state.own_groups:
        layer = state.layers[group]
        stored = _stored(state, prepared, group, span) if layer.bounded else Span(0, 0)
        last = span.end >= prepared.end or not layer.bounded
        asked.append((stored.start, stored.end, 0 if last else peak(state, prepared, group, start), 0))
    return asked


def _stored(state: State, prepared: Prepared, group: int, span: Span) -> Span:
    """Columns that get pages for this step: with the last step, and where nothing is forgotten, up to the very end."""
    layer: LayerGroup = state.layers[group]
    whole = span.end >= prepared.end or not layer.bounded
    return layer.stored_at(
        Span(span.start, max(span.start, prepared.reaches[group])) if whole else span, state.block_size, prepared.marks
    )


def worst(state: State, prepared: Prepared, group: int, purpose: Purpose) -> int:
    """Device pages it may ever hold at once."""
    if group >= state.own_groups.stop:
        return 0 if prepared.encoder is None else prepared.encoder.blocks
    request, layer = prepared.request, state.layers[group]
    behind, always = (request.extra_tokens, 0) if layer.extra_tokens is None else (0, layer.extra_tokens)
    longest = prepared.length + max(behind, request.max_new_tokens) + always
    reach = prepared.reaches[group]
    if layer.current and not prepared.keep:
        return request.beams
    if purpose == "decode":
        return layer.most_decoding((prepared.end, reach, longest), request.beams, state.block_size)
    chunk = chunk_of(state, prepared, group)
    return layer.most((prepared.end, reach, longest), request.beams, state.block_size, chunk)
