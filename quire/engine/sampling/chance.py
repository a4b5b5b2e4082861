"""Chance: random numbers that are a hash of (seed, branch, position), not the state of a generator. Knows no logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_FAR, _NEAR, _LAST, _SPARE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def uniform(seeds: Sequence[int], branches: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits, the same on every machine; one per place of the three lists."""
    return uniform_at(begun(seeds, branches), np.array(positions, np.uint64))


def begun(seeds: Sequence[int], branches: Sequence[int]) -> NDArray[np.uint64]:
    """The part of a hash that is the same for all positions of an answer."""
    return _mixed(_mixed(np.zeros(len(seeds), np.uint64), np.array(seeds, np.uint64)), np.array(branches, np.uint64))


def uniform_at(words: NDArray[np.uint64], positions: NDArray[np.integer]) -> NDArray[np.float64]:
    """The numbers of these positions, from what was begun."""
    return (_mixed(words, positions.astype(np.uint64)) >> _SPARE) / float(1 << 53)


def _mixed(words: NDArray[np.uint64], parts: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 step, once per part; it counts modulo 2**64."""
    words = words + parts + _STEP
    words = (words ^ (words >> _FAR)) * _FIRST
    words = (words ^ (words >> _NEAR)) * _SECOND
    words ^= words >> _LAST
    return words
