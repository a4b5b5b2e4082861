"""What the tests of events share: small caches with a life, a router that knows only the public form, deadlines."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from quire import Cache, CacheConfig, LayerGroup, Request, RetainRange, Retention, Scope, TierConfig

FULL = (LayerGroup("full"),)
MIXED = (LayerGroup("full"), LayerGroup("window", window=6, sinks=2), LayerGroup("state", snapshot_every=8))
SALTS = (None, None, None, "a", 7)


def build(slots: int = 16, host: int = 8, *, groups: tuple[LayerGroup, ...] = FULL, **options: Any) -> Cache:
    """A cache with events on; blocks of 4 tokens unless told otherwise."""
    tiers = (TierConfig("device", slots), TierConfig("host", host)) if host else (TierConfig("device", slots),)
    options = {"block_size": 4, "max_sequences": 8, "max_length": 256, "events": True} | options
    return Cache(CacheConfig(tiers, groups=groups, **options))


def ids(*parts: int | range) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Token ids from ranges and single numbers."""
    return np.array([t for part in parts for t in ([part] if isinstance(part, int) else part)], np.int32)


def run(cache: Cache, name: Any, tokens: Any, **request: Any) -> int:
    """One request from admission to release; where it started."""
    batch = cache.add_sequence_batch([Request(name, tokens, **request)])
    (sequence,) = batch.sequences
    cache.finish(batch.plan)
    cache.commit(sequence)
    cache.release(sequence)
    return int(sequence.start)


class Life:
    """A cache in which requests come and go at random; prompts share beginnings, and room is short."""

    def __init__(self, cache: Cache, seed: int) -> None:
        self.cache, self.dice, self.names = cache, Random(seed), 0

    def step(self) -> None:
        """A few requests, and sometimes something rarer."""
        for _ in range(self.dice.randint(1, 3)):
            self.names += 1
            priority = self.dice.choice((None, None, 0, 50, 90))
            retention = None if priority is None else Retention((RetainRange(0, None, priority, None),))
            run(self.cache, self.names, self.prompt(), scope=Scope(salt=self.dice.choice(SALTS)), retention=retention)
        if self.dice.random() < 0.02:
            self.cache.clear()

    def prompt(self) -> Any:
        """A few families of prompts."""
        family, length = self.dice.randrange(4), self.dice.randint(5, 30)
        return ids(*(100 * family + place // 9 * self.dice.choice((1, 1, 2)) for place in range(length)))
