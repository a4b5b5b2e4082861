"""Charge: what a request takes of every layer group, at its peak, and what it asks of the store. Knows no pages.

Groups that keep everything get the whole prompt's pages at once. Groups that forget get them step by step; what later
steps will hold at once is promised: the store keeps that many slots from everybody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.admission.prepare import Prepared, Purpose
from quire.core.records.groups import LayerGroup
from quire.core.state.state import State

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
        end, chunk = max(start, prepared.reaches[group]), chunk_of(state, prepared, group)
        known = state.layers[group].peak(start, end, chunk, state.block_size, prepared.marks)
        prepared.peaks[group, start] = known
    return known


def takes(state: State, prepared: Prepared, hit: Hit) -> tuple[int, ...]:
    """Device slots per group, at the peak, that computing takes on top of the hit's own pages."""
    if state.plain:
        return (prepared.blocks - hit.blocks + prepared.spare,) * len(prepared.reaches)
    counts = []
    for group in state.own_groups:
        layer, own = state.layers[group], peak(state, prepared, group, hit.start)
        counts.append(own + layer.current + _spare(state, prepared, layer))
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
    start, asked = hit.start, []
    for group in state.own_groups:
        first, stop, promised = _stored(state, prepared, group, start, (start, max(end, start)))
        asked.append((first, stop, promised, _spare(state, prepared, state.layers[group])))
    return asked


def decode_asks(state: State, prepared: Prepared) -> list[Ask]:
    """What the store shall give a sequence that only decodes: room for what a transfer brings."""
    asked: list[Ask] = []
    for group, layer in enumerate(state.layers[: state.own_groups.stop]):
        room = layer.room_at(prepared.end, prepared.reaches[group], state.block_size)
        asked.append((room.start, room.end, 0, _spare(state, prepared, layer)))
    return asked


def later_asks(state: State, prepared: Prepared, origin: int, span: tuple[int, int]) -> list[Ask]:
    """What a running prompt, computed from `origin` on, gets for its next step."""
    asked: list[Ask] = []
    for group in state.own_groups:
        bounded = state.layers[group].bounded
        first, stop, promised = _stored(state, prepared, group, origin, span) if bounded else (0, 0, 0)
        asked.append((first, stop, promised, 0))
    return asked


def _stored(state: State, prepared: Prepared, group: int, origin: int, span: tuple[int, int]) -> tuple[int, int, int]:
    """Columns, from and to, that get pages for this step, and the peak promised for later ones.

    With the last step, and where nothing is forgotten, all pages up to the very end, and no promise.
    """
    layer, (start, end) = state.layers[group], span
    if layer.bounded and end < prepared.end:
        return (*layer.stored_at(start, end, state.block_size, prepared.marks), peak(state, prepared, group, origin))
    return (*layer.stored_at(start, max(start, prepared.reaches[group]), state.block_size, prepared.marks), 0)


def _spare(state: State, prepared: Prepared, layer: LayerGroup) -> int:
    """Pages set aside for the beams that the prompt will be forked into."""
    beams = prepared.request.beams
    return (beams - 1) * layer.forked(prepared.end, state.block_size) if beams > 1 else 0


def worst(state: State, prepared: Prepared, group: int, purpose: Purpose) -> int:
    """Device pages it may ever hold at once."""
    if group >= state.own_groups.stop:
        return 0 if prepared.encoder is None else prepared.encoder.blocks
    request, layer = prepared.request, state.layers[group]
    behind, always = (request.extra_tokens, 0) if layer.extra_tokens is None else (0, layer.extra_tokens)
    longest = prepared.length + max(behind, prepared.new_tokens) + always
    reach = prepared.reaches[group]
    if layer.current and not prepared.keep:
        return request.beams
    if purpose == "decode":
        return layer.most_decoding((prepared.end, reach, longest), request.beams, state.block_size)
    chunk = chunk_of(state, prepared, group)
    return layer.most((prepared.end, reach, longest), request.beams, state.block_size, chunk)
