"""The offline optimum: equal to every choice tried, on traces small enough to try them all."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire import Scope
from quire.simulate.optimum.belady import OptimumPrompt, Reuse, chain_keys, whole_blocks
from quire.simulate.optimum.optimum_prompts import in_blocks, in_tokens
from quire.trace.read.token_ids import TokenIds
from quire.trace.read.trace import Trace, TraceRequest
from tests.effort import cases

SIZE = 2
Tokens = tuple[int, ...]


def prompts_of(asks: list[Tokens]) -> list[OptimumPrompt]:
    return [whole_blocks(np.array(ask, np.int32), SIZE) for ask in asks]


def best_by_trying(asks: list[Tokens], capacity: int) -> int:
    """The most hit blocks over every choice of what to keep after every request."""
    reached: dict[frozenset[Tokens], int] = {frozenset(): 0}
    for ask in asks:
        path = [ask[: end * SIZE] for end in range(1, len(ask) // SIZE + 1)]
        after: dict[frozenset[Tokens], int] = {}
        for kept, hits in reached.items():
            run = 0
            while run < (len(ask) - 1) // SIZE and path[run] in kept:
                run += 1
            there = sorted(kept.union(path))
            for choice in combinations(there, min(capacity, len(there))):
                after[frozenset(choice)] = max(after.get(frozenset(choice), 0), hits + run)
        reached = after
    return max(reached.values())


asks_of_few_tokens = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple), min_size=1, max_size=7)


@pytest.mark.long
@settings(max_examples=cases(135, 400), deadline=None)
@given(asks=asks_of_few_tokens, capacity=st.integers(0, 4))
def test_no_choice_of_what_to_keep_hits_more(asks: list[Tokens], capacity: int) -> None:
    assert Reuse(prompts_of(asks), SIZE).optimum(capacity).hit_blocks == best_by_trying(asks, capacity)


def test_unlimited_memory_hits_all_that_was_seen_before() -> None:
    asks: list[Tokens] = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 9, 9), (1, 2, 3, 4, 5), (7, 8), (7, 8)]
    most = Reuse(prompts_of(asks), SIZE).most()
    assert most.hit_blocks == 2 + 2 + 0  # the last token of (7, 8) is always computed, so its block is never hit
    assert most.hit_rate == 4 * SIZE / 20


def test_a_cycle_just_too_large_is_where_knowing_the_future_pays() -> None:
    """LRU hits nothing on a cycle of 4 blocks with room for 3; the optimum keeps two of three for good."""
    asks: list[Tokens] = [(block, block, 0) for _ in range(6) for block in range(4)]
    optimum = Reuse(prompts_of(asks), SIZE).optimum(3)
    assert optimum.hit_blocks == best_by_trying(asks, 3) == 15


def test_more_memory_never_hurts_and_none_hits_nothing() -> None:
    draw = random.Random(4)
    asks = [tuple(draw.randrange(3) for _ in range(draw.randrange(1, 30))) for _ in range(200)]
    reuse = Reuse(prompts_of(asks), SIZE)
    hits = [reuse.optimum(capacity).hit_blocks for capacity in range(0, 400, 20)]
    assert hits[0] == 0 and hits == sorted(hits) and hits[-1] == reuse.most().hit_blocks > 0


def test_an_empty_trace_has_an_optimum_of_zero() -> None:
    assert Reuse([], 16).most().hit_rate == 0.0
    assert Reuse(prompts_of([(1,)]), SIZE).optimum(4).hit_blocks == 0


def test_keys_tell_prefixes_and_roots_apart() -> None:
    tokens = np.arange(64, dtype=np.int32)
    other = tokens.copy()
    other[20] = 99
    keys, changed = chain_keys(tokens, 16), chain_keys(other, 16)
    assert len(keys) == 4 and len(chain_keys(tokens[:63], 16)) == 3
    assert keys[0] == changed[0] and not np.intersect1d(keys[1:], changed[1:]).size
    assert not np.intersect1d(keys, chain_keys(tokens, 16, root=1)).size
    assert len(set(chain_keys(np.zeros(160, np.int32), 16).tolist())) == 10  # the same block at ten depths


def a_trace(draw: random.Random, num_asks: int) -> Trace:
    """Parts of any length, shared beginnings, some cut short; two scopes, and some asks that may not reuse."""
    asks = []
    for number in range(num_asks):
        counts = [draw.randrange(1, 7) for _ in range(draw.randrange(1, 5))]
        parts = np.array([draw.randrange(3) for _ in counts], np.int64)
        scope = Scope(salt="other") if draw.random() < 0.2 else Scope()
        asks.append(TraceRequest(number, number, parts, sum(counts), 1, 0, np.array(counts, np.int64), scope, 0, (),
                        draw.random() < 0.9))  # fmt: skip
    return Trace("made", asks)


def test_pieces_between_cuts_say_the_same_as_single_tokens() -> None:
    for seed in range(20):
        trace = a_trace(random.Random(seed), 30)
        pieces, singles = Reuse(in_tokens(trace), 1), Reuse(in_blocks(trace, 1), 1)
        assert pieces.num_tokens == singles.num_tokens == trace.num_tokens
        for capacity in (0, 3, 7, 20, 1000):
            assert pieces.optimum(capacity) == singles.optimum(capacity)
        assert pieces.most().hit_blocks == singles.most().hit_blocks > 0


def test_tokens_can_only_be_better_than_blocks() -> None:
    trace = a_trace(random.Random(3), 60)
    for blocks in (1, 4, 16):
        assert (
            Reuse(in_tokens(trace), 1).optimum(blocks * 4).hit_rate
            >= Reuse(in_blocks(trace, 4), 4).optimum(blocks).hit_rate
        )


def test_what_the_second_half_hits_at_best() -> None:
    """The first requests fill the cache, and are not counted."""
    prompts = [
        OptimumPrompt(np.array(keys, np.uint64), len(keys) + 1, len(keys)) for keys in ([1, 2], [1, 2], [1], [5])
    ]
    reuse = Reuse(prompts, 1)
    assert reuse.optimum(9).hit_blocks == 3 and reuse.optimum(9, skip=2).hit_blocks == 1
    assert reuse.optimum(9, skip=2).hit_rate == 1 / 4 and reuse.optimum(9, skip=4).hit_rate == 0


def test_blocks_of_the_traces_own_size_need_no_tokens() -> None:
    """Numbers of parts tell the same as the tokens they stand for, a last block that is not whole among them."""
    asks = [
        TraceRequest(n, n, np.array(parts), length, 1, 8)
        for n, (parts, length) in enumerate((([1, 2, 3], 24), ([1, 2, 4], 20), ([1, 2, 3, 5], 32), ([2, 2], 16)))
    ]
    trace = Trace("t", asks, 8)
    slow = [whole_blocks(TokenIds(trace).prompt(ask), 8) for ask in asks]
    for room in (1, 2, 3, 9):
        assert Reuse(in_blocks(trace, 8), 8).optimum(room) == Reuse(slow, 8).optimum(room)
