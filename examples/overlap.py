"""The engine of examples/engine.py one step ahead of its device: python examples/overlap.py

The host hands out and launches step n+1 before it hears what step n has sampled. `texts` is the device's: a token is in
it as soon as its step has run there. What the host knows is in the cache.
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np
from engine import BLOCK, VOCABULARY, Engine

from quire import LaunchedStep, Plan, Sequence, Stored


class AheadEngine(Engine):
    """Steps are prepared while the last one computes; `flying` has those that the host has not heard of."""

    def __init__(self, device_pages: int, host_pages: int, budget: int) -> None:
        super().__init__(device_pages, host_pages, budget)
        self.flying: deque[tuple[LaunchedStep, list[Sequence], list[int]]] = deque()

    def step(self) -> None:
        """Hand out a step, launch it, and hear of the one before."""
        self._grow([one for one in self.running if one.prompt_end <= one.ran < self.ends[one.id] - 1])
        while self.flying and not self.running:
            self._hear()  # what was suspended gives up its slots when its last step is committed
        unfinished = [one for one in self.running if one.ran < one.prompt_end]
        with self.cache.claim(list(self.waiting)) as claims:
            left = max(0, self.budget - len(self.running))
            batch = self.cache.admit(claims, token_budget=left, max_chunk=4 * BLOCK, continuing=unfinished)
        self._admitted(batch)
        self._run(batch.plan)
        self._launch()
        while len(self.flying) > 1 or (self.flying and not len(self.flying[-1][0].rows)):
            self._hear()
        events = self.cache.take_events()
        self.stored += sum(len(event.hashes) for event in events if isinstance(event, Stored))

    def _grow(self, decoding: list[Sequence]) -> None:
        """Places for tokens that are not known yet. No room: first hear of everything, then suspend the youngest."""
        while decoding and (plan := self.cache.grow(decoding)) is None:
            if self.flying:
                self._hear()
            else:
                youngest = self.running.pop()
                del self.texts[youngest.id][youngest.length :]
                self.waiting.appendleft(self.cache.suspend(youngest))
                self.suspended += 1
            decoding = [one for one in decoding if one in self.running]
        if decoding:
            self._run(plan)

    def _run(self, plan: Plan | None) -> None:
        super()._run(plan)
        for one in self.running:  # set back under a step in flight: what that samples counts nothing
            if not any(one in sequences for _, sequences, _ in self.flying) or one.ran == one.computed < one.length:
                del self.texts[one.id][one.length :]

    def _launch(self) -> None:
        """The device begins: it knows the tokens that it has sampled itself."""
        step = self.cache.launch()
        by_row = {one.row: one for one in self.running}
        sequences, tokens = [by_row[row] for row in step.rows.tolist()], list[int]()
        for one, start, end in zip(sequences, step.starts.tolist(), step.ends.tolist(), strict=True):
            self._compute(one, start, end)
            tokens.append(self._sampled(one, end) if end >= one.prompt_end else -1)
        self.flying.append((step, sequences, tokens))

    def _sampled(self, one: Sequence, end: int) -> int:
        pages = self.pages[self.cache.table()[one.row][: -(-end // BLOCK)]]
        token = int(pages.reshape(-1)[:end].sum()) % VOCABULARY
        self.texts[one.id][end:] = [token]
        return token

    def _hear(self) -> None:
        """The oldest step is over: its tokens are known, and its full pages can be found."""
        step, sequences, tokens = self.flying.popleft()
        self.cache.commit(step, tokens=np.array(tokens, np.int32))
        for one in sequences:
            if one.live and one.length == self.ends[one.id]:
                self.running.remove(one)
                self.cache.release(one)


if __name__ == "__main__":
    engine = AheadEngine(device_pages=int(sys.argv[1]) if sys.argv[1:] else 14, host_pages=12, budget=8)
    for nth in range(12):
        engine.submit(f"r{nth}", [*range(100, 108 + nth % 5), nth], num_tokens=12)
    while engine.waiting or engine.running:
        engine.step()
    print(f"12 answers: {engine.computed} tokens computed, {engine.reused} reused, {engine.suspended} times suspended")
