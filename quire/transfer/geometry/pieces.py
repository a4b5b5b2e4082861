"""Pieces: how a sender cuts one prompt into parts while it is still being computed. Knows no peers.

chunks computed   |------40------|-7-|-------43-------|---30---|      blocks of 16
pieces            |----32----|         |------48------|---40---|      edges rounded down: every block once
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.records.errors import InputError, say
from quire.core.records.groups import LayerGroup
from quire.core.records.span import Span
from quire.transfer.geometry.slices import Places, nowhere, num_blocks, only


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """One part of a send. `span` is its cursor in tokens; no group's start is read from it.

    `blocks` are those of the groups that keep everything. The last piece also carries the groups that forget.
    """

    span: Span
    blocks: Span
    last: bool


def whole(length: int, size: int) -> PromptPiece:
    """The prompt in one piece."""
    return PromptPiece(Span(0, length), Span(0, num_blocks(length, size)), True)


def piece_of(chunk: Span, length: int, size: int, *, last: bool, begun: int = 0) -> PromptPiece | None:
    """What to send after a chunk of tokens was computed; None when no block has become whole.

    `begun` is where the sender's computing began: its first chunk takes the prefix it had cached along.
    """
    if chunk.end > length or (last and chunk.end != length):
        fact = f"the prompt has {length} tokens, the chunk is [{chunk.start}, {chunk.end}), last: {last}"
        raise InputError(say("a piece", fact, "cut chunks inside the prompt; the last one ends with it"))
    start = 0 if chunk.start == begun else chunk.start // size
    stop = num_blocks(length, size) if last else chunk.end // size
    if not last and stop <= start:
        return None
    return PromptPiece(Span(start * size, length if last else stop * size), Span(start, max(start, stop)), last)


def keeps_all(group: LayerGroup, length: int, size: int) -> bool:
    """Decoding needs every block: such a group may be sent while its prompt grows."""
    whole_prompt = (Span(0, num_blocks(length, size)),)
    return not group.current and not group.cross and group.needs_at(length, size) == whole_prompt


def part_of(
    groups: Sequence[LayerGroup], places: Sequence[Places], piece: PromptPiece, length: int, size: int
) -> tuple[Places, ...]:
    """Of every group's list what goes with this piece; what forgets goes with the last, whole."""
    parts = []
    for group, slots in zip(groups, places, strict=True):
        if keeps_all(group, length, size):
            parts.append(only(slots, (piece.blocks,)) if piece.blocks else nowhere(len(slots)))
        else:
            parts.append(slots if piece.last else nowhere(len(slots)))
    return tuple(parts)
