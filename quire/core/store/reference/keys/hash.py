"""The event hash of a block: 64 bits, equal wherever the seed is the same, and in both stores.

Owns the arithmetic only. Knows nothing of nodes or of when a hash is worth making.
"""

import numpy as np

from quire.core.store.interface import Int32Array, UInt64Array

MASK = (1 << 64) - 1
K0 = 0x9E3779B97F4A7C15
K1 = 0xC2B2AE3D27D4EB4F
K2 = 0x165667B19E3779F9
K3 = 0xD6E8FEB86659FD93
Seed = tuple[int, int]


def fold(a: int, b: int) -> int:
    """Low half xor high half of the 128-bit product of two 64-bit numbers."""
    product = (a & MASK) * (b & MASK)
    return (product & MASK) ^ (product >> 64)


def read_seed(seed: bytes) -> Seed:
    """A seed's 16 bytes as two numbers, little-endian."""
    if len(seed) != 16:
        raise ValueError(f"a seed of {len(seed)} bytes, must be 16")
    return int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:], "little")


def siphash(seed: Seed, message: bytes) -> int:
    """SipHash-2-4: without the seed its values look random, whatever the messages are."""
    k0, k1 = seed
    a, b, c, d = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) % 256])
    for place in range(0, len(padded), 8):
        word = int.from_bytes(padded[place : place + 8], "little")
        a, b, c, d = _round(*_round(a, b, c, d ^ word))
        a ^= word
    c ^= 0xFF
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


def _round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a = (a + b) & MASK
    b = (b << 13 & MASK | b >> 51) ^ a
    c = (c + d) & MASK
    d = (d << 16 & MASK | d >> 48) ^ c
    a = ((a << 32 & MASK | a >> 32) + d) & MASK
    d = (d << 21 & MASK | d >> 43) ^ a
    c = (c + b) & MASK
    b = (b << 17 & MASK | b >> 47) ^ c
    return a, b, c << 32 & MASK | c >> 32, d


def event_hash(seed: Seed, parent: int, tokens: Int32Array, extras: UInt64Array) -> int:
    """Hash of a block, its tokens with three words each, under a parent hash; never 0.

    Words are hashed behind the hash of the tokens. Messages with words are of odd length, others are not: no block's
    tokens can be another's words.
    """
    result = siphash(seed, parent.to_bytes(8, "little") + tokens.astype("<i4").tobytes())
    places = np.flatnonzero(extras.any(axis=1))
    if len(places):
        cells = np.column_stack([places.astype(np.uint64), extras[places]]).astype("<u8")
        result = siphash(seed, result.to_bytes(8, "little") + cells.tobytes() + b"\x01")
    return result or 1


def signed(value: int) -> int:
    """The 64 bits of `value` as int64."""
    value &= MASK
    return value - (1 << 64) if value >> 63 else value
