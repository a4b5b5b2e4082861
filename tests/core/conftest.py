"""What the core's tests share: both stores, small caches, tokens."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, TierConfig


@pytest.fixture(params=["twin", "compiled"])
def store(request: pytest.FixtureRequest) -> str:
    """Each store in turn; QUIRE_REQUIRE_COMPILED=1 turns a missing compiled one into a failure."""
    if request.param == "compiled" and os.environ.get("QUIRE_REQUIRE_COMPILED") != "1":
        try:
            importlib.import_module("quire.core.store._compiled")
        except ImportError as missing:
            pytest.skip(f"the compiled store is not built: {missing}")
    return str(request.param)


def small(store: str, *slots: int, **options: Any) -> Cache:
    """A cache of blocks of 4 tokens, with so many slots per tier."""
    tiers = tuple(TierConfig(name, count) for name, count in zip(("device", "host", "disk"), slots, strict=False))
    return Cache(CacheConfig(tiers, **{"block_size": 4, "max_sequences": 8, "max_length": 256} | options), store=store)  # type: ignore[arg-type]


def seq(start: int, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Consecutive token ids."""
    return np.arange(start, start + count, dtype=np.int32)


def serve(cache: Cache, request: Any) -> None:
    """A request's whole life."""
    batch = cache.add_sequence_batch([request])
    cache.finish(batch.plan)
    (sequence,) = batch.sequences
    cache.commit(sequence)
    cache.release(sequence)
