"""LostText: text of a prompt that an earlier prompt had, and that no cache can use, because what is before it differs.

earlier   S  9:00  I  I  I  question
prompt    S  9:05  I  I  I  other         S is found; I is there, and lost
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.content.content_chunks import UInt64, mix
from quire.insight.findings.prompt_rows.memory import Rows, prefixes
from quire.insight.findings.prompt_rows.prompt_log import AT_ONCE, PromptLog, dense
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
    known_tokens: Int64  # of text that an earlier or a later request of the log has at any place


def find_lost(log: PromptLog) -> LostText:
    """Of all requests."""
    request_of = log.request_of
    earlier = _latest(_apart(log), request_of)
    numbers = prefixes(Rows(log.ids, log.sizes, log.starts, log.scopes))
    continued = _latest(numbers, request_of)
    used = np.bincount(numbers)[numbers] > 1
    del numbers
    found = continued >= 0
    lost = (earlier >= 0) & ~found
    hit, gone, again, known = (
        np.bincount(request_of[which], log.sizes[which], len(log)).astype(np.int64)
        for which in (found, lost, used, _known(log.ids, request_of))
    )
    return LostText(earlier, continued, found, hit, gone, again, known)


def _known(ids: Int32, request_of: Int32) -> NDArray[np.bool_]:
    """Whether another request has the chunk, in any scope."""
    first, last = np.zeros((2, int(ids.max(initial=-1)) + 1), np.int32)
    first[ids[::-1]] = request_of[::-1]
    last[ids] = request_of
    several: NDArray[np.bool_] = first != last
    return several[ids]


def _apart(log: PromptLog) -> Int32:
    """A number for each chunk in each scope."""
    if not log.scopes.any():
        return log.ids
    both: UInt64 = np.repeat(log.scopes.astype(np.uint64) << np.uint64(32), np.diff(log.starts))
    for first in range(0, len(both), AT_ONCE):  # with little memory beside the result
        piece = slice(first, first + AT_ONCE)
        both[piece] |= log.ids[piece].view(np.uint32)
        both[piece] = mix(both[piece])
    return dense(both)


def _latest(numbers: Int32, request_of: Int32) -> Int32:
    """The latest earlier request that has the same number.

    By number and place, a run is one number in one request: what stands before its first is the answer for all of it.
    """
    words = numbers.astype(np.int64)
    words <<= 32
    words |= np.arange(len(numbers), dtype=np.int64)
    words.sort()
    latest = np.empty(len(numbers), np.int32)
    number = request = answer = -1  # of the chunk before
    for first in range(0, len(words), AT_ONCE):
        piece = words[first : first + AT_ONCE]
        places = piece & 0xFFFFFFFF
        numbers_here, requests = piece >> 32, request_of[places]
        before = np.concatenate([np.array([request], np.int32), requests[:-1]])
        same = numbers_here == np.concatenate([[number], numbers_here[:-1]])
        begins = ~same | (requests != before)
        begin = np.maximum.accumulate(np.where(begins, np.arange(len(piece)), -1))
        found = np.where(begin < 0, answer, np.where(same, before, -1)[begin])
        latest[places] = found
        number, request, answer = int(numbers_here[-1]), int(requests[-1]), int(found[-1])
    return latest
