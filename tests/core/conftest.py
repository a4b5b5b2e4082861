"""What the core's tests share: both stores, small caches, tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire import Cache, CacheConfig, TierConfig
from quire.core.store import StoreName


def small(store: StoreName, *slots: int, **options: Any) -> Cache:
    """A cache of blocks of 4 tokens, with so many slots per tier."""
    tiers = tuple(TierConfig(name, count) for name, count in zip(("device", "host", "disk"), slots, strict=False))
    clock = {"clock": options.pop("clock")} if "clock" in options else {}
    config = CacheConfig(tiers, **{"block_size": 4, "max_sequences": 8, "max_length": 256} | options)
    return Cache(config, store=store, **clock)


def seq(start: int, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Consecutive token ids."""
    return np.arange(start, start + count, dtype=np.int32)


def text(number: int, blocks: int = 4) -> np.ndarray[Any, np.dtype[np.int32]]:
    """A prompt of whole blocks of 4 tokens and one token more; each number has its own."""
    return seq(1000 * number, blocks * 4 + 1)


def serve(cache: Cache, request: Any) -> int:
    """A request's whole life; where it started."""
    batch = cache.add_sequence_batch([request])
    cache.finish(batch.plan)
    (sequence,) = batch.sequences
    cache.commit(sequence)
    start: int = sequence.start
    cache.release(sequence)
    return start
