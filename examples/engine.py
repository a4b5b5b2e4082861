"""A whole engine loop around the cache, on a model too small to be wrong about: python examples/engine.py

The model's KV of a token is one number, mixed from the token and the KV before it; its next token comes from the sum of
all KV it reads. It reads and writes them in pages, through the block table: one wrong page, and the answer is another.
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np
from numpy.typing import NDArray

from quire import Batch, Cache, CacheConfig, Plan, Request, Sequence, TierConfig
from quire.tiers import ArenaTier, Mover, PageLayout

BLOCK, SEQUENCES, VOCABULARY, LONGEST = 4, 8, 1000, 256
Int32 = NDArray[np.int32]


def kv_of(token: int, before: int) -> int:
    """What the model keeps of one token."""
    return (before * 0x9E3779B1 + token + 1) % (1 << 40)


class Engine:
    """Continuous batching: prompts in chunks and one token for every running sequence, within a budget of tokens."""

    def __init__(self, device_pages: int, host_pages: int, budget: int) -> None:
        tiers = (TierConfig("device", device_pages), TierConfig("host", host_pages))
        self.cache = Cache(CacheConfig(tiers, BLOCK, max_sequences=SEQUENCES, max_length=LONGEST, events=True))
        memory = [ArenaTier(tier.name, [tier.of_pool(0)], [8 * BLOCK]) for tier in tiers]
        self.pages = memory[0].view(0).view(np.int64)  # what kernels read and write: [slot, token in the block]
        self.mover = Mover(memory, [PageLayout(8 * BLOCK, planes=1)], BLOCK)
        self.budget = SEQUENCES + budget  # one token for each that decodes, the rest for prompts
        self.waiting: deque[Request] = deque()
        self.running: list[Sequence] = []  # oldest first
        self.rows: Int32 = np.empty(0, np.int32)  # of the running ones; all below is by row
        self.at = self.cache.progress()  # tokens known, computed, handed out: a live view
        self.text = np.zeros((SEQUENCES, LONGEST + 1), np.int32)  # prompt and answer so far
        self.ends = np.zeros(SEQUENCES, np.int32)  # length at which a text is done
        self.asked: dict[object, int] = {}  # the same by name
        self.texts: dict[object, list[int]] = {}  # that are done
        self.failed: dict[object, str] = {}  # what the cache can never hold, and why
        self.reused = self.computed = self.suspended = self.events = 0

    def submit(self, name: str, prompt: list[int], num_tokens: int) -> None:
        """Queue a prompt for an answer of so many tokens."""
        self.asked[name] = len(prompt) + num_tokens
        self.waiting.append(Request(name, np.array(prompt, np.int32), max_new_tokens=num_tokens))

    def step(self) -> None:
        """One step of the model, for every sequence that has a place in it."""
        self._grow()
        late = self.at.ran[self.rows] < self.at.length[self.rows]  # of the others all tokens were handed out
        unfinished = [self.running[place] for place in np.flatnonzero(late).tolist()]
        with self.cache.claim(list(self.waiting)) as claims:  # phase 1: what each can reuse is found and held
            left = self.budget - (len(self.rows) - len(unfinished))  # phase 2: what fits of the queue, in order
            batch = self.cache.admit(claims, token_budget=left, max_chunk=4 * BLOCK, continuing=unfinished)
        self._admitted(batch)
        self._run(batch.plan)
        work = self.rows[self.at.computed[self.rows] < self.at.ran[self.rows]]  # one set back goes on in the next step
        starts, ends = self.at.computed[work], self.at.ran[work]
        self._compute(work, starts, ends)
        self.cache.commit(work)  # full pages can be found from here on
        done = ends == self.at.length[work]
        if done.any():
            rows, ends = work[done], ends[done]
            self.text[rows, ends] = self._sample(rows, ends)
            self._end(rows[ends + 1 == self.ends[rows]])
        self.events += len(self.cache.take_events())  # once per step; quire.events.Publisher sends them to routers

    def _grow(self) -> None:
        """The sampled tokens get slots, all or none. No room: the youngest is suspended, and waits as a request."""
        while True:
            lengths = self.at.length[self.rows]
            rows = self.rows[ready := self.at.computed[self.rows] == lengths]
            plan = self.cache.grow(rows, self.text[rows, lengths[ready]]) if len(rows) else None
            if plan is not None or not len(rows):
                return self._run(plan)
            youngest, length = self.running[-1], self.running[-1].length
            rest = self.text[youngest.row, length : length + int(ready[-1])]  # sampled, and never appended
            self.waiting.appendleft(self.cache.suspend(youngest, rest))
            self._still_live()
            self.suspended += 1

    def _admitted(self, batch: Batch) -> None:
        self.failed |= {refusal.request.id: str(refusal) for refusal in batch.refused if refusal.never}
        self.waiting = deque(one.request for one in batch.refused if not one.never)  # in order, for the next step
        for one in batch.sequences:
            self.text[one.row, : one.length], self.ends[one.row] = one.request.tokens, self.asked[one.id]
            self.reused += one.start
        if batch.sequences:
            self.running += batch.sequences
            self._still_live()

    def _run(self, plan: Plan | None) -> None:
        """Moves come first. A page that did not come is a miss, and `finish` names the sequences that counted on it."""
        while plan:  # a plan without moves needs no finish
            finished = self.cache.finish(plan, self.mover.run(plan))
            self.mover.settle(plan.number)
            self.waiting.extendleft(back.request for back in finished.setbacks if back.request is not None)  # lost
            self._still_live()
            plan = finished.plan  # what it took to replace lost pages

    def _still_live(self) -> None:
        self.running = [one for one in self.running if one.live]
        self.rows = np.array([one.row for one in self.running], np.int32)

    def _compute(self, rows: Int32, starts: Int32, ends: Int32) -> None:
        """The model."""
        table = self.cache.table()
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            kv = int(self.pages[table[row, (start - 1) // BLOCK], (start - 1) % BLOCK]) if start else 0
            for place, token in enumerate(self.text[row, start:end].tolist(), start):
                kv = self.pages[table[row, place // BLOCK], place % BLOCK] = kv_of(token, kv)
        self.computed += int((ends - starts).sum())

    def _sample(self, rows: Int32, ends: Int32) -> Int32:
        """The model: the token behind the end of each."""
        kv = [self.pages[self.cache.table()[row]].reshape(-1)[:end] for row, end in zip(rows, ends, strict=True)]
        return np.array([int(some.sum()) % VOCABULARY for some in kv], np.int32)

    def _end(self, rows: Int32) -> None:
        """The answers in these rows are complete."""
        if len(rows):
            over = [one for one in self.running if one.row in rows]
            self.texts |= {one.id: self.text[one.row, : self.ends[one.row]].tolist() for one in over}
            self.cache.release(over)  # what they computed stays findable
            self._still_live()


if __name__ == "__main__":
    engine = Engine(device_pages=int(sys.argv[1]) if sys.argv[1:] else 14, host_pages=12, budget=8)
    for nth in range(12):
        engine.submit(f"r{nth}", [*range(100, 108 + nth % 5), nth], num_tokens=12)
    while engine.waiting or engine.running:
        engine.step()
    print(f"12 answers: {engine.computed} tokens computed, {engine.reused} reused, {engine.suspended} times suspended")
