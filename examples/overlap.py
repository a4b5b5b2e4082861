"""The engine of examples/engine.py one step ahead of its device: python examples/overlap.py

The host hands out and launches step n+1 before it hears what step n has sampled. `text` is the device's: a token is in
it as soon as its step has run there. What the host knows is in the cache.
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np
from engine import BLOCK, Engine, Int32

from quire import LaunchedStep


class AheadEngine(Engine):
    """Steps are prepared while the last one computes; `flying` has those that the host has not heard of."""

    def __init__(self, device_pages: int, host_pages: int, budget: int) -> None:
        super().__init__(device_pages, host_pages, budget)
        self.flying: deque[tuple[LaunchedStep, Int32]] = deque()  # with what each has sampled; below 0: nothing

    def step(self) -> None:
        """Hand out a step, launch it, and hear of the one before."""
        self._grow()
        while self.flying and not self.running:
            self._hear()  # what was suspended gives up its slots when its last step is committed
        unfinished = [self.running[place] for place in self._prompts()]
        with self.cache.claim(list(self.waiting)) as claims:
            left = max(0, self.budget - len(self.running))
            batch = self.cache.admit(claims, token_budget=left, max_chunk=4 * BLOCK, continuing=unfinished)
        self._admitted(batch)
        self._run(batch.plan)
        self._launch()
        while len(self.flying) > 1 or (self.flying and not len(self.flying[-1][0].rows)):
            self._hear()
        self.events += len(self.cache.take_events())

    def _grow(self) -> None:
        """Places for tokens that are not known yet. No room: first hear of everything, then suspend the youngest."""
        while True:
            decodes = self.at.ran[self.rows] < self.ends[self.rows] - 1
            decodes[self._prompts()] = False
            rows = self.rows[decodes]
            plan = self.cache.grow(rows) if len(rows) else None
            if plan is not None or not len(rows):
                return self._run(plan)
            if self.flying:
                self._hear()
            else:
                self.waiting.appendleft(self.cache.suspend(self.running[-1]))
                self._still_live()
                self.suspended += 1

    def _prompts(self) -> list[int]:
        """Places of running sequences with a part of their prompt to come; others lack only a token just heard of."""
        late = np.flatnonzero(self.at.ran[self.rows] < self.at.length[self.rows]).tolist()
        return [place for place in late if self.running[place].ran < self.running[place].prompt_end]

    def _launch(self) -> None:
        """The device begins: it knows the tokens that it has sampled itself."""
        step = self.cache.launch()
        self._compute(step.rows, step.starts, step.ends)
        whole = step.ends >= self.at.length[step.rows]  # else a part of a prompt is computed
        tokens = np.full(len(step.rows), -1, np.int32)
        tokens[whole] = self._sample(step.rows[whole], step.ends[whole])
        self.text[step.rows[whole], step.ends[whole]] = tokens[whole]
        self.flying.append((step, tokens))

    def _hear(self) -> None:
        """The oldest step is over: its tokens are known, and its full pages can be found."""
        step, tokens = self.flying.popleft()
        self.cache.commit(step, tokens=tokens)
        self._end(step.rows[self.at.length[step.rows] == self.ends[step.rows]])


if __name__ == "__main__":
    engine = AheadEngine(device_pages=int(sys.argv[1]) if sys.argv[1:] else 14, host_pages=12, budget=8)
    for nth in range(12):
        engine.submit(f"r{nth}", [*range(100, 108 + nth % 5), nth], num_tokens=12)
    while engine.waiting or engine.running:
        engine.step()
    print(f"12 answers: {engine.computed} tokens computed, {engine.reused} reused, {engine.suspended} times suspended")
