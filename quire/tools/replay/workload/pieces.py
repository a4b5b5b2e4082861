"""A trace as the offline optimum takes it: prompts in whole blocks, or exact to the token. Knows no sizes of memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from quire.tools.replay.belady import Prompt, chain_keys, whole_blocks
from quire.tools.replay.workload.trace import Ask, Trace
from quire.tools.replay.workload.words import Words

_FAR = 1 << 32  # more than a part has tokens


def in_blocks(trace: Trace, block_size: int) -> Iterator[Prompt]:
    """Whole blocks of every prompt; an ask that may not reuse hits nothing and leaves nothing."""
    words = Words(trace)
    roots: dict[object, int] = {}
    for ask in trace:
        root = roots.setdefault(ask.scope, len(roots))
        yield whole_blocks(words.prompt(ask), block_size, root) if ask.reuse else _nothing(ask)


def in_tokens(trace: Trace) -> Iterator[Prompt]:
    """Single tokens, as pieces between the places where prompts part: as many as the trace has parts, about.

    A part is cut where a prompt leaves it and one token before a prompt's end; the last token is always computed.
    """
    cuts = _cuts(trace)
    fresh = np.diff(cuts // _FAR, prepend=-1) > 0  # the first cut of its part
    lengths = np.where(fresh, cuts % _FAR, np.diff(cuts, prepend=0))
    roots: dict[object, int] = {}
    for ask in trace:
        root = roots.setdefault(ask.scope, len(roots))
        if not ask.reuse:
            yield _nothing(ask)
            continue
        firsts = np.searchsorted(cuts, ask.parts * _FAR)
        lasts = np.searchsorted(cuts, ask.parts * _FAR + ask.sizes, side="right")
        counts = lasts - firsts
        pieces = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        yield Prompt(chain_keys(pieces.astype(np.int32), 1, root), ask.length, len(pieces) - 1, lengths[pieces])


def _cuts(trace: Trace) -> NDArray[np.int64]:
    """Every place a part is cut at, ascending: part number x _FAR + tokens before the cut."""
    ends = [ask.parts * _FAR + ask.sizes for ask in trace]
    lasts = np.array([ask.parts[-1] * _FAR + ask.sizes[-1] - 1 for ask in trace], np.int64)
    cuts = np.unique(np.concatenate([*ends, lasts]))
    return cuts[cuts % _FAR > 0]


def _nothing(ask: Ask) -> Prompt:
    return Prompt(np.empty(0, np.uint64), ask.length, 0)
