"""SessionEnds: where the last request of each session ended, for what its next one leaves behind. Knows no cache.

    last     system | question | answer a
    next     system | question | answer b ...      "answer a" was left behind: nothing continues it

The cache does the same for sequences; pages that vLLM computes have none.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from quire.core.records.request import Int32

MOST_TOKENS = 1 << 24  # of all sessions together: 64 MB
NAME_TOKENS = 512  # what a session takes besides its text, in tokens: its name may be 256 characters of 4 bytes each
SessionKey = tuple[bytes, str]  # the key of its scope, its name: no scope's session is another's


class SessionEnd(NamedTuple):
    """What the last request has left."""

    tokens: Int32
    begun: int  # tokens in front that were there before the session


class SessionEnds:
    """Of one engine. The longest idle session is forgotten first."""

    def __init__(self) -> None:
        self._ends: OrderedDict[SessionKey, SessionEnd] = OrderedDict()
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._ends)

    def take(self, key: SessionKey) -> SessionEnd | None:
        """Where its last request ended; its next one has come."""
        end = self._ends.pop(key, None)
        if end is not None:
            self._num_tokens -= _size(end)
        return end

    def put(self, key: SessionKey, end: SessionEnd) -> None:
        """A request of it has ended there."""
        self.take(key)
        if _size(end) > MOST_TOKENS:
            return
        self._ends[key] = end
        self._num_tokens += _size(end)
        while self._num_tokens > MOST_TOKENS:
            _, oldest = self._ends.popitem(last=False)
            self._num_tokens -= _size(oldest)

    def clear(self) -> None:
        """New weights: nothing of them is there any more."""
        self._ends.clear()
        self._num_tokens = 0


def _size(end: SessionEnd) -> int:
    return NAME_TOKENS + len(end.tokens)


def num_equal(one: Int32, other: Int32) -> int:
    """Leading tokens that two texts have in common."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length
