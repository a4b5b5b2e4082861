"""Requests that wait are made ready once, however often they are claimed: their authors need not know of `prepare`."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from quire import Cache, Prepared, Request, StateError, check
from quire.core.state import prepared as prepared_requests
from quire.core.store import StoreName

from ..conftest import seq, small


def claimed(cache: Cache, *requests: Request) -> tuple[list[Prepared], list[Request]]:
    """What a claim makes of them, and those that are refused for want of tokens."""
    with cache.claim(list(requests)) as claims:
        ready = [claim.prepared for claim in claims]
        batch = cache.admit(claims, token_budget=0)
    return ready, [refusal.request for refusal in batch.refused]


def test_a_refused_request_is_ready_at_its_next_claim(store: StoreName) -> None:
    cache = small(store, 8)
    one, two = Request("one", seq(0, 9)), Request("two", seq(50, 6))
    ready, refused = claimed(cache, one, two)
    assert refused == [one, two]
    again, _ = claimed(cache, two, one)
    assert again == ready[::-1], "the same tokens, copied once"
    other, _ = claimed(cache, Request("one", seq(0, 9)))
    assert other[0] != ready[0], "an equal request is another"
    batch = cache.add_sequence_batch([one, two])
    assert [sequence.prepared for sequence in batch.sequences] == ready
    cache.commit(batch.sequences)
    assert [cache.tokens(sequence).tolist() for sequence in batch.sequences] == [
        one.tokens.tolist(),
        two.tokens.tolist(),
    ]
    check(cache)


def test_what_was_admitted_is_made_ready_anew(store: StoreName) -> None:
    cache = small(store, 8)
    one = Request("one", seq(0, 9))
    claimed(cache, one)
    for _ in range(2):
        (sequence,) = cache.add_sequence_batch([one]).sequences
        cache.commit(sequence)
        cache.grow(sequence, np.array([99], np.int32))
        cache.release(sequence)
    assert claimed(cache, one)[0][0].end == 9 and cache.num_sequences == 0


def test_one_that_was_admitted_beside_a_refused_one_is_not_kept(store: StoreName) -> None:
    cache = small(store, 8)
    one, long = Request("one", seq(0, 9)), Request("long", seq(50, 30))
    batch = cache.add_sequence_batch([one, long])
    assert [refusal.request for refusal in batch.refused] == [long]
    (sequence,) = batch.sequences
    cache.commit(sequence)
    cache.release(sequence)
    with cache.claim([one]) as claims:
        (sequence,) = cache.admit(claims).sequences
    assert sequence.length == 9


def test_two_open_claims_of_a_request_share_nothing(store: StoreName) -> None:
    cache = small(store, 8)
    one = Request("one", seq(0, 9))
    claimed(cache, one)
    first, second = cache.claim([one]), cache.claim([one])
    assert first[0].prepared != second[0].prepared
    (sequence,) = cache.admit(first).sequences
    cache.release(sequence)
    (sequence,) = cache.admit(second).sequences
    assert sequence.length == 9
    check(cache)


def test_what_its_author_prepared_is_claimed_by_nobody_else(store: StoreName) -> None:
    cache = small(store, 8)
    one = Request("one", seq(0, 9))
    prepared = cache.prepare(one)
    with cache.claim([prepared]) as claims:
        cache.admit(claims, token_budget=0)
    (sequence,) = cache.add_sequence_batch([prepared]).sequences
    cache.release(sequence)
    assert cache.add_sequence_batch([one]).sequences[0].prepared != prepared
    with pytest.raises(StateError, match="admitted before"):
        cache.claim([prepared])


def test_no_more_is_kept_than_so_many_tokens(store: StoreName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_requests, "MOST_TOKENS", 40)
    cache = small(store, 64)
    many = [Request(nth, seq(100 * nth, 9)) for nth in range(6)]
    ready, _ = claimed(cache, *many)
    gone = [weakref.ref(request) for request in many[:2]]
    again, _ = claimed(cache, *many[2:])
    assert again == ready[2:]
    del many, ready, again, _
    gc.collect()
    assert [request() for request in gone] == [None, None]
