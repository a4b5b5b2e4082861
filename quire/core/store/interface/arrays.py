"""The arrays and tuples that go in and out of a store, by what they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Int8Array = NDArray[np.int8]
UInt8Array = NDArray[np.uint8]
Int16Array = NDArray[np.int16]
Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
UInt64Array = NDArray[np.uint64]
BoolArray = NDArray[np.bool_]
GroupNumbers = tuple[int, int, int, int, int, int, Sequence[int]]  # tail, sink, keep, every, extra, current, slots
AskNumbers = tuple[int, int, int, int]  # of one group: columns from first to stop, peak, spare
Need = tuple[int, int, int]  # of one group: blocks before sink, and from first to stop
SourceState = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # leaf; per group: held, claims, tier
Explained = tuple[bytes, bytes]  # runs of causes, tokens by group and tier
Changes = (
    tuple[  # freed (group, slot); blocks (number, parent), where their tokens start, tokens, words, where those are;
        Int32Array, Int64Array, Int64Array, Int32Array, UInt64Array, Int64Array, list[int], Int64Array  # roots; pages
    ]
)
EventArrays = tuple[Int64Array, UInt64Array, Int32Array, Int32Array, int]  # records, hashes, details, tokens, lost
