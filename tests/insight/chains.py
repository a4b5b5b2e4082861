"""What the tests of insight share: prompts as keys of blocks, and caches that are written down to be believed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from quire.insight.block_table import Keys
from quire.insight.traffic import AskedPrompt, Traffic
from quire.insight.what_if import WhatIf

FAR = 1e9  # seconds: a window that nothing leaves


class Walk(NamedTuple):
    """One use: its blocks, and how many of them a cache could give it; 0 is the end of a request."""

    keys: Keys
    hittable: int


def walks(seed: int, count: int, branches: int = 3, deepest: int = 12) -> list[Walk]:
    """Random prompts of a random tree: some go on from earlier ones, some end early, a few are ends of requests."""
    rng = np.random.default_rng(seed)
    past: list[Keys] = []
    found = []
    for _ in range(count):
        base = past[rng.integers(len(past))] if past and rng.random() < 0.8 else np.empty(0, np.uint64)
        cut = base[: rng.integers(0, len(base) + 1)]
        fresh = rng.integers(1, 1 << 63, rng.integers(0, deepest), dtype=np.uint64) * np.uint64(2)
        keys = np.concatenate([cut, fresh])
        past = [*past, keys][-branches * 8 :]
        kind = rng.random()
        found.append(Walk(keys, 0 if kind < 0.1 else max(len(keys) - int(kind < 0.3), 0)))
    return found


def traffic_of(uses: Iterable[Walk], window: float = FAR, **options: int) -> Traffic:
    """One use a second, a token in each block."""
    traffic = Traffic(1, window, **options)
    for second, use in enumerate(uses):
        traffic.use(use.keys, second, AskedPrompt(len(use.keys), use.hittable, (0,)) if use.hittable else None)
    return traffic


def lru_hits(uses: Iterable[Walk], capacity: int, since: int = 0) -> int:
    """A list in order of last use, walked block by block."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for second, use in enumerate(uses):
        keys = use.keys.tolist()
        for key in keys[: use.hittable]:
            if key not in cache:
                break
            hits += second >= since
        for key in reversed(keys):
            cache.pop(key, None)
            cache[key] = None
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def best_hits(asked: WhatIf, capacity: int) -> float:
    """The last number that it yields."""
    return [found for found in asked.best(capacity) if found is not None][-1]
