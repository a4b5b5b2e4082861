"""Pages that are gone and remembered where no order learns from them: both stores remember the same, whenever asked."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from quire import Cache, CacheConfig, Miss, Request, TierConfig, check
from quire.core.store import StoreName

Int32 = NDArray[np.int32]


class Life(NamedTuple):
    """How a pair of caches lives."""

    ghosts: int  # per slot
    slots: int
    blocks: int  # of a prompt, a token each
    prompts: int
    chance: float  # that somebody asks after a prompt


LIVES = {
    "a ring that goes round often": Life(1, 96, 24, 200, 0.2),
    "asked all the time": Life(8, 96, 24, 80, 1.0),
    "more gone pages than are entered at once": Life(3, 1000, 700, 20, 0.1),
}


def told(cache: Cache, prompt: Int32) -> tuple[int, tuple[Miss, ...], int]:
    """What a receipt says, and how many ghosts there are."""
    receipt = cache.explain(Request("asked", prompt))
    return receipt.reused, receipt.misses, cache.usage().ghosts


def serve(cache: Cache, name: int, prompt: Int32, keep: int | None) -> tuple[Miss, ...]:
    """A prompt from admission to release, and what its receipt says; sometimes what it stored is cut off again."""
    batch = cache.add_sequence_batch([Request(name, prompt)])
    cache.finish(batch.plan)
    (sequence,) = batch.sequences
    cache.commit(sequence)
    cache.release(sequence)
    if keep is not None:
        cache.truncate(Request("cut", prompt), keep)
    return batch.receipts[0].misses


@pytest.mark.parametrize("life", LIVES)
def test_both_stores_remember_the_same(life: str) -> None:
    pytest.importorskip("quire.core.store._compiled")
    ghosts, slots, blocks, prompts, chance = LIVES[life]
    dice = Random(life)
    seen: list[Int32] = []
    causes: set[str] = set()
    now = 0.0
    config = CacheConfig((TierConfig("device", slots),), 1, max_length=blocks, receipts=True, ghosts=ghosts)
    names: tuple[StoreName, ...] = ("twin", "compiled")
    pair = [Cache(config, clock=lambda: now, store=store) for store in names]
    for name in range(prompts):
        now += 0.3
        prompt = np.array([dice.randrange(1 << 20) for _ in range(blocks)], np.int32)
        if seen and dice.random() < 0.5:
            cut = dice.randrange(1, blocks)
            prompt[:cut] = dice.choice(seen[-40:])[:cut]
        seen.append(prompt)
        keep = dice.randrange(blocks) if dice.random() < 0.1 else None
        first, second = (serve(cache, name, prompt, keep) for cache in pair)
        assert first == second
        if dice.random() < chance:
            asked = dice.choice(seen)
            assert told(pair[0], asked) == told(pair[1], asked)
    for prompt in seen:
        one, other = (told(cache, prompt) for cache in pair)
        assert one == other
        causes |= {miss.cause for miss in one[1]}
    assert {"evicted", "last_token"} <= causes
    for cache in pair:
        check(cache)
        cache.clear()
        assert cache.usage().ghosts == 0 and "evicted" not in {miss.cause for miss in told(cache, seen[0])[1]}


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_a_page_that_goes_again_is_remembered_again_and_the_last_time_is_told(store: StoreName) -> None:
    now = 0.0
    config = CacheConfig((TierConfig("device", 2),), 1, max_length=8, receipts=True, ghosts=8)
    cache = Cache(config, clock=lambda: now, store=store)
    prompt, ask = np.array([1, 2], np.int32), np.array([1, 2, 3], np.int32)
    for turn in range(3):  # it goes at 1 s, 3 s and 5 s
        now = 2.0 * turn
        serve(cache, turn, prompt, None)
        now += 1.0
        serve(cache, 10 + turn, np.array([90 + turn, 80], np.int32), None)
    now = 7.0
    (gone, _) = cache.explain(Request("asked", ask)).misses
    assert (gone.cause, gone.start, gone.stop, gone.seconds, gone.admission) == ("evicted", 0, 2, 2.0, 6)
    assert cache.usage().ghosts == 10  # three times two, and the others twice
    serve(cache, 20, prompt, 0)  # what is cut off is remembered no more, however often it went
    assert cache.usage().ghosts == 12 - 6 and {miss.cause for miss in told(cache, ask)[1]} == {"new", "last_token"}
    check(cache)
