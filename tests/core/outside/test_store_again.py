"""What live sequences compute after `clear`: by default nobody finds it, with store_again everybody does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import Cache, Encoder, InputError, LayerGroup, Request, Scope, Sequence, StateError, Stored, check
from quire.core.store import StoreName

from ..conftest import seq, serve, small

WINDOW = (LayerGroup(), LayerGroup("window", window=6))
STATE = (LayerGroup(), LayerGroup("state", snapshot_every=4))


def running(cache: Cache, request: Request) -> Sequence:
    """A sequence whose prompt is computed, in as many steps as that takes."""
    batch = cache.add_sequence_batch([request])
    (sequence,) = batch.sequences
    while True:
        cache.finish(batch.plan)
        cache.commit(sequence)
        if sequence.computed == sequence.prompt_end:
            return sequence
        batch = cache.add_sequence_batch([], continuing=[sequence])


def say_more(cache: Cache, sequence: Sequence, count: int) -> None:
    """It generates."""
    for token in range(count):
        plan = cache.grow(sequence, np.array([900 + token], np.int32))
        assert plan is not None
        cache.finish(plan)
        cache.commit(sequence)
        check(cache)


def start_of(cache: Cache, tokens: Any) -> int:
    return cache.probe([Request("probe", tokens.astype(np.int32))])[0].start


@pytest.mark.parametrize("groups", [None, WINDOW, STATE])
@pytest.mark.parametrize("released", [False, True])
def test_a_sequence_that_lived_through_it_is_stored_when_it_goes_on(
    store: StoreName, groups: Any, released: bool
) -> None:
    cache = small(store, 40, **({"groups": groups} if groups else {}))
    text = np.append(seq(0, 9), [900, 901, 902, 5]).astype(np.int32)
    for again in (False, True):
        sequence = running(cache, Request(f"one {again}", seq(0, 9)))
        assert cache.clear(store_again=again) > 0
        check(cache)
        assert start_of(cache, text) == 0, "nothing is stored now"
        say_more(cache, sequence, 3)
        if released:
            cache.release(sequence)
            check(cache)
        assert start_of(cache, text) == (12 if again else 0)
        cache.clear()
        if not released:
            cache.release(sequence)


def test_all_that_it_has_is_stored_at_its_next_commit_and_told(store: StoreName) -> None:
    cache = small(store, 8, events=True)
    sequence = running(cache, Request("one", seq(0, 10), scope=Scope(lora="ann")))
    cache.clear(store_again=True)
    cache.take_events()
    assert cache.commit(sequence) == 2, "the two blocks that it had before"
    told = [event for event in cache.take_events() if isinstance(event, Stored)]
    assert sum(len(event.hashes) for event in told) == 2 and {event.scope for event in told} == {Scope(lora="ann")}
    assert start_of(cache, seq(0, 12)) == 0, "another scope"
    assert cache.probe([Request("p", seq(0, 12), scope=Scope(lora="ann"))])[0].start == 8


def test_what_was_forgotten_before_or_never_stored_stays_so(store: StoreName) -> None:
    cache = small(store, 32)
    private = running(cache, Request("private", seq(200, 9), reuse=False))
    cut = running(cache, Request("cut", seq(100, 9)))
    cache.truncate(Request("t", seq(100, 9)))
    cache.clear(store_again=True)
    cache.commit([private, cut])
    cache.release([private, cut])
    assert [start_of(cache, seq(first, 9)) for first in (100, 200)] == [0, 0]
    check(cache)


def test_forks_store_what_they_share_once(store: StoreName) -> None:
    cache = small(store, 16)
    one = running(cache, Request("one", seq(0, 10)))
    forked = cache.fork(one, ["two"])
    assert forked is not None
    cache.finish(forked[1])
    cache.clear(store_again=True)
    assert cache.commit([one, *forked[0]]) == 2
    check(cache)
    cache.release([one, *forked[0]])
    check(cache)
    assert start_of(cache, seq(0, 10)) == 9


def test_it_is_refused_while_claims_are_open(store: StoreName) -> None:
    """A claim may copy from a page that would be stored anew: whether it may take that over could not be said."""
    cache = small(store, 16)
    sequence = running(cache, Request("one", seq(0, 9)))
    with cache.claim([Request("two", seq(0, 9))]):
        with pytest.raises(StateError, match=r"clear with store_again: claims of 1 requests are open.*drop them first"):
            cache.clear(store_again=True)
        assert start_of(cache, seq(0, 9)) == 8, "nothing was forgotten"
    assert cache.clear(store_again=True) > 0
    cache.commit(sequence)
    assert start_of(cache, seq(0, 9)) == 8
    check(cache)


def test_one_that_ends_with_a_step_in_flight_is_stored_then(store: StoreName) -> None:
    cache = small(store, 16)
    sequence = running(cache, Request("one", seq(0, 9)))
    cache.grow([sequence], np.arange(900, 903, dtype=np.int32))
    step = cache.launch()
    cache.release(sequence)
    cache.clear(store_again=True)
    cache.commit(step)
    check(cache)
    assert start_of(cache, np.append(seq(0, 9), [900, 901, 902, 5])) == 12


def test_an_encoder_is_stored_again_too(store: StoreName) -> None:
    groups = (LayerGroup("text"), LayerGroup("cross", cross=True))
    cache = small(store, 32, groups=groups, max_encoder_length=16)
    ask = Request("one", seq(0, 9), encoder=Encoder(8, seq(70, 8)))
    sequence = running(cache, ask)
    cache.clear(store_again=True)
    cache.commit(sequence)
    cache.release(sequence)
    check(cache)
    assert serve(cache, Request("two", seq(0, 9), encoder=Encoder(8, seq(70, 8)))) == 8


def test_only_yes_or_no_is_an_answer(store: StoreName) -> None:
    cache = small(store, 8)
    serve(cache, Request("one", seq(0, 9)))
    with pytest.raises(InputError, match="store_again"):
        cache.clear(store_again="yes")  # type: ignore[arg-type]
    assert start_of(cache, seq(0, 9)) == 8, "nothing was forgotten"
