"""A trace as the offline optimum takes it: prompts in whole blocks, or exact to the token. Knows no sizes of memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from quire.simulate.optimum.belady import OptimumPrompt, chain_keys, whole_blocks
from quire.trace.read.token_ids import TokenIds
from quire.trace.read.trace import Trace, TraceRequest

_FAR = 1 << 32  # more than a part has tokens


def in_blocks(trace: Trace, block_size: int) -> Iterator[OptimumPrompt]:
    """Whole blocks of every prompt; a request that may not reuse hits nothing and leaves nothing."""
    token_ids = TokenIds(trace)
    roots: dict[object, int] = {}
    for request in trace:
        root = roots.setdefault(request.scope, len(roots))
        if not request.reuse:
            yield _nothing(request)
        elif request.unit == block_size:  # a part is a block: its number says as much as its tokens
            keys = chain_keys(request.parts[: request.length // block_size].astype(np.int32), 1, root)
            yield OptimumPrompt(keys, request.length, (request.length - 1) // block_size)
        else:
            yield whole_blocks(token_ids.prompt(request), block_size, root)


def in_tokens(trace: Trace) -> Iterator[OptimumPrompt]:
    """Single tokens, as pieces between the places where prompts part: as many as the trace has parts, about.

    A part is cut where a prompt leaves it and one token before a prompt's end; the last token is always computed.
    """
    cuts = _cuts(trace)
    fresh = np.diff(cuts // _FAR, prepend=-1) > 0  # the first cut of its part
    lengths = np.where(fresh, cuts % _FAR, np.diff(cuts, prepend=0))
    roots: dict[object, int] = {}
    for request in trace:
        root = roots.setdefault(request.scope, len(roots))
        if not request.reuse:
            yield _nothing(request)
            continue
        firsts = np.searchsorted(cuts, request.parts * _FAR)
        lasts = np.searchsorted(cuts, request.parts * _FAR + request.sizes, side="right")
        counts = lasts - firsts
        pieces = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        keys = chain_keys(pieces.astype(np.int32), 1, root)
        yield OptimumPrompt(keys, request.length, len(pieces) - 1, lengths[pieces])


def _cuts(trace: Trace) -> NDArray[np.int64]:
    """Every place a part is cut at, ascending: part number x _FAR + tokens before the cut."""
    ends = [request.parts * _FAR + request.sizes for request in trace]
    lasts = np.array([request.parts[-1] * _FAR + request.sizes[-1] - 1 for request in trace], np.int64)
    cuts = np.unique(np.concatenate([*ends, lasts]))
    return cuts[cuts % _FAR > 0]


def _nothing(request: TraceRequest) -> OptimumPrompt:
    return OptimumPrompt(np.empty(0, np.uint64), request.length, 0)
