"""TokenIds: the token ids of a request, made when they are needed, array by array. Knows no cache.

Token ids of prompts are 0 or more: part number and offset name the token, so equal parts are equal tokens and different
parts share none. Generated tokens are below 0, each of them used once: no prompt has them, nor any other answer.
"""

from __future__ import annotations

import numpy as np

from quire.core.records.errors import InputError, say
from quire.trace.read.trace import Trace, TraceRequest
from quire.trace.units import Int32, Int64

_IDS = np.uint32((1 << 31) - 1)  # a mask: a seed shifts token ids round
_MOST = 1 << 31  # more would not be told apart


class TokenIds:
    """Makes the tokens of one trace. Another seed, other token ids with the same things equal."""

    def __init__(self, trace: Trace, seed: int = 0) -> None:
        self._shift = np.int64(seed * 0x9E3779B1 & int(_IDS))
        self._unit = trace.unit
        self._inside = (np.arange(max(self._unit, 1)) + self._shift).astype(np.uint32)
        self._bases = np.empty(0, np.int64) if self._unit else _bases(trace)
        self.num_parts = _last(trace) if self._unit else len(self._bases) - 1  # their numbers are below
        _check(trace, "prompts", self.num_parts * self._unit if self._unit else self._bases[-1])
        self._wraps = self.num_parts * self._unit + self._shift > _IDS
        ends = np.cumsum([request.output for request in trace], dtype=np.int64)
        self._answers = np.concatenate([np.zeros(1, np.int64), ends])  # generated tokens before a request's own
        _check(trace, "answers", self._answers[-1])

    def prompt(self, request: TraceRequest) -> Int32:
        """Its prompt."""
        if self._unit:
            narrow = (request.parts * self._unit).astype(np.uint32)[:, None] + self._inside
            if self._wraps:
                narrow &= _IDS
            return narrow.reshape(-1)[: request.length].view(np.int32)
        sizes = request.sizes
        firsts = self._bases[request.parts] - (np.cumsum(sizes) - sizes)
        wide = (np.repeat(firsts, sizes) + np.arange(request.length) + self._shift) & np.int64(_IDS)
        return wide.astype(np.int32)

    def first_of_answer(self, request: TraceRequest) -> int:
        """The first token that a request generates; each of those that follow is one less."""
        return -1 - int(self._answers[request.number])


def _bases(trace: Trace) -> Int64:
    """Where the token ids of each part begin: one after the other, each as long as its longest use; and the end."""
    parts = np.concatenate([request.parts for request in trace])
    sizes = np.concatenate([request.sizes for request in trace])
    longest = np.zeros(int(parts.max()) + 1, np.int64)
    np.maximum.at(longest, parts, sizes)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(longest)])


def _last(trace: Trace) -> int:
    """Parts, up to the last number in use."""
    return max((int(request.parts.max()) + 1 for request in trace), default=0)


def _check(trace: Trace, what: str, num_tokens: int) -> None:
    if num_tokens > _MOST:
        fact = f"its {what} have {int(num_tokens):,} different tokens, and token ids have 31 bits"
        raise InputError(say(f"trace {trace.name}", fact, "replay it in pieces, or with --limit"))
