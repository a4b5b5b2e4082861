"""What a frame of changes says: freed slots, blocks and pages, as arrays with their checksums. Owns the bytes of one
payload; knows no file, no order of frames and no tree.

    counts   eight numbers; then each array in turn, at a multiple of 8
    a page   group, slot, block, and the checksum of its bytes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, say
from quire.core.records.lasting import BlockNodes, LastingChanges, LastingPages
from quire.tiers.base import Bytes
from quire.tiers.disk.pages.slots import Sums

NUM_COUNTS = 8
PIECE = 1 << 17  # rows of one frame
PIECE_TOKENS = 4 << 20
FREED, ROOTS, NODES, TOKENS, WORDS, PAGES, ROOT_BYTES, _UNUSED = range(NUM_COUNTS)

NO_NODES = BlockNodes(
    np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int32),
    np.empty((0, 3), np.uint64), np.empty(0, np.int64), (),
)  # fmt: skip
NO_PAGES = LastingPages(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64))
NO_SUMS: Sums = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Changes:
    """One frame's worth: what `LastingChanges` says, and the checksum of every page."""

    changes: LastingChanges
    sums: Sums


def pack_changes(changes: LastingChanges, sums: Sums) -> bytes:
    """As a payload. Requires: one checksum per page."""
    nodes, pages = changes.nodes, changes.pages
    widths = {len(root) for root in nodes.roots}
    if len(widths) > 1 or len(sums) != len(pages.slot):
        fact = f"roots of {sorted(widths)} bytes, {len(pages.slot)} pages, {len(sums)} checksums"
        raise InputError(say("changes for a manifest", fact, "give roots of one size and a checksum per page"))
    width = max(widths, default=0)
    counts = [len(changes.freed_slot), len(nodes.roots), len(nodes.number), len(nodes.tokens), len(nodes.word_at)]
    arrays = (
        (np.array([*counts, len(pages.slot), width, 0]), "<u8"),
        (changes.freed_group, "<i4"),
        (changes.freed_slot, "<i4"),
        (np.frombuffer(b"".join(nodes.roots), np.uint8), "u1"),
        (nodes.number, "<i8"),
        (nodes.parent, "<i8"),
        (np.diff(nodes.start), "<u4"),
        (nodes.tokens, "<i4"),
        (nodes.words.reshape(-1), "<u8"),
        (nodes.word_at, "<i8"),
        (pages.group, "<i4"),
        (pages.slot, "<i4"),
        (pages.node, "<i8"),
        (sums, "<u8"),
    )
    parts = [np.ascontiguousarray(array, dtype).tobytes() for array, dtype in arrays]
    return b"".join(part + bytes(-len(part) % 8) for part in parts)


def payloads(changes: LastingChanges, sums: Sums) -> Iterator[bytes]:
    """The same in pieces that fit into frames: freed slots, then blocks, then pages."""
    nodes, pages = changes.nodes, changes.pages
    rows = max(len(changes.freed_slot), len(nodes.number), len(pages.slot))
    if rows <= PIECE and len(nodes.tokens) + 6 * len(nodes.word_at) <= PIECE_TOKENS:
        yield pack_changes(changes, sums)
        return
    for start in range(0, len(changes.freed_slot), PIECE):
        piece = slice(start, start + PIECE)
        freed = changes.freed_group[piece], changes.freed_slot[piece]
        yield pack_changes(LastingChanges(*freed, NO_NODES, NO_PAGES), NO_SUMS)
    for some in _pieces(nodes):
        yield pack_changes(LastingChanges(NO_PAGES.group, NO_PAGES.slot, some, NO_PAGES), NO_SUMS)
    for start in range(0, len(pages.slot), PIECE):
        piece = slice(start, start + PIECE)
        some_pages = LastingPages(pages.group[piece], pages.slot[piece], pages.node[piece])
        yield pack_changes(LastingChanges(NO_PAGES.group, NO_PAGES.slot, NO_NODES, some_pages), sums[piece])


def _pieces(nodes: BlockNodes) -> Iterator[BlockNodes]:
    """Blocks cut where their tokens would be too many for a frame."""
    weight = nodes.start + 6 * np.searchsorted(nodes.word_at, nodes.start)  # the words of a token are six times as long
    first = 0
    while first < len(nodes.number):
        last = int(np.searchsorted(weight, weight[first] + PIECE_TOKENS, side="right")) - 1
        last = min(max(last, first + 1), first + PIECE)
        begin, end = int(nodes.start[first]), int(nodes.start[last])
        words = slice(*np.searchsorted(nodes.word_at, (begin, end)).tolist())
        parent = nodes.parent[first:last].copy()
        top = parent < 0
        used, renamed = np.unique(-1 - parent[top], return_inverse=True)
        parent[top] = -1 - renamed
        yield BlockNodes(
            nodes.number[first:last], parent, nodes.start[first : last + 1] - begin, nodes.tokens[begin:end],
            nodes.words[words], nodes.word_at[words] - begin, tuple(nodes.roots[nth] for nth in used.tolist()),
        )  # fmt: skip
        first = last


def unpack_changes(payload: Bytes) -> Changes | None:
    """What a payload says, not copied; None when it makes no sense, checksum or not."""
    if len(payload) < 8 * NUM_COUNTS:
        return None
    counts = [int(count) for count in payload[: 8 * NUM_COUNTS].view("<u8")]
    if max(counts) > len(payload):
        return None
    reader = _Reader(payload, 8 * NUM_COUNTS)
    take = reader.take
    freed = take(counts[FREED], "<i4"), take(counts[FREED], "<i4")
    raw_roots = take(counts[ROOTS] * counts[ROOT_BYTES], "u1").tobytes()
    number, parent, length = take(counts[NODES], "<i8"), take(counts[NODES], "<i8"), take(counts[NODES], "<u4")
    tokens, words = take(counts[TOKENS], "<i4"), take(3 * counts[WORDS], "<u8")
    word_at = take(counts[WORDS], "<i8")
    group, slot, node = take(counts[PAGES], "<i4"), take(counts[PAGES], "<i4"), take(counts[PAGES], "<i8")
    sums = take(counts[PAGES], "<u8")
    start = np.concatenate(([0], np.cumsum(length, dtype=np.int64)))
    if reader.here != len(payload) or start[-1] != counts[TOKENS]:
        return None
    width = counts[ROOT_BYTES]
    roots = tuple(raw_roots[nth * width : (nth + 1) * width] for nth in range(counts[ROOTS]))
    nodes = BlockNodes(number, parent, start, tokens, words.reshape(-1, 3), word_at, roots)
    return Changes(LastingChanges(*freed, nodes, LastingPages(group, slot, node)), sums)


class _Reader:
    """A payload, read from its start."""

    def __init__(self, payload: Bytes, here: int) -> None:
        self.payload = payload
        self.here = here

    def take(self, count: int, dtype: str) -> NDArray[Any]:
        """The next array; an empty one where the payload ends before it does."""
        size = count * np.dtype(dtype).itemsize
        raw = self.payload[self.here : self.here + size]
        self.here += size + -size % 8
        return raw.view(dtype) if len(raw) == size else np.empty(0, dtype)
