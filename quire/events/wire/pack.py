"""Pack: arrays as msgpack without a Python object per number. Knows nothing of events."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

FEW = 24  # below this a plain list is quicker
_WIDE, TOKEN, _SMALL = (np.dtype([("mark", "u1"), ("number", form)]) for form in (">u8", ">u4", ">u2"))


def hashes(numbers: NDArray[np.uint64] | list[int]) -> list[int] | msgspec.Raw:
    """Hashes as an array of unsigned 64-bit numbers."""
    if isinstance(numbers, list):
        return numbers
    if len(numbers) < FEW:
        few: list[int] = numbers.tolist()
        return few
    return _packed(numbers, 0xCF, _WIDE)


def tokens(numbers: NDArray[np.uint32] | list[int]) -> list[int] | msgspec.Raw:
    """Token ids as an array of unsigned numbers, as narrow as all of them allow."""
    if isinstance(numbers, list):
        return numbers
    if len(numbers) < FEW:
        few: list[int] = numbers.tolist()
        return few
    return _packed(numbers, 0xCD, _SMALL) if int(numbers.max()) < 1 << 16 else _packed(numbers, 0xCE, TOKEN)


def _packed(numbers: NDArray[Any], mark: int, form: np.dtype[Any]) -> msgspec.Raw:
    cells = np.empty(len(numbers), form)
    cells["mark"], cells["number"] = mark, numbers
    return msgspec.Raw(head(len(numbers)) + cells.tobytes())


def head(count: int) -> bytes:
    """What an array of so many things begins with."""
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")
