"""A whole engine loop around the cache, on a model too small to be wrong about: python examples/engine.py

The model's KV of a token is one number, mixed from the token and the KV before it; its next token comes from the sum of
all KV it reads. It reads and writes them in pages, through the block table: one wrong page, and the answer is another.
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np

from quire import Batch, Cache, CacheConfig, Plan, Request, Sequence, Stored, TierConfig
from quire.tiers import ArenaTier, Mover, PageLayout

BLOCK, SEQUENCES, VOCABULARY = 4, 8, 1000


def kv_of(token: int, before: int) -> int:
    """What the model keeps of one token."""
    return (before * 0x9E3779B1 + token + 1) % (1 << 40)


class Engine:
    """Continuous batching: prompts in chunks and one token for every running sequence, within a budget of tokens."""

    def __init__(self, device_pages: int, host_pages: int, budget: int) -> None:
        tiers = (TierConfig("device", device_pages), TierConfig("host", host_pages))
        self.cache = Cache(CacheConfig(tiers, BLOCK, max_sequences=SEQUENCES, max_length=256, events=True))
        memory = [ArenaTier(tier.name, [tier.of_pool(0)], [8 * BLOCK]) for tier in tiers]
        self.pages = memory[0].view(0).view(np.int64)  # what kernels read and write: [slot, token in the block]
        self.mover = Mover(memory, [PageLayout(8 * BLOCK, planes=1)], BLOCK)
        self.budget = SEQUENCES + budget  # one token for each that decodes, the rest for prompts
        self.waiting: deque[Request] = deque()
        self.running: list[Sequence] = []  # oldest first
        self.texts: dict[object, list[int]] = {}  # prompt and answer so far
        self.ends: dict[object, int] = {}  # length at which a text is done
        self.failed: dict[object, str] = {}  # what the cache can never hold, and why; the text so far is kept
        self.reused = self.computed = self.suspended = self.stored = 0

    def submit(self, name: str, prompt: list[int], num_tokens: int) -> None:
        """Queue a prompt for an answer of so many tokens."""
        self.texts[name], self.ends[name] = list(prompt), len(prompt) + num_tokens
        self.waiting.append(Request(name, np.array(prompt, np.int32), max_new_tokens=num_tokens))

    def step(self) -> None:
        """One step of the model, for every sequence that has a place in it."""
        self._grow([one for one in self.running if one.computed == one.length])
        decoding = [one for one in self.running if one.ran == one.length]  # all its tokens were handed out
        unfinished = [one for one in self.running if one.ran < one.length]
        with self.cache.claim(list(self.waiting)) as claims:  # phase 1: what each can reuse is found and held
            left = self.budget - len(decoding)  # phase 2: the longest prefix of the queue that fits
            batch = self.cache.admit(claims, token_budget=left, max_chunk=4 * BLOCK, continuing=unfinished)
        self._admitted(batch)
        self._run(batch.plan)
        work = [(one, one.computed, one.length) for one in decoding if one.live and one.ran == one.length]
        spans = batch.spans.items()  # one that was set back meanwhile goes on in the next step
        work += [(one, span.start, span.end) for one, span in spans if one.live and one.ran == span.end]
        for sequence, start, end in work:
            self._compute(sequence, start, end)
        self.cache.commit([sequence for sequence, _, _ in work])  # full pages can be found from here on
        for sequence, _, end in work:
            if end >= sequence.prompt_end:
                self._sample(sequence)
        events = self.cache.take_events()  # once per step; quire.events.Publisher sends them to routers
        self.stored += sum(len(event.hashes) for event in events if isinstance(event, Stored))

    def _grow(self, decoding: list[Sequence]) -> None:
        """The sampled tokens get slots, all or none. No room: the youngest is suspended, and waits as a request."""
        while decoding:
            plan = self.cache.grow(decoding, np.array([self.texts[one.id][-1] for one in decoding], np.int32))
            if plan is not None:
                self._run(plan)
                break
            youngest = self.running.pop()
            rest = np.array(self.texts[youngest.id][youngest.length :], np.int32)  # sampled, and never appended
            self.waiting.appendleft(self.cache.suspend(youngest, rest))
            decoding = [one for one in decoding if one is not youngest]
            self.suspended += 1

    def _admitted(self, batch: Batch) -> None:
        self.failed |= {refusal.request.id: str(refusal) for refusal in batch.refused if refusal.never}
        self.waiting = deque(one.request for one in batch.refused if not one.never)  # in order, for the next step
        self.running += batch.sequences
        self.reused += sum(sequence.start for sequence in batch.sequences)

    def _run(self, plan: Plan | None) -> None:
        """Moves come first. A page that did not come is a miss, and `finish` names the sequences that counted on it."""
        while plan:  # a plan without moves needs no finish
            finished = self.cache.finish(plan, self.mover.run(plan))
            self.mover.settle(plan.number)
            self.waiting.extendleft(back.request for back in finished.setbacks if back.request is not None)  # lost
            self.running = [one for one in self.running if one.live]
            plan = finished.plan  # what it took to replace lost pages

    def _compute(self, sequence: Sequence, start: int, end: int) -> None:
        """The model."""
        slots = self.cache.table()[sequence.row]
        kv = int(self.pages[slots[(start - 1) // BLOCK], (start - 1) % BLOCK]) if start else 0
        for place, token in enumerate(self.texts[sequence.id][start:end], start):
            kv = self.pages[slots[place // BLOCK], place % BLOCK] = kv_of(token, kv)
        self.computed += end - start

    def _sample(self, sequence: Sequence) -> None:
        text = self.texts[sequence.id]
        pages = self.pages[self.cache.table()[sequence.row][: -(-len(text) // BLOCK)]]
        text.append(int(pages.reshape(-1)[: len(text)].sum()) % VOCABULARY)
        if len(text) == self.ends[sequence.id]:
            self.running.remove(sequence)
            self.cache.release(sequence)  # what it computed stays findable


if __name__ == "__main__":
    engine = Engine(device_pages=int(sys.argv[1]) if sys.argv[1:] else 14, host_pages=12, budget=8)
    for nth in range(12):
        engine.submit(f"r{nth}", [*range(100, 108 + nth % 5), nth], num_tokens=12)
    while engine.waiting or engine.running:
        engine.step()
    print(f"12 answers: {engine.computed} tokens computed, {engine.reused} reused, {engine.suspended} times suspended")
