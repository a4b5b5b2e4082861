"""Chains: a growing token sequence, cut into blocks, whose private keys are computed on demand.

Owns the identity of a token, (token, w0, w1, w2), as 28 bytes whose byte order is the order of identities: so blocks
compare, sort and match by prefix as plain `bytes`. Knows nothing of trees, scopes or pages.
"""

import os
from hashlib import blake2b
from typing import Any

import numpy as np

from quire.core.store.interface import Int32Array, UInt64Array
from quire.core.store.reference.keys.hash import event_hash, read_seed

# Big-endian, the sign bit of the token flipped: bytewise order == order of (token signed, w0, w1, w2).
_IDENTITY = np.dtype([("token", ">u4"), ("extra", ">u8", (3,))])
_SIGN = np.uint32(1 << 31)
WIDTH = _IDENTITY.itemsize
_SECRET = os.urandom(32)


def encode(tokens: Int32Array, extras: UInt64Array | None = None) -> bytes:
    """The identities of `tokens`, back to back."""
    cells = np.zeros(len(tokens), _IDENTITY)
    cells["token"] = tokens.view(np.uint32) ^ _SIGN
    if extras is not None:
        cells["extra"] = extras
    return cells.tobytes()


def decode(identity: bytes | bytearray) -> tuple[Int32Array, UInt64Array]:
    """Tokens and extra words of some identities, as fresh arrays."""
    cells = np.frombuffer(bytes(identity), _IDENTITY)
    tokens = (cells["token"].astype(np.uint32) ^ _SIGN).view(np.int32)
    return tokens, cells["extra"].astype(np.uint64)


def common_tokens(one: bytes, other: bytes) -> int:
    """Length in tokens of the common prefix of two identities."""
    low, high = 0, min(len(one), len(other)) // WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * WIDTH] == other[: middle * WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low


def next_key(before: int, block: bytes) -> int:
    """The private key of a block behind blocks of this key; 0: it is the first."""
    text = before.to_bytes(8, "little") + block
    return int.from_bytes(blake2b(text, digest_size=8, key=_SECRET).digest(), "little")


class Chain:
    """A growing token sequence with lazily made private chain keys."""

    __slots__ = ("_identity", "_keys", "block_size")

    def __init__(self, block_size: int, tokens: Any, extras: Any = None) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}, must be at least 1")
        cells = np.ascontiguousarray(tokens, dtype=np.int32)
        words = None if extras is None else np.ascontiguousarray(extras, dtype=np.uint64)
        if cells.ndim != 1:
            raise ValueError(f"tokens have {cells.ndim} dimensions, must be one row")
        if words is not None and words.shape != (len(cells), 3):
            raise ValueError(f"extras have shape {words.shape}, must be {(len(cells), 3)}")
        self.block_size = block_size
        self._identity = bytearray(encode(cells, words))
        self._keys: list[int] = []

    def __len__(self) -> int:
        return len(self._identity) // WIDTH

    def tokens(self) -> Int32Array:
        return decode(self._identity)[0]

    def extras(self) -> UInt64Array | None:
        """The extra words, or None when every token is plain."""
        words = decode(self._identity)[1]
        return words if words.any() else None

    def extend_keys(self, num_blocks: int = -1) -> int:
        """Make the keys of the first `num_blocks` full blocks (-1: all); how many keys are ready."""
        full = len(self) // self.block_size
        wanted = full if num_blocks < 0 else min(num_blocks, full)
        for block in range(len(self._keys), wanted):
            self._keys.append(next_key(self._keys[-1] if self._keys else 0, self.block(block)))
        return len(self._keys)

    def key(self, block: int) -> int:
        """A key that two chains share exactly when their identities up to and including full block `block` match."""
        if not 0 <= block < len(self) // self.block_size:
            raise IndexError(f"block {block} is not a full block of a chain of {len(self)} tokens")
        self.extend_keys(block + 1)
        return self._keys[block]

    def event_hashes(self, root: int, seed: bytes = bytes(16)) -> UInt64Array:
        """The event hashes of all full blocks under a root's."""
        keys, hashes = read_seed(seed), [root]
        for block in range(len(self) // self.block_size):
            hashes.append(event_hash(keys, hashes[-1], *decode(self.block(block))))
        return np.array(hashes[1:], np.uint64)

    def clone(self) -> "Chain":
        twin = Chain.__new__(Chain)
        twin.block_size = self.block_size
        twin._identity = bytearray(self._identity)
        twin._keys = list(self._keys)
        return twin

    def span(self, start: int, stop: int) -> bytes:
        """Identities of tokens [start, stop)."""
        return bytes(self._identity[start * WIDTH : stop * WIDTH])

    def block(self, block: int) -> bytes:
        """Identities of one full block."""
        return self.span(block * self.block_size, (block + 1) * self.block_size)

    def add_tokens(self, tokens: Int32Array) -> None:
        """Add plain tokens."""
        self._identity += encode(np.ascontiguousarray(tokens, dtype=np.int32))

    def cut_tokens(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self._identity[length * WIDTH :]
        del self._keys[length // self.block_size :]
