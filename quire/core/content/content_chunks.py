"""Chunks: prompts cut where their own tokens say so, so that equal text is cut alike wherever it stands. NumPy only.

    tokens     a b c d e f g h i j k l        a cut stands behind every third token that hashes to it, and so does not
    cuts           |       |     |            move when something is put in front: x a b c | d e f g | h i j | k l

A chunk's number depends on its tokens alone. Cuts have levels: with fewer of them neighbouring chunks become one, and
its number follows from theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
LEVELS = 12  # of cuts, each half as frequent as the one before
MEAN_BITS = 3  # 8 tokens in the mean at level 0
_ODD = np.uint64(0x9E3779B97F4A7C15)
_BASE = 0xD6E8FEB86659FD93  # of the polynomial: odd, so it has an inverse
_STEP = 1 << 16  # powers are made for so many places at once


@dataclass(slots=True)
class Chunks:
    """Chunks of some prompts, one behind the other."""

    names: UInt64  # by content
    sizes: Int32  # tokens
    levels: NDArray[np.uint8]  # of the cut before each; a prompt's first has the highest
    counts: Int64  # chunks of each prompt

    def __len__(self) -> int:
        return len(self.names)


def cut_prompts(tokens: Int32, lengths: Int64) -> Chunks:
    """Chunks of prompts that stand one behind the other in `tokens`."""
    firsts = np.cumsum(lengths) - lengths
    mixed = mix(tokens.astype(np.uint64))
    starts, levels = _starts(mixed, firsts)
    names = _summed(mixed, starts)
    sizes = np.diff(starts, append=len(tokens)).astype(np.int32)
    counts = np.diff(np.searchsorted(starts, firsts), append=len(starts))
    return Chunks(names, sizes, levels, counts)


def merge_chunks(chunks: Chunks, level: int) -> Chunks:
    """The same prompts with the cuts of `level` and above only."""
    kept = np.flatnonzero(chunks.levels >= level)
    ends = np.cumsum(chunks.sizes, dtype=np.int64)
    inside = (ends - chunks.sizes) - np.repeat((ends - chunks.sizes)[kept], np.diff(np.append(kept, len(chunks))))
    names = np.add.reduceat(chunks.names * powers(int(inside.max(initial=0)) + 1)[inside], kept)
    of_prompt = np.repeat(np.arange(len(chunks.counts)), chunks.counts)[kept]
    sizes = np.add.reduceat(chunks.sizes, kept)
    counts = np.bincount(of_prompt, minlength=len(chunks.counts))
    return Chunks(names, sizes.astype(np.int32), chunks.levels[kept], counts)


def mix(values: UInt64) -> UInt64:
    """Numbers spread over 64 bits."""
    values = (values + np.uint64(0x632BE59BD9B4E019)) * _ODD
    values ^= values >> np.uint64(32)
    values *= np.uint64(0xFF51AFD7ED558CCD)
    values ^= values >> np.uint64(29)
    return values


def powers(count: int) -> UInt64:
    """The base to the power of 0, 1, ... ."""
    return _powers(-(-max(count, 1) // _STEP) * _STEP)[:count]


@cache
def _powers(count: int) -> UInt64:
    found = np.full(count, _BASE, np.uint64)
    found[0] = 1
    return np.multiply.accumulate(found)


@cache
def _inverse_powers(count: int) -> UInt64:
    found = np.full(count, pow(_BASE, -1, 1 << 64), np.uint64)
    found[0] = 1
    return np.multiply.accumulate(found)


def _starts(mixed: UInt64, firsts: Int64) -> tuple[Int64, NDArray[np.uint8]]:
    """Where chunks begin, and the level of the cut there. The three tokens before it decide."""
    window = mixed.copy()
    window[1:] += mixed[:-1] * np.uint64(0x2545F4914F6CDD1D)
    window[2:] += mixed[:-2] * np.uint64(0xA0761D6478BD642F)
    window *= _ODD
    is_start = np.zeros(len(mixed) + 2, bool)
    is_cut = is_start[1:-1]  # behind each token
    np.less(window, np.uint64(1 << 64 - MEAN_BITS), out=is_cut)
    is_cut[1:] &= window[1:] != window[:-1]  # a token that is repeated for long is one chunk
    for offset in (1, 2):  # windows that reach into the prompt before
        is_start[np.minimum(firsts + offset, len(mixed))] = False
    is_start[firsts] = True
    starts = np.flatnonzero(is_start[: len(mixed)])
    rest = window[starts - 1] << np.uint64(MEAN_BITS)
    levels = np.zeros(len(starts), np.uint8)
    for bits in range(1, LEVELS):
        levels += rest < np.uint64(1 << 64 - bits)
    levels[np.searchsorted(starts, firsts[firsts < len(mixed)])] = LEVELS  # but for empty prompts at the end
    return starts, levels


def _summed(mixed: UInt64, starts: Int64) -> UInt64:
    """A number for the tokens between each start and the next."""
    count = len(mixed)
    sums = np.add.reduceat(mixed * powers(count), starts)
    steps = -(-count // _STEP) * _STEP
    return sums * _inverse_powers(steps)[starts]
