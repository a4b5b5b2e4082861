"""applications: requests told apart by their text: those that have most of one text in common are one application.

The text is what a set of requests nearly all have. A set is found by a chunk of it; of all sets the one whose text is
heaviest comes first, so a phrase that everybody writes makes no application of everybody.

    S S S a    S S S b    T T c    T T d        phrase p in all: 4 times 1; S: 2 times 3; T: 2 times 2
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quire.core.content.content_chunks import UInt64, mix
from quire.insight.findings.prompt_rows.prompt_log import PromptLog
from quire.trace.units import Int32, Int64

NEARLY_ALL, HALF, MOST_TEXT = 0.8, 0.5, 0.5  # of requests, that have a text in common; of a set; of this text
LEAST_TEXT = 32  # tokens
LEAST_SHARE, LEAST_REQUESTS = 0.02, 4  # of those looked at
MOST_APPLICATIONS, MOST_TRIED = 40, 24


class _Words(NamedTuple):
    """Which looked-at request has which chunk, once each."""

    chunks: Int32
    requests: Int64

    def of(self, requests: Int64) -> _Words:
        """Those of some requests."""
        which = np.isin(self.requests, requests)
        return _Words(self.chunks[which], self.requests[which])


class Applications:
    """Finds them in one log."""

    def __init__(self, log: PromptLog) -> None:
        self._log, self._request_of = log, log.request_of
        words = log.ids.astype(np.int64) << 32 | self._request_of
        self._is_first = np.zeros(len(words), bool)  # of equal chunks in a request
        self._is_first[np.unique(words, return_index=True)[1]] = True
        self._own = np.zeros(int(log.ids.max(initial=-1)) + 1, np.int64)  # tokens of each chunk
        self._own[log.ids] = log.sizes

    def of(self, looked: Int64) -> list[Int64]:
        """All requests of each application that has some of those looked at; no request twice.

        Long talks are heavier than short rules: what then turns out to have the text of a later set is a part of it.
        """
        log = self._log
        texts = [np.unique(log.chunks_of(request)) for request in looked.tolist()]
        counts = [len(text) for text in texts]
        words = _Words(np.concatenate([log.ids[:0], *texts]), np.repeat(looked, counts))
        taken = np.zeros(len(log), bool)
        least = max(LEAST_REQUESTS, LEAST_SHARE * len(looked))
        found: list[Int64] = []
        for _ in range(MOST_APPLICATIONS):
            common = self._heaviest(words, least)
            if common is None:
                break
            having = self._with(common)
            members = having[~taken[having]]
            inside = np.isin(words.requests, members)
            if not inside.any():
                break
            taken[members] = True
            words = _Words(words.chunks[~inside], words.requests[~inside])
            parts = [one for one in found if np.isin(one, having).mean() >= HALF]
            found = [one for one in found if not any(one is part for part in parts)]
            found.append(np.sort(np.concatenate([members, *parts])))
        return found

    def _heaviest(self, words: _Words, least: float) -> Int32 | None:
        """The text of the heaviest set."""
        chunks, inverse, counts = np.unique(words.chunks, return_inverse=True, return_counts=True)
        often = counts >= least
        if not often.any():
            return None
        signs = np.zeros(len(chunks), np.uint64)  # equal where the same requests have a chunk
        marks: UInt64 = mix(words.requests.astype(np.uint64))
        np.add.at(signs, inverse, marks)
        _, first, sets = np.unique(signs[often], return_index=True, return_inverse=True)
        weights = np.bincount(sets, self._own[chunks[often]]) * counts[often][first]
        best, weight = None, 0
        for place in np.argsort(weights)[::-1][:MOST_TRIED].tolist():
            key = chunks[often][first[place]]
            having = words.requests[words.chunks == key]
            common, tokens = self._common(words.of(having), len(having))
            if tokens >= LEAST_TEXT and tokens * len(having) > weight:
                best, weight = common, tokens * len(having)
        return best

    def _common(self, words: _Words, requests: int) -> tuple[Int32, int]:
        """What nearly all of them have, and its tokens."""
        chunks, counts = np.unique(words.chunks, return_counts=True)
        common = chunks[counts >= NEARLY_ALL * requests]
        return common, int(self._own[common].sum())

    def _with(self, common: Int32) -> Int64:
        """Requests of the log that have most of a text."""
        log = self._log
        is_common = np.zeros(len(self._own), bool)
        is_common[common] = True
        firsts = is_common[log.ids] & self._is_first
        tokens = np.bincount(self._request_of[firsts], log.sizes[firsts], len(log))
        return np.flatnonzero(tokens >= MOST_TEXT * int(self._own[common].sum()))
