"""MadeUpTraffic: made-up conversations on a real cache, without a model, to see the page at work.

    a few system prompts ──► many conversations ──► turns: prompt in parts, answer token by token, a pause, the next

Owns who asks what and when; seeded, so that two runs are alike. Tokens are random numbers and mean nothing.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quire.core.cache import Cache
from quire.core.records.config import CacheConfig, TierConfig
from quire.core.records.groups import LayerGroup
from quire.core.records.identity import Scope
from quire.core.records.request import Int32, Request
from quire.core.state.sequence import Sequence
from quire.viewer.viewer import Viewer

WORDS = 50_000
CHUNK = 512  # prompt tokens of one sequence in a step
MOST_CLAIMED = 16
SCOPES = (Scope(), Scope(), Scope(lora="poet"), Scope(salt="a tenant"))


def demo_cache(
    device_slots: int = 3000,
    host_slots: int = 4500,
    max_sequences: int = 48,
    clock: Callable[[], float] = time.monotonic,
) -> Cache:
    """A cache that the traffic of `users` below fills in a minute."""
    tiers = (TierConfig("device", (device_slots, device_slots // 4)), TierConfig("host", (host_slots, host_slots // 6)))
    groups = (LayerGroup("full", page_bytes=16_384), LayerGroup("window", page_bytes=16_384, window=256))
    config = CacheConfig(
        tiers, block_size=16, groups=groups, max_sequences=max_sequences, max_length=8192, receipts=True,
        eviction="adaptive",
    )  # fmt: skip
    return Cache(config, clock=clock)


@dataclass(slots=True, eq=False)
class MadeUpTalk:
    """One conversation."""

    scope: Scope
    tokens: Int32  # so far
    turns: int  # still to come
    left: int = 0  # tokens of the present answer to come
    wait: int = 0  # steps until the next one


class MadeUpTraffic:
    """An engine without a model; `viewer` hears what an engine would report."""

    def __init__(self, cache: Cache, users: int = 60, seed: int = 0, viewer: Viewer | None = None) -> None:
        self.cache, self.users, self.viewer = cache, users, viewer
        self._random, self._numbers = random.Random(seed), np.random.default_rng(seed)
        self._systems = [self._words(self._random.choice((160, 420, 900, 1600))) for _ in range(6)]
        self._talks: list[MadeUpTalk] = []
        self._waiting: deque[tuple[Request, MadeUpTalk]] = deque()
        self._running: dict[Sequence, MadeUpTalk] = {}  # whose turn has pages
        self._next = 0

    def waiting(self) -> list[Request]:
        """Who has no pages yet."""
        return [request for request, _ in list(self._waiting)]

    def _words(self, count: int) -> Int32:
        return self._numbers.integers(0, WORDS, count, dtype=np.int32)

    def step(self) -> int:
        """One step of the engine; tokens computed."""
        self._arrive()
        computed = self._decode()
        computed += self._prefill()
        for sequence in [sequence for sequence, talk in self._running.items() if not talk.left]:
            self._end(sequence)
        return computed

    def _arrive(self) -> None:
        """People come, and those who have read their answer go on."""
        if len(self._talks) < self.users and self._random.random() < 0.3:
            system = self._systems[min(self._random.randrange(6), self._random.randrange(6))]
            self._talks.append(MadeUpTalk(self._random.choice(SCOPES), system, self._random.randint(1, 7)))
        for talk in self._talks:
            talk.wait -= 1
            if talk.wait == -1:
                talk.tokens = np.concatenate([talk.tokens, self._words(self._random.randint(12, 220))])
                talk.left = self._random.randint(20, 160)
                self._waiting.append((Request(self._next, talk.tokens, talk.scope), talk))
                self._next += 1

    def _decode(self) -> int:
        """A token for every answer; without room the youngest waits again."""
        while ready := [sequence for sequence in self._running if sequence.computed == sequence.length]:
            plan = self.cache.grow(ready, self._words(len(ready))[:, None])
            if plan is not None:
                self.cache.finish(plan)
                self.cache.commit(ready)
                for sequence in ready:
                    self._running[sequence].left -= 1
                return len(ready)
            youngest = max(ready, key=lambda sequence: int(str(sequence.id)))
            talk = self._running.pop(youngest)
            self._waiting.appendleft((self.cache.suspend(youngest), talk))
        return 0

    def _prefill(self) -> int:
        """Prompts under way go on, and waiting ones come in."""
        going = [sequence for sequence in self._running if sequence.computed < sequence.prompt_end]
        asked = {request.id: talk for request, talk in list(self._waiting)[:MOST_CLAIMED]}
        with self.cache.claim([request for request, _ in list(self._waiting)[:MOST_CLAIMED]]) as claims:
            batch = self.cache.admit(claims, token_budget=4 * CHUNK, max_chunk=CHUNK, continuing=going)
        self.cache.finish(batch.plan)
        if self.viewer is not None:
            self.viewer.admitted(batch)
        for sequence in batch.sequences:
            self._running[sequence] = asked[sequence.id]
        gone = {refusal.request.id for refusal in batch.refused if refusal.never}  # too long for this cache
        self._talks = [talk for talk in self._talks if not any(talk is asked[id] for id in gone)]
        done = gone | {sequence.id for sequence in batch.sequences}
        self._waiting = deque(pair for pair in self._waiting if pair[0].id not in done)
        for sequence, span in batch.spans.items():
            self.cache.commit(sequence, span.end)
        return batch.num_tokens

    def _end(self, sequence: Sequence) -> None:
        talk = self._running.pop(sequence)
        talk.tokens = self.cache.tokens(sequence)
        self.cache.release(sequence)
        talk.turns -= 1
        talk.wait = self._random.randint(5, 120)
        if not talk.turns or len(talk.tokens) > 6000:
            self._talks.remove(talk)
