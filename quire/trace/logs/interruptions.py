"""PromptInterruptions: where a few tokens part a prompt from an earlier one, while its tokens are still known.

A time or an id near its beginning: equal up to a place, different for a few tokens, equal for many after it. Each
prompt that is looked at is compared with a few before it. Keeps no other tokens.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from quire.trace.record.trace_writer import Interruption

Int32 = NDArray[np.int32]
KEPT = 4  # prompts to compare with
LONGEST = 2048  # tokens of each that are looked at
ALL_UP_TO, THEN_EVERY = 256, 8  # prompts that are looked at: the first ones, then one in so many
SHIFT = 16  # tokens by which an interruption may change the length
WIDEST = 64  # tokens of an interruption
LEAST_EQUAL = 32  # tokens behind it


class PromptInterruptions:
    """Looks at one prompt after the other."""

    def __init__(self) -> None:
        self._recent: deque[Int32] = deque(maxlen=KEPT)
        self._seen = 0

    def add(self, tokens: Int32) -> Interruption | None:
        """One more prompt; where it was interrupted, if it was compared and is."""
        self._seen += 1
        mine = tokens[:LONGEST].copy()
        looks = self._seen <= ALL_UP_TO or self._seen % THEN_EVERY == 0
        found = [_interruption(mine, other, _common(mine, other)) for other in self._recent] if looks else []
        self._recent.append(mine)
        return max((one for one in found if one is not None), key=lambda one: one.equal_after, default=None)


def _common(one: Int32, other: Int32) -> int:
    """Tokens that both begin with."""
    count = min(len(one), len(other))
    same = one[:count] == other[:count]
    return count if same.all() else int(same.argmin())


def _interruption(one: Int32, other: Int32, common: int) -> Interruption | None:
    """The longest equal run behind the first difference, if it begins soon and is long."""
    a, b = one[common:], other[common:]
    best: Interruption | None = None
    for shift in range(-SHIFT, SHIFT + 1):
        left, right = a[max(shift, 0) :], b[max(-shift, 0) :]
        count = min(len(left), len(right))
        if count < LEAST_EQUAL:
            continue
        begin, length = _first_run(left[:count] == right[:count])
        begin += max(shift, 0)
        if length and (best is None or length > best.equal_after):
            best = Interruption(common, begin, length)
    return best


def _first_run(same: NDArray[np.bool_]) -> tuple[int, int]:
    """Where the longest run of equal tokens that begins soon enough begins, and its length; 0 if none is long."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    near = begins <= WIDEST
    if not near.any():
        return 0, 0
    lengths = (ends - begins)[near]
    longest = int(lengths.argmax())
    return (int(begins[longest]), int(lengths[longest])) if lengths[longest] >= LEAST_EQUAL else (0, 0)
