"""Evictions to the host, many in one call: the compiled store takes slots in runs, and does what the twin does one by
one. Prompts are longer than a run; claims, finds, priorities and shadows lie in its way."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, Claims, Found, LayerGroup, Request, RetainRange, Retention, Sequence, TierConfig
from quire.core.check import check
from quire.core.records.config import Eviction
from quire.core.store import StoreName

BLOCK = 2
ONE = (LayerGroup("full", page_bytes=1),)
TWO = (LayerGroup("low", page_bytes=1), LayerGroup("high", page_bytes=1))


class Both:
    """The same calls to a cache on either store; everything they answer is compared."""

    def __init__(self, **more: Any) -> None:
        names: tuple[StoreName, ...] = ("twin", "compiled")
        tiers = (TierConfig("device", 130), TierConfig("host", 170))
        config = CacheConfig(tiers, BLOCK, max_sequences=8, max_length=400, events=True, **more)
        self.caches = [Cache(config, clock=lambda: 0.0, store=name) for name in names]
        self.longest = 0  # run of pages that one plan has sent down

    def plan(self, plans: list[Any]) -> None:
        one, other = (plan.moves for plan in plans)
        assert one.tolist() == other.tolist()
        self.longest = max(self.longest, len(one))
        for cache, plan in zip(self.caches, plans, strict=True):
            cache.finish(plan)

    def same(self) -> None:
        one, other = (cache._setup.store.dump() for cache in self.caches)
        assert one == other
        told = [repr(cache.take_events()) for cache in self.caches]
        assert told[0] == told[1]
        for cache in self.caches:
            check(cache)


def request(rng: random.Random, name: int, texts: list[np.ndarray[Any, Any]]) -> Request:
    """New tokens, or a text that was there, with another end."""
    tokens = np.arange(name * 1000, name * 1000 + rng.randrange(20, 240), dtype=np.int32)
    if texts and rng.random() < 0.3:
        known = rng.choice(texts[-12:])
        tokens = np.concatenate(
            [known[: rng.randrange(len(known) // 2, len(known)) + 1], tokens[: rng.randrange(1, 20)]]
        )
        tokens = tokens[:300]
    rules = (RetainRange(0, None, rng.choice((20, 34, 36))),) if rng.random() < 0.25 else ()
    return Request(name, tokens, retention=Retention(rules) if rules else None)


def act(
    rng: random.Random, both: Both, rows: list[list[Sequence]], held: list[list[Claims | Found]], ask: Request
) -> bool:
    """One call or two of each cache; whether the request was admitted."""
    what = rng.random()
    if what < 0.15:
        hold = [cache.claim([ask]) if what < 0.07 else cache.find(ask) for cache in both.caches]
        held.append(list(hold))
    elif what < 0.25 and held:
        for handle in held.pop(rng.randrange(len(held))):
            handle.close()
    elif what < 0.45 and rows:
        for cache, sequence in zip(both.caches, rows.pop(rng.randrange(len(rows))), strict=True):
            cache.release(sequence)
    elif what < 0.6 and rows:
        many = rng.sample(rows, rng.randrange(1, len(rows) + 1))
        tokens = np.array([[-1 - rng.randrange(9)] * 20 for _ in many], np.int32)
        plans = [cache.grow([row[nth] for row in many], tokens) for nth, cache in enumerate(both.caches)]
        assert (plans[0] is None) == (plans[1] is None)
        if plans[0] is not None:
            both.plan(plans)
    elif len(rows) < 6:
        batches = [cache.add_sequence_batch([ask]) for cache in both.caches]
        assert len({len(batch.sequences) for batch in batches}) == 1
        both.plan([batch.plan for batch in batches])
        if batches[0].sequences:
            rows.append([batch.sequences[0] for batch in batches])
            for nth, cache in enumerate(both.caches):
                cache.commit(rows[-1][nth])
        return bool(batches[0].sequences)
    elif rng.random() < 0.3:
        both.plan([cache.offload(7) for cache in both.caches])
    return False


@pytest.mark.parametrize("groups", [ONE, TWO], ids=["one group", "two groups"])
@pytest.mark.parametrize("eviction", ["lru", "release_order"])
@pytest.mark.parametrize("shadows", [True, False], ids=["shadows", "no shadows"])
def test_a_run_of_evictions_is_what_they_are_one_by_one(
    groups: tuple[LayerGroup, ...], eviction: Eviction, shadows: bool
) -> None:
    pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built")
    rng, texts = random.Random(f"{len(groups)} {eviction} {shadows}"), list[np.ndarray[Any, Any]]()
    both = Both(groups=groups, eviction=eviction, shadows=shadows)
    rows: list[list[Sequence]] = []
    held: list[list[Claims | Found]] = []
    for name in range(1, 250):
        ask = request(rng, name, texts)
        if act(rng, both, rows, held, ask):
            texts.append(ask.tokens)
        if name % 10 == 0:
            both.same()
    for handle in [handle for pair in held for handle in pair]:
        handle.close()
    both.same()
    stats = both.caches[1].stats()
    assert both.longest > 40 and min(stats.offloaded, stats.dropped) > 200 and stats.onboarded > 0
