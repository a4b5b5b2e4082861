"""LostText: text of a prompt that an earlier prompt had, and that no cache can use, because what is before it differs.

earlier   S  9:00  I  I  I  question
prompt    S  9:05  I  I  I  other         S is found; I is there, and lost
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.content.content_chunks import mix
from quire.insight.findings.memory import AT_ONCE, Rows, prefixes
from quire.insight.findings.prompt_log import PromptLog, dense
from quire.trace.units import Int32, Int64


@dataclass(slots=True, eq=False)
class LostText:
    """Per chunk and per request, were nothing ever forgotten."""

    earlier: Int32  # the latest earlier request of the scope with this chunk; -1: none
    continued: Int32  # the same for the chunk and all before it
    found: NDArray[np.bool_]  # leading chunks that are reused
    hit_tokens: Int64  # of each request
    lost_tokens: Int64
    used_tokens: Int64  # that an earlier or a later request begins with, too


def find_lost(log: PromptLog) -> LostText:
    """Of all requests."""
    request_of = log.request_of
    rows = Rows(log.ids, log.sizes, log.starts, log.scopes)
    apart = log.scopes[request_of] if len(log.scope_list) > 1 else None
    numbers = prefixes(rows)
    continued = _latest(numbers, request_of, None)
    used = np.bincount(numbers)[numbers] > 1
    del numbers
    earlier = _latest(log.ids, request_of, apart)
    found = continued >= 0
    lost = (earlier >= 0) & ~found
    hit, gone, again = (
        np.bincount(request_of[which], log.sizes[which], len(log)).astype(np.int64) for which in (found, lost, used)
    )
    return LostText(earlier, continued, found, hit, gone, again)


def _latest(numbers: Int32, request_of: Int32, apart: Int32 | None) -> Int32:
    """The latest earlier request that has the same number, in the same scope."""
    if apart is not None:
        both = apart.astype(np.uint64)
        both <<= np.uint64(32)
        both |= numbers.view(np.uint32)
        for first in range(0, len(both), AT_ONCE):  # with little memory beside the result
            both[first : first + AT_ONCE] = mix(both[first : first + AT_ONCE])
        numbers = dense(both)
        del both
    words = numbers.astype(np.int64) << 32
    words |= np.arange(len(numbers))
    words.sort()
    order = (words & 0xFFFFFFFF).astype(np.int32)
    words >>= 32
    same = np.concatenate([[False], words[1:] == words[:-1]])
    del words
    requests = request_of[order]
    begins = ~same  # of a run of one number in one request
    begins[1:] |= requests[1:] != requests[:-1]
    run_first = np.maximum.accumulate(np.where(begins, np.arange(len(order), dtype=np.int32), 0))
    before = np.where(same[run_first], requests[run_first - 1], -1)
    latest = np.empty(len(order), np.int32)
    latest[order] = before
    return latest
