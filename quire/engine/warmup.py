"""Warm-up: dummy requests run through the whole path once, so that the first user does not pay for it.

They share nothing and leave nothing behind, whatever happens. Knows no scheduler.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.core.cache import Cache
from quire.core.records.request import Request
from quire.core.records.span import Span
from quire.core.state.sequence import Sequence
from quire.engine.model.batch import Segment
from quire.engine.settings import EngineConfig
from quire.engine.step.moves import Moves

Compute = Callable[[list[Segment]], object]


def warm_up(cache: Cache, moves: Moves, config: EngineConfig, compute: Compute) -> int:
    """One part of a prompt, then one decoding step of many; returns tokens computed."""
    live: list[Sequence] = []
    try:
        longest = min(config.longest_chunk, config.max_length - 1)
        total = _prompt(cache, moves, config, compute, (longest, live))
        while len(live) < config.max_sequences and _seat(cache, moves, len(live), 1, live):
            total += 1
        cache_rows = [sequence for sequence in live if sequence.computed < sequence.length]
        if cache_rows:
            compute([_segment(sequence, Span(0, 1)) for sequence in cache_rows])
            cache.commit(cache_rows)
        rows = [sequence for sequence in live if sequence.computed == sequence.length]
        plan = cache.grow(rows, np.ones(len(rows), np.int32)) if rows else None
        if plan is not None:
            moves.carry(plan)
            moves.settle()
            compute([_segment(sequence, Span(sequence.computed, sequence.length)) for sequence in rows])
            cache.commit(rows)
            total += len(rows)
        return total
    finally:
        moves.settle()
        for sequence in live:
            cache.release(sequence, store=False)


def _prompt(cache: Cache, moves: Moves, config: EngineConfig, compute: Compute, ask: tuple[int, list[Sequence]]) -> int:
    """A prompt as long as a step may compute, or as long as the cache holds."""
    length, live = ask
    while length and not (seated := _seat(cache, moves, len(live), length, live)):
        length //= 2
    if not length or not seated:
        return 0
    compute([_segment(live[-1], Span(0, length))])
    cache.commit(live[-1])
    return length


def _seat(cache: Cache, moves: Moves, number: int, length: int, live: list[Sequence]) -> bool:
    batch = cache.add_sequence_batch([Request.dummy(("warm-up", number), length)])
    moves.carry(batch.plan)
    moves.settle()
    live.extend(batch.sequences)
    return bool(batch.sequences)


def _segment(sequence: Sequence, span: Span) -> Segment:
    return Segment(sequence.row, span.start, np.ones(len(span), np.int32), 1)
