"""EngineSource: what the live page shows of a served engine: who waits, its steps, receipts, text. Changes nothing.

Read from the thread that asks: lists are copied whole, and the rest are single words; no step waits for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from quire.core.records.reports.receipt import Receipt
from quire.core.records.request import Int32
from quire.engine.llm import LLM
from quire.engine.runner.engine import Engine
from quire.engine.step.runs.branch import Run
from quire.viewer.source import CacheSource, QueuedRequest, ViewedStep


class StepWatch:
    """Takes part in an engine's steps to note how long the last one took; bounded."""

    num_open = 0

    def __init__(self, source: CacheSource, engine: Engine) -> None:
        self._source, self._engine = source, engine
        self._tokens, self._seconds = 0, dict[str, float]()
        engine.participants.append(self)

    def step(self) -> None:
        """At the beginning of a step: what the one before has added to the sums."""
        stats = self._engine.stats
        if stats.num_tokens == self._tokens:
            return
        parts = {part: spent - self._seconds.get(part, 0.0) for part, spent in stats.seconds.items()}
        self._source.steps.append(ViewedStep(self._source.now(), stats.num_tokens - self._tokens, parts))
        self._tokens, self._seconds = stats.num_tokens, dict(stats.seconds)

    def close(self) -> bool:
        """The engine is closing; nothing of it is touched."""
        return True


class EngineSource(CacheSource):
    """The facts of an LLM."""

    def __init__(self, llm: LLM, name: str) -> None:
        super().__init__(llm.loop.engine.cache, name=name, regret=llm.regret())
        self._engine, self._tokenizer = llm.loop.engine, llm.model.tokenizer
        llm.loop.call(lambda engine: StepWatch(self, engine))

    def run_over(self, run: Run | None) -> None:
        """A run has ended: count what it reused, and why no more."""
        if run is not None and run.receipt is not None:
            self.tally.add(run.receipt)

    def waiting(self) -> list[QueuedRequest]:
        """Branches without pages, oldest first."""
        now = self._engine.clock()
        waiting = list(self._engine.scheduler.waiting)
        return [QueuedRequest(one.id, one.length, -1, max(0.0, now - one.run.times.submitted)) for one in waiting]

    def _run(self, id: Hashable) -> Run | None:
        runs: Mapping[Any, Run] = self._engine.runs
        found = runs.get(id)
        return runs.get(id[0]) if found is None and isinstance(id, tuple) and id else found  # a fork's has its run's

    def receipt(self, id: Hashable) -> Receipt | None:
        """Made when it was first admitted."""
        run = self._run(id)
        return None if run is None else run.receipt

    def tokens(self, id: Hashable) -> Int32 | None:
        """Its prompt."""
        run = self._run(id)
        return None if run is None else run.prompt

    def text(self, tokens: Int32) -> str | None:
        """As the tokenizer reads them."""
        if self._tokenizer is None:
            return None
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False))
