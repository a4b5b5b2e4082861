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
from quire.engine.model.packing import Segment
from quire.engine.setup.engine_config import EngineConfig
from quire.engine.step.plan_runner import PlanRunner

Compute = Callable[[list[Segment]], object]


class WarmUp:
    """Dummy requests of one engine; `compute` runs segments through batch builder and model."""

    def __init__(self, cache: Cache, plans: PlanRunner, config: EngineConfig, compute: Compute) -> None:
        self._cache, self._plans, self._config, self._compute = cache, plans, config, compute
        self._live: list[Sequence] = []

    def run(self) -> int:
        """One part of a prompt, then one decoding step of many; returns tokens computed."""
        try:
            total = self._prompt()
            while len(self._live) < self._config.max_sequences and self._seat(1):
                total += 1
            short = [sequence for sequence in self._live if sequence.computed < sequence.length]
            if short:
                self._compute([_segment(sequence, Span(0, 1)) for sequence in short])
                self._cache.commit(short)
            return total + self._decode()
        finally:
            self._plans.settle()
            for sequence in self._live:
                self._cache.release(sequence, store=False)

    def _prompt(self) -> int:
        """A prompt as long as a step may compute, or as long as the cache holds."""
        length = min(self._config.longest_chunk, self._config.max_length - 1)
        while length and not self._seat(length):
            length //= 2
        if length:
            self._compute([_segment(self._live[-1], Span(0, length))])
            self._cache.commit(self._live[-1])
        return length

    def _decode(self) -> int:
        """A token for every sequence, if there is room."""
        rows = [sequence for sequence in self._live if sequence.computed == sequence.length]
        plan = self._cache.grow(rows, np.ones(len(rows), np.int32)) if rows else None
        if plan is None:
            return 0
        self._plans.carry(plan)
        self._plans.settle()
        self._compute([_segment(sequence, Span(sequence.computed, sequence.length)) for sequence in rows])
        self._cache.commit(rows)
        return len(rows)

    def _seat(self, length: int) -> bool:
        """One more sequence of so many tokens; False: there is no room."""
        batch = self._cache.add_sequence_batch([Request.dummy(("warm-up", len(self._live)), length)])
        self._plans.carry(batch.plan)
        self._plans.settle()
        self._live.extend(batch.sequences)
        return bool(batch.sequences)


def _segment(sequence: Sequence, span: Span) -> Segment:
    return Segment(sequence.row, span.start, np.ones(len(span), np.int32), 1)
