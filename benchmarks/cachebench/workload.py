"""The workload of the benchmark: prompts and the cache they meet. Measures nothing.

100,000 slots of 16 tokens; 50 system prompts x 40 conversations (32 shared + 40 own blocks each), documents whose
prefix will be hit; about 89,000 blocks cached and idle. Same for Quire, for the floor in C and for vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire import Cache, CacheConfig, Request, TierConfig

Int32 = NDArray[np.int32]
BLOCK, SLOTS, PROMPT, VOCABULARY = 16, 100_000, 8192, 128_000
SYSTEMS, TALKS, SHARED, OWN = 50, 40, 32, 40
WARM = 89_500  # blocks cached and idle
DEVICE, HOST = 20_000, 40_000  # slots where both are full
EVICTION = "QUIRE_BENCH_EVICTION"  # names the order; without it the default of the tree that is measured
RECEIPTS = "QUIRE_BENCH_RECEIPTS"  # set: every claim makes a receipt
HIT = PROMPT * 9 // 10 // BLOCK * BLOCK
BATCH, HALF = 64, PROMPT // 2


def text(seed: int, num_tokens: int) -> Int32:
    """Tokens that no other seed shares a block with, nor the first token: a hit of one token is a hit as well."""
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, num_tokens, dtype=np.int32)
    tokens[0] = VOCABULARY + seed
    return tokens


def chosen() -> dict[str, Any]:
    """Fields of the config that the environment names."""
    order = {"eviction": os.environ[EVICTION]} if EVICTION in os.environ else {}
    return order | ({"receipts": True} if RECEIPTS in os.environ else {})  # a tree before them has no such field


def make_cache(
    *, slots: int = SLOTS, host: int = 0, events: bool = False, rows: int = 1100, tick: float = 0.1
) -> Cache:
    """An empty cache of the benchmark's shape. Whenever its clock is read, it has gone on by a `tick`."""
    tiers = (TierConfig("device", slots), *((TierConfig("host", host),) if host else ()))
    config = CacheConfig(tiers, BLOCK, max_sequences=rows, max_length=16384, events=events, **chosen())
    return Cache(config, clock=count(0.0, tick).__next__)  # a tenth of a second: pages grow older


def run_through(cache: Cache, tokens: Int32) -> None:
    """Admit, compute, release: its blocks are cached and idle afterwards."""
    batch = cache.add_sequence_batch([Request("filler", tokens)])
    (sequence,) = batch.sequences
    cache.finish(batch.plan)
    cache.commit(sequence, len(tokens))
    cache.release(sequence)


def conversations() -> Iterator[Int32]:
    """2,000 prompts, forty to a system prompt."""
    for system in range(SYSTEMS):
        head = text(1_000 + system, SHARED * BLOCK)
        for talk in range(TALKS):
            yield np.concatenate([head, text(10_000 + system * TALKS + talk, OWN * BLOCK)])


def documents() -> Iterator[Int32]:
    """What the hits hit: one prefix of 90 %, and 64 halves."""
    yield document()
    for number in range(BATCH):
        yield half(number)


def document() -> Int32:
    """The cached 90 % of an 8k prompt."""
    return text(777, HIT)


def half(number: int) -> Int32:
    """The cached half of one prompt of the batch."""
    return text(5_000 + number, HALF)


def warm(cache: Cache) -> None:
    """Fill the cache: conversations first, so that what will be hit is the newest and is not evicted between rounds."""
    room = WARM - sum(len(tokens) for tokens in documents()) // BLOCK
    for tokens in conversations():
        if cache.usage().idle + SHARED + OWN > room:
            break
        run_through(cache, tokens)
    for tokens in documents():
        run_through(cache, tokens)
    cache.take_events()
