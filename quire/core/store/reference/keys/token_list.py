"""Token ids out of a Python list into int32 memory. Knows no chains, no keys."""

from struct import error, pack_into

import numpy as np

from quire.core.store.interface import Int32Array


def one_token(item: object, nth: int) -> int:
    """Whatever has an index is as good as an int."""
    index = getattr(item, "__index__", None)
    if index is None:
        raise TypeError(f"token {nth} is a {type(item).__name__}, must be an int")
    value: int = index()
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        raise ValueError(f"token {nth} does not fit in 32 bits")
    return value


def read_tokens(items: list[int], first: int, out: Int32Array) -> None:
    """Fill an int32 array with the items from number `first` on; if it raises, a part of it may be filled."""
    if not isinstance(items, list):
        raise TypeError(f"tokens are a {type(items).__name__}, must be a list")
    if not out.flags.writeable:
        raise BufferError("out cannot be written to")
    if out.dtype != np.int32 or out.ndim != 1 or not out.flags.c_contiguous:
        raise TypeError("out must be a C-contiguous array of 32-bit items")
    if first < 0 or first + len(out) > len(items):
        raise ValueError(f"tokens [{first}, {first + len(out)}) of {len(items)}")
    wanted = items[first : first + len(out)]
    try:
        pack_into(f"{len(wanted)}i", out.data, 0, *wanted)  # half the time of NumPy's way
    except error:
        for nth, item in enumerate(wanted, first):
            out[nth - first] = one_token(item, nth)
