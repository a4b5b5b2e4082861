"""short_pieces: pieces as short as a chunk, which no chunk shows: the tokens of where they stand, put in one order.

rules P Q R question     rules R P Q question     the place of the pieces has the same tokens in both
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import numpy as np

from quire.core.content.content_chunks import cut_prompts, mix
from quire.insight.findings.prompt_rows.prompt_log import dense
from quire.trace.units import Int32

LEAST_TOKENS, MOST_TOKENS = 16, 1024  # of all pieces
LEAST_OUT_OF_ORDER = 0.2  # of them


def reordered(mine: Int32, other: Int32) -> int:
    """How many tokens both begin with in another order: pieces, not a time or a blank that moved; 0: they do not."""
    count = min(len(mine), len(other), MOST_TOKENS)
    balance = np.cumsum(mix(mine[:count].astype(np.uint64)) - mix(other[:count].astype(np.uint64)))
    ends = np.flatnonzero(balance == 0) + 1
    ends = ends[ends >= LEAST_TOKENS]
    if not len(ends):
        return 0
    end = int(ends[0])
    return end if _out_of_order(mine[:end].tolist(), other[:end].tolist()) >= LEAST_OUT_OF_ORDER else 0


def _out_of_order(mine: list[int], other: list[int]) -> float:
    """The part of the tokens that stand once in both and not in one order."""
    counts = Counter(other)
    once = {token: place for place, token in enumerate(other) if counts[token] == 1}
    places = [once[token] for token in mine if token in once]
    ends: list[int] = []  # of the best orders so far, by length
    for place in places:
        length = bisect_left(ends, place)
        ends[length : length + 1] = [place]
    return 1 - len(ends) / len(places) if len(places) >= LEAST_TOKENS // 2 else 0.0


def in_one_order(prompts: Sequence[Int32], place: slice) -> list[Int32]:
    """The prompts, those that have the pieces with their tokens sorted."""
    names = [int(mix(prompt[place].astype(np.uint64)).sum()) for prompt in prompts]
    pieces, _ = Counter(names).most_common(1)[0]
    sorted_prompts = []
    for prompt, name in zip(prompts, names, strict=True):
        if name == pieces:
            prompt = prompt.copy()
            prompt[place] = np.sort(prompt[place])
        sorted_prompts.append(prompt)
    return sorted_prompts


def rows_of_tokens(prompts: Sequence[Int32]) -> list[tuple[Int32, Int32]]:
    """Their chunks, by number, and the sizes of these."""
    chunks = cut_prompts(np.concatenate(prompts), np.array([len(prompt) for prompt in prompts], np.int64))
    ends = np.cumsum(chunks.counts)[:-1]
    return list(zip(np.split(dense(chunks.names), ends), np.split(chunks.sizes, ends), strict=True))
