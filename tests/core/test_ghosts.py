"""Pages that are gone and remembered where no order learns from them: both stores remember the same, whenever asked."""

from __future__ import annotations

from random import Random
from typing import Literal, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from quire import Cache, CacheConfig, Miss, Request, Scope, TierConfig, check
from quire.core.store import StoreName

Int32 = NDArray[np.int32]


class Life(NamedTuple):
    """How a pair of caches lives."""

    ghosts: int  # per slot
    slots: int
    blocks: int  # of a prompt, a token each
    prompts: int
    chance: float  # that somebody asks after a prompt
    eviction: Literal["lru", "adaptive"] = "lru"
    cuts: int = 1  # places where prompts part from each other lie so far apart
    scopes: int = 1


LIVES = {
    "a ring that goes round often": Life(1, 96, 24, 200, 0.2),
    "asked all the time": Life(8, 96, 24, 80, 1.0),
    "more gone pages than are entered at once": Life(3, 1000, 700, 20, 0.1),
    "a ring of a few texts": Life(1, 40, 30, 300, 0.5),
    "ghosts are met": Life(2, 60, 40, 200, 0.3, "adaptive"),
    "a ring of a few texts that are met": Life(1, 40, 30, 300, 0.5, "adaptive"),
    "the same text in many scopes": Life(4, 50, 20, 200, 0.5, scopes=4),
    "the same text in many scopes, met": Life(4, 50, 20, 200, 0.5, "adaptive", scopes=4),
    "texts that part at one place": Life(64, 24, 16, 200, 0.1, cuts=12),
    "texts that part at one place, met": Life(64, 24, 16, 200, 0.1, "adaptive", cuts=12),
}


def told(cache: Cache, ask: Request) -> tuple[int, tuple[Miss, ...], int]:
    """What a receipt says, and how many ghosts there are."""
    receipt = cache.explain(ask)
    return receipt.reused, receipt.misses, cache.usage().ghosts


def serve(cache: Cache, request: Request, keep: int | None) -> tuple[Miss, ...]:
    """A prompt from admission to release, and what its receipt says; sometimes what it stored is cut off again."""
    batch = cache.add_sequence_batch([request])
    cache.finish(batch.plan)
    (sequence,) = batch.sequences
    cache.commit(sequence)
    cache.release(sequence)
    if keep is not None:
        cache.truncate(Request("cut", request.tokens, scope=request.scope), keep)
    return batch.receipts[0].misses


def next_prompt(life: Life, dice: Random, seen: list[Request]) -> Request:
    """New text, or such as goes on from a place in an old one; perhaps as short as that."""
    tokens = np.array([dice.randrange(1 << 20) for _ in range(life.blocks)], np.int32)
    if seen and dice.random() < 0.5:
        cut = dice.randrange(1, life.blocks) // life.cuts * life.cuts
        old = dice.choice(seen[-40:]).tokens[:cut]
        tokens[: len(old)] = old
        tokens = tokens[: dice.randrange(cut + 1, life.blocks + 1)]
    return Request(len(seen), tokens, scope=Scope(salt=dice.randrange(life.scopes)))


@pytest.mark.parametrize("name", LIVES)
def test_both_stores_remember_the_same(name: str) -> None:
    pytest.importorskip("quire.core.store._compiled")
    life, dice, now = LIVES[name], Random(name), 0.0
    seen: list[Request] = []
    causes: set[str] = set()
    tiers = (TierConfig("device", life.slots),)
    config = CacheConfig(tiers, 1, max_length=life.blocks, receipts=True, ghosts=life.ghosts, eviction=life.eviction)
    names: tuple[StoreName, ...] = ("twin", "compiled")
    pair = [Cache(config, clock=lambda: now, store=store) for store in names]
    for _ in range(life.prompts):
        now += 0.3
        request = next_prompt(life, dice, seen)
        seen.append(request)
        keep = dice.randrange(life.blocks) if dice.random() < 0.1 else None
        first, second = (serve(cache, request, keep) for cache in pair)
        assert first == second
        if dice.random() < life.chance:
            asked = dice.choice(seen)
            assert told(pair[0], asked) == told(pair[1], asked)
    for request in seen:
        one, other = (told(cache, request) for cache in pair)
        assert one == other
        causes |= {miss.cause for miss in one[1]}
    assert {"evicted", "last_token"} <= causes
    for cache in pair:
        check(cache)
        cache.clear()
        assert cache.usage().ghosts == 0 and "evicted" not in {miss.cause for miss in told(cache, seen[0])[1]}


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_a_few_blocks_that_go_again_and_again_are_remembered_alike(eviction: Literal["lru", "adaptive"]) -> None:
    """Most of the pool is held: the same eight blocks go hundreds of times while the ring turns once."""
    pytest.importorskip("quire.core.store._compiled")
    now = 0.0
    config = CacheConfig((TierConfig("device", 30),), 1, max_length=30, receipts=True, ghosts=64, eviction=eviction)
    names: tuple[StoreName, ...] = ("twin", "compiled")
    pair = [Cache(config, clock=lambda: now, store=store) for store in names]
    for cache in pair:
        cache.add_sequence_batch([Request("stays", np.arange(100, 120, dtype=np.int32))])
    head = np.arange(8, dtype=np.int32)
    for turn in range(300):
        now += 0.5
        new, others = np.append(head, 1000 + turn).astype(np.int32), np.arange(10, dtype=np.int32) + 10_000 + 10 * turn
        first, second = ([serve(cache, Request(turn, text), None) for text in (new, others)] for cache in pair)
        assert first == second
        for asked in (new, np.append(head, [2000 + turn, 1, 1]).astype(np.int32), others - 30):
            assert told(pair[0], Request("asked", asked)) == told(pair[1], Request("asked", asked))


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_a_page_that_goes_again_is_remembered_again_and_the_last_time_is_told(store: StoreName) -> None:
    now = 0.0
    config = CacheConfig((TierConfig("device", 2),), 1, max_length=8, receipts=True, ghosts=8)
    cache = Cache(config, clock=lambda: now, store=store)
    prompt, ask = np.array([1, 2], np.int32), np.array([1, 2, 3], np.int32)
    for turn in range(3):  # it goes at 1 s, 3 s and 5 s
        now = 2.0 * turn
        serve(cache, Request(turn, prompt), None)
        now += 1.0
        serve(cache, Request(10 + turn, np.array([90 + turn, 80], np.int32)), None)
    now = 7.0
    (gone, _) = cache.explain(Request("asked", ask)).misses
    assert (gone.cause, gone.start, gone.stop, gone.seconds, gone.admission) == ("evicted", 0, 2, 2.0, 6)
    assert cache.usage().ghosts == 10  # three times two, and the others twice
    serve(cache, Request(20, prompt), 0)  # what is cut off is remembered no more, however often it went
    _, misses, ghosts = told(cache, Request("asked", ask))
    assert ghosts == 12 - 6 and {miss.cause for miss in misses} == {"new", "last_token"}
    check(cache)
