"""Where promises of caches with several kinds of layer groups are easily broken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import Batch, Cache, CacheConfig, InputError, LayerGroup, Request, Sequence, Span, TierConfig, check
from quire.core.store import StoreName

FULL, LOCAL = LayerGroup("full"), LayerGroup("local", window=9)


def tokens(*parts: tuple[int, int]) -> Any:
    """Runs of consecutive ids: (first, count)."""
    return np.concatenate([np.arange(first, first + count, dtype=np.int32) for first, count in parts])


def build(store: StoreName, groups: tuple[LayerGroup, ...], slots: tuple[int, ...], **more: Any) -> Cache:
    config = CacheConfig((TierConfig("device", slots),), 4, groups, max_sequences=8, max_length=256, **more)
    return Cache(config, store=store)


def admit(cache: Cache, *requests: Request, **more: Any) -> Batch:
    batch = cache.add_sequence_batch(requests, **more)
    cache.finish(batch.plan)
    check(cache)
    return batch


def go_on(cache: Cache, sequence: Sequence, **more: Any) -> Batch:
    with cache.claim([]) as none:
        batch = cache.admit(none, continuing=[sequence], **more)
    cache.finish(batch.plan)
    check(cache)
    return batch


def compute(cache: Cache, sequence: Sequence) -> Sequence:
    """Run the whole prompt, step by step."""
    cache.commit(sequence)
    while sequence.computed < sequence.prompt_end:
        assert go_on(cache, sequence).spans
        cache.commit(sequence)
        check(cache)
    return sequence


@pytest.mark.parametrize("groups", [(FULL,), (FULL, LOCAL)])
def test_a_bare_commit_counts_the_last_span_only(store: StoreName, groups: tuple[LayerGroup, ...]) -> None:
    cache = build(store, groups, (16,) * len(groups), max_chunk=16)
    (sequence,) = admit(cache, Request("a", tokens((0, 40)))).sequences
    assert go_on(cache, sequence, token_budget=8).spans == {sequence: Span(0, 8)}  # [0, 16) was never run
    cache.commit(sequence)
    assert sequence.computed == 8
    check(cache)


def test_what_a_hold_keeps_is_set_aside_until_the_prompt_is_finished(store: StoreName) -> None:
    cache = build(store, (FULL, LOCAL), (64, 10), max_chunk=8)
    (sequence,) = admit(cache, Request("a", tokens((0, 60)))).sequences
    cache.commit(sequence)
    held = cache.hold(sequence, Span(0, 8))
    assert held is not None and cache.num_free(1) == 3
    go_on(cache, sequence)
    others = admit(cache, *(Request(n, tokens((100 * n, 8))) for n in (1, 2)))
    assert len(others.sequences) == 1 and cache.num_free(1) == 1
    compute(cache, sequence)
    cache.drop(held)
    cache.release(sequence)
    cache.release(others.sequences[0])
    check(cache)
    assert cache.num_free(1) == 10


def test_nobody_starves_for_the_source_of_a_partial_hit(store: StoreName) -> None:
    cache = build(store, (FULL, LayerGroup("local", window=5)), (64, 2))
    (first,) = admit(cache, Request("a", tokens((0, 6)))).sequences
    cache.commit(first)
    for token in range(6, 13):
        plan = cache.grow(first, tokens((token, 1)))
        assert plan is not None
        cache.finish(plan)
        cache.commit(first)
    cache.release(first)
    for request in (Request("c", tokens((0, 8))), Request("b", tokens((0, 6), (77, 1)))):
        (sequence,) = admit(cache, request).sequences  # alone, it fits: then it is admitted
        cache.release(compute(cache, sequence))


def test_nobody_waits_for_a_snapshot_while_decoding(store: StoreName) -> None:
    cache = build(store, (FULL, LayerGroup("state", snapshot_every=4)), (64, 3))
    batch = admit(cache, *(Request(n, tokens((100 * n, 3))) for n in range(3)))
    assert len(batch.sequences) == 3 and cache.num_free(1) == 0
    for step in range(3):
        cache.commit(batch.sequences)
        plan = cache.grow(batch.sequences, tokens((900 + step, 3)))
        assert plan is not None
        cache.finish(plan)
        check(cache)
    assert not any(slot >= 0 for sequence in batch.sequences for slot in sequence.slots(1))


def test_beams_of_a_draft_group_were_charged_for_their_room(store: StoreName) -> None:
    cache = build(store, (FULL, LayerGroup("draft", extra_tokens=3)), (32, 6))
    (sequence,) = admit(cache, Request("a", tokens((0, 8)), beams=3)).sequences
    cache.commit(sequence)
    assert cache.num_free(1) == 1
    (other,) = admit(cache, Request("o", tokens((50, 1)))).sequences
    forks = cache.fork(sequence, ["b", "c"])
    assert forks is not None and cache.num_free(1) == 0 and other.live
    check(cache)


def test_a_receiver_needs_a_window_pool_for_the_window_only(store: StoreName) -> None:
    cache = build(store, (FULL, LOCAL), (64, 6))
    with cache.claim([Request("a", tokens((0, 60)))], purpose="decode") as claims:
        assert (claims.refused, claims[0].slots_needed) == ([], (15, 2))
        (sequence,) = cache.admit(claims).sequences
    assert sequence.slots(1).tolist() == [-1] * 13 + [0, 1]
    check(cache)
    with pytest.raises(InputError, match="brings all 60"):
        cache.commit(sequence, 16)
    with pytest.raises(InputError, match="0 tokens of sequence"):
        cache.trim(sequence, 1)
    with pytest.raises(InputError, match="brings all 60"):
        cache.commit(sequence)  # nothing was handed out: what a transfer brings is told when it has come
    assert cache.commit(sequence, 60) == 17
    check(cache)


def test_a_fork_of_what_a_transfer_brought_is_not_cut_inside_of_it(store: StoreName) -> None:
    cache = build(store, (FULL, LOCAL), (64, 12))
    with cache.claim([Request("a", tokens((0, 58)))], purpose="decode") as claims:
        (sequence,) = cache.admit(claims).sequences
    cache.commit(sequence, 58)
    forks = cache.fork(sequence, ["b"])
    assert forks is not None
    for one in (sequence, *forks[0]):
        with pytest.raises(InputError, match="0 tokens of sequence"):
            cache.trim(one, 1)
    check(cache)


def test_who_waits_for_open_claims_is_named(store: StoreName) -> None:
    cache = build(store, (FULL, LOCAL), (64, 6), max_chunk=8)
    (sequence,) = admit(cache, Request("a", tokens((0, 60)))).sequences
    cache.commit(sequence)
    for _ in range(3):
        go_on(cache, sequence)
        cache.commit(sequence)
    others = cache.claim([Request(n, tokens((0, n), (90, 4))) for n in (8, 12, 16, 20, 24)])
    assert cache.num_free(1) == -3
    batch = go_on(cache, sequence)
    assert (batch.spans, batch.waiting) == ({}, [sequence])
    assert cache.add_sequence_batch((), continuing=[sequence]).waiting == [sequence]
    others.drop()
    assert go_on(cache, sequence).waiting == [] and compute(cache, sequence).computed == 60


def test_the_same_prompt_starts_from_the_end_of_its_last_run(store: StoreName) -> None:
    cache = build(store, (FULL, LayerGroup("state", snapshot_every=0)), (64, 8))
    for expected in (0, 28):
        (sequence,) = admit(cache, Request("a", tokens((0, 32)))).sequences
        assert sequence.start == expected
        cache.release(compute(cache, sequence))


def test_two_state_slots_are_enough_for_one_sequence_at_a_time(store: StoreName) -> None:
    cache = build(store, (FULL, LayerGroup("state", snapshot_every=8)), (64, 2))
    for number in range(4):
        (sequence,) = admit(cache, Request(number, tokens((0, 21 + number)))).sequences
        cache.release(compute(cache, sequence))
    plain = build(store, (FULL, LayerGroup("state", snapshot_every=8)), (64, 1), reuse=False)
    assert len(admit(plain, Request("a", tokens((0, 9)))).sequences) == 1


@pytest.mark.parametrize("purpose", ["compute", "decode"])
def test_beams_that_part_among_the_sinks_each_fill_their_own(store: StoreName, purpose: Any) -> None:
    """One token, three beams to nine tokens: three blocks each, two of them sinks. Eight slots can never do."""
    cache = build(store, (LayerGroup("near", window=1, sinks=5),), (8,))
    asked = Request("a", tokens((0, 1)), beams=3, max_new_tokens=8)
    with cache.claim([asked], purpose=purpose) as claims:
        (refusal,) = claims.refused
    assert refusal.never and (refusal.need, refusal.have) == (9, 8)


def test_what_one_group_leaves_of_its_reserve_is_not_another_s(store: StoreName) -> None:
    """Three slots are free, and three are reserved in each of two windows that share a pool."""
    groups = (LayerGroup("near", window=5, pool="kv"), LayerGroup("far", window=9, pool="kv"))
    cache = build(store, groups, (12,), max_chunk=8)
    (sequence,) = admit(cache, Request("a", tokens((0, 40)))).sequences
    cache.commit(sequence)
    inside = cache._setup.store
    assert (cache.num_free(0), inside.reserved(0)) == (3, 6)
    before = inside.dump()
    assert inside.extend(sequence.row, [(2, 9, 4, 0), (2, 3, 5, 0)], None, None) == -1  # seven pages, and one
    assert inside.dump() == before
    assert inside.extend(sequence.row, [(2, 8, 4, 0), (2, 3, 5, 0)], None, None) == 7
