"""Wrong asks of caches with several kinds of layer groups: the error says what is true, and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, Encoder, InputError, LayerGroup, QuireError, Request, Span, StateError, TierConfig
from quire import check as check_cache
from quire.core.store import StoreName

FULL, LOCAL, STATE = LayerGroup("full"), LayerGroup("local", window=6), LayerGroup("state", snapshot_every=8)
CROSS = LayerGroup("cross", cross=True)


def tokens(count: int, first: int = 0) -> Any:
    return np.arange(first, first + count, dtype=np.int32)


def build(store: StoreName, *groups: LayerGroup, slots: int | tuple[int, ...] = 12, **more: Any) -> Cache:
    config = CacheConfig((TierConfig("device", slots),), 4, groups, max_sequences=4, max_length=64, **more)
    return Cache(config, store=store)


def refused(cache: Cache, act: Callable[[], object], error: type[QuireError], fact: str) -> None:
    """The act is refused with that fact, and leaves everything as it was."""
    before = [stream.store.dump() for stream in cache._setup.streams]
    with pytest.raises(error) as caught:
        act()
    assert fact in str(caught.value) and ";" in str(caught.value)
    assert [stream.store.dump() for stream in cache._setup.streams] == before and not cache._registry.open_claims
    check_cache(cache)


def test_a_state_needs_every_token_of_the_prompt(store: StoreName) -> None:
    cache = build(store, FULL, STATE)
    odd = [Request("a", tokens(8)), Request("b", tokens(9), length=8)]
    refused(cache, lambda: cache.claim(odd), InputError, "request 'b' with length 8")


def test_resume_points_lie_in_the_prompt(store: StoreName) -> None:
    cache = build(store, FULL, STATE)
    wrong: list[tuple[Any, str]] = [
        ((0,), "resume points are"), ((True,), "resume points are"), (4, "resume points are"),
        ("48", "resume points are"), ((4, 10), "with the resume point 10: it has 9 tokens"),
    ]  # fmt: skip
    for points, fact in wrong:
        with pytest.raises(InputError, match=fact):
            Request("a", tokens(9), resume_points=points)
    with pytest.raises(InputError, match="with 65 resume points: a request has at most 64"):
        Request("a", tokens(99), resume_points=list(range(1, 66)))
    assert Request("a", tokens(99), resume_points=[8, 3, 8]).resume_points == (3, 8)
    check_cache(cache)


def test_snapshots_is_the_old_name_of_resume_points() -> None:
    with pytest.warns(DeprecationWarning, match="is called resume_points"):
        request = Request("a", tokens(9), resume_points=[2], snapshots=[4, 400])
    assert request.resume_points == (2, 4)
    assert replace(request, id="b").resume_points == (2, 4)


def test_an_encoder_needs_a_reader_and_has_a_length(store: StoreName) -> None:
    plain, cross = build(store, FULL), build(store, FULL, CROSS, max_encoder_length=8)
    refused(plain, lambda: plain.claim([Request("a", tokens(4), encoder=Encoder(4))]), InputError, "no layer group")
    long, short = (Request(n, tokens(4), encoder=Encoder(n)) for n in (9, 8))
    batch = cross.add_sequence_batch([long, short])
    (refusal,) = batch.refused
    assert (refusal.request, refusal.need, refusal.have, refusal.never) == (long, 9, 8, True)
    assert [sequence.id for sequence in batch.sequences] == [8]


WRONG_ENCODERS: list[dict[str, Any]] = [
    {"length": 0}, {"length": 4, "tokens": [1, 2, 3, 4]}, {"length": 4, "digest": b"short"},
    {"length": 4, "digest": "x"}, {"length": 5, "tokens": np.zeros(4, np.int32)},
    {"length": 4, "tokens": np.zeros(4, np.int32), "digest": b"x" * 16}, {"length": 4, "tokens": np.zeros(4, np.int64)},
]  # fmt: skip


@pytest.mark.parametrize("values", WRONG_ENCODERS)
def test_an_encoder_that_names_nothing_clearly_is_not_built(values: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Encoder(**values)
    with pytest.raises(InputError, match="encoder is a dict"):
        Request("a", tokens(4), encoder=values)  # type: ignore[arg-type]


def test_only_what_was_handed_out_is_committed(store: StoreName) -> None:
    cache = build(store, FULL, LOCAL, max_chunk=8)
    (sequence,) = cache.add_sequence_batch([Request("a", tokens(21))]).sequences
    rows = np.array([sequence.row], np.int32)
    refused(cache, lambda: cache.commit(sequence, 12), InputError, "8 were handed out")
    refused(cache, lambda: cache.commit(rows, rows + 21), InputError, "commit of 21 tokens")
    assert cache.commit(rows) == 4  # two pages of each group
    check_cache(cache)


def test_a_prompt_under_way_neither_forks_nor_grows(store: StoreName) -> None:
    cache = build(store, FULL, LOCAL, max_chunk=8)
    (sequence,) = cache.add_sequence_batch([Request("a", tokens(21))]).sequences
    refused(cache, lambda: cache.fork(sequence, ["b"]), StateError, "0 of its 21 prompt tokens")
    refused(cache, lambda: cache.grow(sequence, tokens(1)), StateError, "were handed out to be computed")


def test_a_state_is_never_taken_back(store: StoreName) -> None:
    cache = build(store, FULL, STATE)
    (sequence,) = cache.add_sequence_batch([Request("a", tokens(7))]).sequences
    cache.commit(sequence)
    cache.admit(cache.claim([]), continuing=[sequence])
    cache.commit(sequence)
    cache.grow(sequence, tokens(3, 90))
    refused(cache, lambda: cache.trim(sequence, 4), InputError, "3 tokens of sequence 'a' can be taken back")
    cache.trim(sequence, 3)
    assert sequence.length == 7


def test_a_hold_that_would_take_from_the_reserve_is_refused(store: StoreName) -> None:
    cache = build(store, FULL, LOCAL, slots=(12, 9), max_chunk=8)
    (first,) = cache.add_sequence_batch([Request("a", tokens(21))]).sequences
    other = cache.add_sequence_batch([Request("b", tokens(9, 100))]).sequences
    assert len(other) == 1 and cache.num_free(1) == 1
    before = cache._setup.store.dump()
    assert cache.hold(first, Span(0, 8)) is None and cache._setup.store.dump() == before
    held = cache.hold(first, Span(0, 4))
    assert held is not None and cache.num_free(1) == 0  # the page stays when it leaves, so one more is reserved
    check_cache(cache)
    cache.drop(held)
    check_cache(cache)


def test_groups_that_do_not_exist(store: StoreName) -> None:
    cache = build(store, FULL, STATE)
    (sequence,) = cache.add_sequence_batch([Request("a", tokens(3))]).sequences
    assert sequence.state_slot(0) == -1 and cache.state_table(0).tolist() == [-1] * 4
    for act in (sequence.state_slot, sequence.held, sequence.slots, cache.state_table, cache.table):
        with pytest.raises(QuireError, match="group 2"):
            act(2)
