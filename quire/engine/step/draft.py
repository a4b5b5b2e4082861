"""Prompt lookup: drafts of coming tokens, copied from the context itself. Owns one search; knows no model."""

from __future__ import annotations

import numpy as np

from quire.core.records.request import Int32

NONE: Int32 = np.empty(0, np.int32)


def lookup(tokens: Int32, count: int, ngram: int) -> Int32:
    """`count` tokens that followed the last `ngram` ones (or fewer) where these stood before, most recently."""
    length = len(tokens)
    if count < 1 or ngram < 1 or length < 2:
        return NONE
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])  # where the last token stood before
    if not len(ends):
        return NONE
    for back in range(1, min(ngram, length - 1)):  # a longer match is among the shorter ones
        longer = ends[ends.searchsorted(back) :]
        longer = longer[tokens[longer - back] == tokens[-1 - back]]
        if not len(longer):
            break
        ends = longer
    first = int(ends[-1]) + 1
    # A match that ends less than `count` tokens before the end means a context that repeats: the draft goes on with it.
    return tokens[first : first + count] if first + count <= length else np.resize(tokens[first:], count)
