"""PromptDifferences: where prompts stop being equal, while their tokens are still known. Keeps numbers, never tokens.

Each prompt that is looked at is compared with a few before it:

    a time or an id near its beginning     equal up to a place, different for a few tokens, equal for many after it
    a salt per request                     equal, but of another scope
    blocks too large                       equal up to a place inside a block
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.records.identity import Scope
from quire.trace.record.trace_writer import Interruption

Int32 = NDArray[np.int32]
KEPT = 4  # prompts to compare with
LONGEST = 2048  # tokens of each that are looked at
ALL_UP_TO, THEN_EVERY = 256, 8  # prompts that are looked at: the first ones, then one in so many
SHIFT = 16  # tokens by which an interruption may change the length
WIDEST = 64  # tokens of an interruption
LEAST_EQUAL = 32  # tokens behind it
MOST_PLACES = 4096  # that are kept for the medians


class PromptDifferences:
    """Numbers over many prompts."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._recent: deque[tuple[Scope, Int32]] = deque(maxlen=KEPT)
        self._seen = 0
        self._compared = 0
        self._shared = self._shared_blocks = self._tokens = 0
        self._other_scope = self._other_scope_tokens = 0
        self._interrupted = 0
        self._places: deque[Interruption] = deque(maxlen=MOST_PLACES)

    def add(self, tokens: Int32, scope: Scope) -> Interruption | None:
        """One more prompt; where it was interrupted, if it was compared and is."""
        self._seen += 1
        mine = tokens[:LONGEST].copy()
        looks = bool(self._recent) and (self._seen <= ALL_UP_TO or self._seen % THEN_EVERY == 0)
        difference = self._compare(mine, scope) if looks else None
        self._recent.append((scope, mine))
        return difference

    def _compare(self, mine: Int32, scope: Scope) -> Interruption | None:
        self._compared += 1
        self._tokens += len(mine)
        near = max((_common(mine, other) for where, other in self._recent if where == scope), default=0)
        far = max((_common(mine, other) for where, other in self._recent if where != scope), default=0)
        self._shared += near
        self._shared_blocks += near // self._size * self._size
        if far // self._size > near // self._size:
            self._other_scope += 1
            self._other_scope_tokens += far - near
        interruptions = [_interruption(mine, other, _common(mine, other)) for _, other in self._recent]
        best = max((one for one in interruptions if one is not None), key=lambda one: one.equal_after, default=None)
        if best is not None:
            self._interrupted += 1
            self._places.append(best)
        return best

    def summary(self) -> dict[str, Any]:
        """As it stands in the end mark of a trace."""
        if not self._compared:
            return {}
        facts: dict[str, Any] = {
            "requests": self._compared,
            "tokens": self._tokens,
            "equal_tokens": self._shared,
            "equal_tokens_in_whole_blocks": self._shared_blocks,
        }
        if self._other_scope:
            facts["equal_in_another_scope"] = {"requests": self._other_scope, "tokens": self._other_scope_tokens}
        if self._interrupted:
            columns = zip(*self._places, strict=True)
            position, width, after = (round(median(numbers)) for numbers in columns)
            facts["interrupted"] = {
                "requests": self._interrupted, "at_token": position, "tokens": width, "equal_after": after
            }  # fmt: skip
        return facts


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
