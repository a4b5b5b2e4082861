"""Stamp: many events that differ only in hash, parent and tokens, written at once. Knows no meaning of the rest.

A decode step stores one block for each of many sequences; made one by one, such events cost more than all the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

HASH, PARENT, TOKEN = 0x9111111111111111, 0x9222222222222222, 0x7A7A7A7A  # as wide as a number of their kind gets


@dataclass(frozen=True, slots=True)
class Stamped:
    """So many events, encoded, back to back."""

    count: int
    data: bytes


class Stamp:
    """An encoded event with gaps."""

    __slots__ = ("_form", "_hash_at", "_parent_at", "_token_at")

    def __init__(self, event: Any) -> None:
        """From an event that has the marks above in its gaps; its tokens are one block's."""
        data = msgspec.msgpack.encode(event)
        self._form = np.frombuffer(data, np.uint8)
        self._hash_at = data.index(HASH.to_bytes(8, "big"))
        self._parent_at = data.find(PARENT.to_bytes(8, "big"))
        self._token_at = data.index(b"\xce" + TOKEN.to_bytes(4, "big"))

    def fill(self, hashes: NDArray[np.uint64], parents: NDArray[np.uint64], tokens: NDArray[np.uint32]) -> Stamped:
        """One event per hash; tokens are [events, block size]."""
        count, size = tokens.shape
        sheet = np.tile(self._form, (count, 1))
        sheet[:, self._hash_at : self._hash_at + 8] = hashes.astype(">u8").view(np.uint8).reshape(count, 8)
        if self._parent_at >= 0:
            sheet[:, self._parent_at : self._parent_at + 8] = parents.astype(">u8").view(np.uint8).reshape(count, 8)
        cells = sheet[:, self._token_at : self._token_at + 5 * size].reshape(count, size, 5)
        cells[:, :, 1:] = tokens.astype(">u4").view(np.uint8).reshape(count, size, 4)
        sheet[:, self._token_at : self._token_at + 5 * size] = cells.reshape(count, 5 * size)
        return Stamped(count, sheet.tobytes())
