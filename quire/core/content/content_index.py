"""ContentIndex: which pieces of text earlier prompts of a scope had, wherever they stood. Bounded; keeps no token.

    earlier   [ 10:31 ][ rules of the house ................ ][ a question ]
    now       [ 10:32 ][ rules of the house ................ ][ another ]
               new      interrupted: equal again              new

A prompt is cut by its content into chunks of 8 tokens in the mean. Two numbers of 64 bits stand for each: one of its
own tokens, one of those and all before them. Old ones give their places to young ones that fall on them.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.core.content.content_chunks import UInt64, cut_prompts, mix, powers

LEAST_EQUAL = 32  # tokens in a row: fewer are chance


class NamedText(NamedTuple):
    """A prompt's chunks: where each ends, the number of its tokens, and that of all tokens up to its end."""

    ends: NDArray[np.int64]
    own: UInt64
    whole: UInt64


class SeenBefore(NamedTuple):
    """What of a prompt was here before."""

    known: int  # leading tokens that an earlier prompt began with
    runs: tuple[tuple[int, int], ...]  # [start, stop) of text that stood in earlier prompts, somewhere


class ContentIndex:
    """The last chunks of prompts, by content; about `size` of them, 16 bytes each."""

    def __init__(self, size: int) -> None:
        places = 1 << max(size - 1, 1).bit_length()
        self._anywhere: UInt64 = np.zeros(places, np.uint64)
        self._in_place: UInt64 = np.zeros(places, np.uint64)
        self._mask = np.uint64(places - 1)

    def add(self, text: NamedText) -> None:
        """A prompt was admitted."""
        _, own, whole = text
        for places in self._places(own):
            self._anywhere[places] = own
        for places in self._places(whole):
            self._in_place[places] = whole

    def find(self, text: NamedText) -> SeenBefore:
        """What of it was here: no token that was not is ever among it, short of two equal numbers of 64 bits."""
        ends, own, whole = text
        in_place = np.flatnonzero(self._has(self._in_place, whole))
        known = int(ends[in_place[-1]]) if len(in_place) else 0
        there = np.concatenate([[False], self._has(self._anywhere, own), [False]])
        edges = np.flatnonzero(np.diff(there.astype(np.int8)))
        begins = np.concatenate([[0], ends])
        runs = zip(begins[edges[::2]].tolist(), begins[edges[1::2]].tolist(), strict=True)
        return SeenBefore(known, tuple((start, stop) for start, stop in runs if stop - start >= LEAST_EQUAL))

    def _places(self, names: UInt64) -> tuple[UInt64, UInt64]:
        """Two of each, so that a young chunk is lost only if younger ones fell on both."""
        return names & self._mask, (names >> np.uint64(32)) & self._mask

    def _has(self, table: UInt64, names: UInt64) -> NDArray[np.bool_]:
        one, other = self._places(names)
        found: NDArray[np.bool_] = (table[one] == names) | (table[other] == names)
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._anywhere[:] = 0
        self._in_place[:] = 0


def name_text(tokens: NDArray[np.int32], scope: bytes) -> NamedText:
    """A prompt of a scope, cut; it has at least a token."""
    chunks = cut_prompts(tokens, np.array([len(tokens)], np.int64))
    ends = np.cumsum(chunks.sizes, dtype=np.int64)
    sums = np.cumsum(mix(tokens.astype(np.uint64)) * powers(len(tokens)))[ends - 1]
    salt = np.frombuffer(blake2b(scope, digest_size=8).digest(), np.uint64)
    sizes = chunks.sizes.astype(np.uint64)
    return NamedText(ends, mix(chunks.names ^ mix(salt + sizes)), mix(sums ^ mix(salt + ends.astype(np.uint64))))
