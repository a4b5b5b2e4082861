"""Write an incident of today's format, for later versions to play: python -m tests.golden.incident FILE

Prompts in chunks that share a beginning, decoding, a fork, drafts taken back, steps in flight of which one fails, a
hold, and a pool that is too small. The order is said: the file is not about the default.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import count
from pathlib import Path

import numpy as np

from quire import Cache, CacheConfig, LayerGroup, Plan, Request, Scope, Span, TierConfig
from quire.core.records.request import Int32
from quire.incidents import Incidents, load

TEXT = np.arange(100, 140, dtype=np.int32)


def lived(folder: Path) -> Path:
    """One small life, and where its calls were saved."""
    ticks = count()
    incidents = Incidents(folder, thread=False, apart=False)
    groups = (LayerGroup("full", page_bytes=64), LayerGroup("local", page_bytes=64, window=8))
    tiers = (TierConfig("device", (20, 12)), TierConfig("host", (16, 16)))
    config = CacheConfig(tiers, 4, groups, max_sequences=6, max_length=64, max_chunk=16, eviction="lru")
    cache = Cache(config, clock=lambda: next(ticks) * 0.25, watchers=[incidents])

    def grown(plan: Plan | None) -> None:
        assert plan is not None
        cache.finish(plan)

    def come(name: str, tokens: Int32, scope: Scope | None = None) -> None:
        batch = cache.add_sequence_batch([Request(name, tokens, scope or Scope(), session="s")], max_chunk=16)
        cache.finish(batch.plan)
        cache.commit(batch.sequences)
        while batch.sequences and (one := batch.sequences[0]).computed < one.prompt_end:
            cache.finish(cache.add_sequence_batch([], max_chunk=16, continuing=[one]).plan)
            cache.commit(one)

    come("a", TEXT)
    first = cache.sequence("a")
    grown(cache.grow(first, np.array([7, 8, 9], np.int32), num_tokens=3))
    cache.trim(first, 2)
    cache.commit(first)
    held = cache.hold(first, Span(0, 8))
    cache.release(first, back="soon")
    come("b", np.append(TEXT[:24], TEXT[:9]), Scope(salt="tenant"))
    come("c", TEXT[:30])
    forked = cache.fork(cache.sequence("c"), ["d"])
    assert forked is not None
    cache.finish(forked[1])
    running = [cache.sequence("c"), *forked[0]]
    for fails in (False, True):
        grown(cache.grow(running))
        step = cache.launch(running)
        if fails:
            cache.fail(step)
        else:
            cache.commit(step, tokens=np.array([5, 6], np.int32))
    come("e", TEXT[::-1].copy())
    if held is not None:
        cache.drop(held)
    cache.release(running, back="never")
    come("f", TEXT)
    return incidents.save("golden")


def main(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        load(lived(Path(folder))).save(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
