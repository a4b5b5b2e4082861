"""The event hash of a block: 64 bits, equal in every process and in both stores.

Owns the arithmetic only. Knows nothing of nodes or of when a hash is worth making.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

MASK = (1 << 64) - 1
K0 = 0x9E3779B97F4A7C15
K1 = 0xC2B2AE3D27D4EB4F
K2 = 0x165667B19E3779F9
K3 = 0xD6E8FEB86659FD93


def fold(a: int, b: int) -> int:
    """Low half xor high half of the 128-bit product of two 64-bit numbers."""
    product = (a & MASK) * (b & MASK)
    return (product & MASK) ^ (product >> 64)


def event_hash(parent: int, tokens: npt.NDArray[np.int32], extras: npt.NDArray[Any]) -> int:
    """Hash of a block, its tokens with three words each, under a parent hash; never 0."""
    units = [int(token) & 0xFFFFFFFF for token in tokens]
    seed = fold(parent ^ K0, len(units) + K1)
    if len(units) % 2:
        units.append(0)
    words = [low | high << 32 for low, high in zip(units[::2], units[1::2], strict=True)]
    a, b = seed, seed ^ K3
    for word in words[::2]:
        a = (fold(a ^ word, K2) + K1) & MASK
    for word in words[1::2]:
        b = (fold(b ^ word, K0) + K3) & MASK
    result = fold(a ^ K1, b ^ K2)
    for place in np.flatnonzero(extras.any(axis=1)):
        w0, w1, w2 = (int(word) for word in extras[place])
        result = fold(result ^ w0, K0 + int(place))
        result = fold(result ^ w1, K1)
        result = fold(result ^ w2, K2)
    return result or 1


def signed(value: int) -> int:
    """The 64 bits of `value` as int64."""
    value &= MASK
    return value - (1 << 64) if value >> 63 else value
