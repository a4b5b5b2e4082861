"""What is not even of the right kind: told in the project's own errors, before anything changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quire import (
    Cache,
    CacheConfig,
    InputError,
    LayerGroup,
    Media,
    QuireError,
    Request,
    RetainRange,
    Retention,
    Span,
    StateError,
    TierConfig,
    UnknownError,
    check,
)  # fmt: skip
from quire.core.store import StoreName

from .conftest import seq, serve, small

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "a claim of a number": lambda c, s: c.claim(5),
    "a claim of nothing": lambda c, s: c.claim(None),
    "a probe of a number": lambda c, s: c.probe(5),
    "a purpose that is a list": lambda c, s: c.claim([], purpose=[]),
    "growth of a number": lambda c, s: c.grow(5),
    "growth by a huge number": lambda c, s: c.grow(s, num_tokens=2**70),
    "a fork into a number": lambda c, s: c.fork(s, 5),
    "continuing a number": lambda c, s: c.add_sequence_batch([], continuing=5),
    "a budget that is true": lambda c, s: c.add_sequence_batch([], token_budget=True),
    "all or nothing of an array": lambda c, s: c.add_sequence_batch([], all_or_nothing=seq(0, 2)),
    "failed moves that are a number": lambda c, s: c.finish(c.offload(0), 5),
    "an unhashable id": lambda c, s: c.sequence([1]),
    "a truncation of something prepared": lambda c, s: c.truncate(c.prepare(Request("p", seq(0, 4)))),
    "a commit of a number": lambda c, s: c.commit(5),
    "slots of group 7": lambda c, s: s.slots(7),
    "counts of group -1": lambda c, s: s.counts(-1),
    "pages of no group": lambda c, s: s.pages(None),
    "offloading True pages": lambda c, s: c.offload(True),
    "pages held of no group": lambda c, s: s.held(None),
    "failed moves from np.nonzero": lambda c, s: c.finish(c.offload(0), np.nonzero(seq(0, 3))),
    "failed moves as a mask": lambda c, s: c.finish(c.offload(0), np.array([True, False])),
    "bad slots from np.nonzero": lambda c, s: c.lose(0, np.nonzero(seq(0, 3))),
    "bad slots as a mask": lambda c, s: c.lose(0, np.array([True, False])),
    "left out blocks in an array of arrays": lambda c, s: c.writer(
        Request("w", seq(0, 8)), tier=0, skip={0: np.zeros((2, 2), np.int32)}
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_the_wrong_kind_of_thing(store: StoreName, name: str) -> None:
    cache = small(store, 8)
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 6))]).sequences
    before = cache._setup.store.dump()
    with pytest.raises(QuireError) as told:
        CALLS[name](cache, sequence)
    assert str(told.value).count(";") >= 1, "ask: fact; cure"
    assert cache._setup.store.dump() == before and not cache._registry.open_claims
    check(cache)


THINGS: dict[str, Callable[[], Any]] = {
    "no config": lambda: Cache(None),  # type: ignore[arg-type]
    "no tiers": lambda: CacheConfig(tiers=None),  # type: ignore[arg-type]
    "a tier that is a number": lambda: CacheConfig(tiers=(5,)),  # type: ignore[arg-type]
    "a group that is a number": lambda: CacheConfig((TierConfig("device", 4),), groups=(5,)),  # type: ignore[arg-type]
    "a block size beyond 32 bits": lambda: CacheConfig((TierConfig("device", 4),), block_size=2**40),
    "a priority in words": lambda: CacheConfig((TierConfig("d", 4),), offload_min_priority="x"),  # type: ignore[arg-type]
    "page bytes in words": lambda: LayerGroup(page_bytes="x"),  # type: ignore[arg-type]
    "media runs that are a number": lambda: Media(b"x" * 16, 5),  # type: ignore[arg-type]
    "media that are a number": lambda: Request("r", seq(0, 4), media=5),  # type: ignore[arg-type]
    "retention ranges that are a number": lambda: Retention(5),  # type: ignore[arg-type]
    "no beams": lambda: Request("r", seq(0, 4), beams=None),  # type: ignore[arg-type]
    "beams in an array": lambda: Request("r", seq(0, 4), beams=seq(1, 2)),  # type: ignore[arg-type]
    "extra tokens that are None": lambda: Request("r", seq(0, 4), extra_tokens=None),  # type: ignore[arg-type]
    "new tokens that are None": lambda: Request("r", seq(0, 4), max_new_tokens=None),  # type: ignore[arg-type]
    "new tokens in a list": lambda: Request("r", seq(0, 4), max_new_tokens=[]),  # type: ignore[arg-type]
    "reuse in words": lambda: Request("r", seq(0, 4), reuse="no"),  # type: ignore[arg-type]
    "a group that is cross in words": lambda: LayerGroup(cross="no"),  # type: ignore[arg-type]
    "an end in words": lambda: LayerGroup(snapshot_every=4, snapshot_at_end="no"),  # type: ignore[arg-type]
    "a group named by a list": lambda: LayerGroup(["full"]),  # type: ignore[arg-type]
    "a tier named by a list": lambda: CacheConfig((TierConfig(["device"], 4),)),  # type: ignore[arg-type]
    "reuse of a cache in words": lambda: CacheConfig((TierConfig("device", 4),), reuse="no"),  # type: ignore[arg-type]
    "copies that are None": lambda: CacheConfig((TierConfig("d", 4),), copy_on_partial_reuse=None),  # type: ignore[arg-type]
    "an order in an array": lambda: CacheConfig((TierConfig("d", 4),), eviction=seq(0, 2)),  # type: ignore[arg-type]
    "a store in an array": lambda: Cache(CacheConfig((TierConfig("d", 4),)), store=seq(0, 2)),  # type: ignore[arg-type]
    "a dummy of words": lambda: Request.dummy("d", "x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", THINGS)
def test_a_thing_made_of_the_wrong_kind(name: str) -> None:
    with pytest.raises(InputError):
        THINGS[name]()


def test_leaving_out_what_is_no_claim(store: StoreName) -> None:
    cache = small(store, 8)
    with cache.claim([Request("r", seq(0, 6))]) as claims:
        with pytest.raises(StateError, match="it is none of these"):
            claims.leave_out(seq(0, 2))  # type: ignore[arg-type]
        assert len(claims) == 1


def test_odd_but_right() -> None:
    """NumPy numbers name failed moves."""
    cache = small("twin", 2, 4)
    serve(cache, Request("a", seq(0, 8)))
    plan = cache.add_sequence_batch([Request("b", seq(100, 8))]).plan
    assert not cache.finish(plan, np.array([0])).setbacks


def test_a_request_far_too_long_is_refused_with_its_numbers(store: StoreName) -> None:
    cache = small(store, 8)
    (refusal,) = cache.add_sequence_batch([Request("r", seq(0, 4), length=2**40, retention=Retention())]).refused
    assert refusal.never and refusal.need == 2**40
    with pytest.raises(UnknownError, match="no live sequence"):
        cache.sequence("r")


@pytest.mark.parametrize("keep", [9, 2**31, 2**70])
def test_truncation_that_keeps_more_than_there_is(store: StoreName, keep: int) -> None:
    cache = small(store, 8)
    serve(cache, Request("r", seq(0, 8)))
    assert cache.truncate(Request("r", seq(0, 8)), keep) == 0
    check(cache)


FOUR = np.int64(4)
NUMPY_VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "block_size": lambda c, s: CacheConfig((TierConfig("device", 8),), block_size=FOUR),  # type: ignore[arg-type]
    "rank": lambda c, s: CacheConfig((TierConfig("device", 8),), rank=FOUR),  # type: ignore[arg-type]
    "max_chunk": lambda c, s: CacheConfig((TierConfig("device", 8),), max_chunk=FOUR),  # type: ignore[arg-type]
    "slots": lambda c, s: CacheConfig((TierConfig("device", FOUR),)),  # type: ignore[arg-type]
    "slots by group": lambda c, s: CacheConfig((TierConfig("device", [FOUR]),)),  # type: ignore[list-item]
    "window": lambda c, s: LayerGroup("window", window=FOUR),  # type: ignore[arg-type]
    "page_bytes": lambda c, s: LayerGroup("full", page_bytes=FOUR),  # type: ignore[arg-type]
    "beams": lambda c, s: Request("b", seq(0, 4), beams=FOUR),  # type: ignore[arg-type]
    "reuse_limit": lambda c, s: Request("b", seq(0, 4), reuse_limit=FOUR),  # type: ignore[arg-type]
    "priority": lambda c, s: RetainRange(0, 4, FOUR),  # type: ignore[arg-type]
    "seconds": lambda c, s: RetainRange(0, 4, 50, np.float32(4)),  # type: ignore[arg-type]
    "bounds": lambda c, s: RetainRange(0, FOUR, 50),  # type: ignore[arg-type]
    "span": lambda c, s: Span(0, FOUR),  # type: ignore[arg-type]
    "token_budget": lambda c, s: c.add_sequence_batch([], token_budget=FOUR),
    "commit": lambda c, s: c.commit(s, FOUR),
    "trim": lambda c, s: c.trim(s, FOUR),
    "truncate": lambda c, s: c.truncate(Request("b", seq(0, 4)), FOUR),
    "table": lambda c, s: c.table(np.int64(0)),
    "slots of a group": lambda c, s: s.slots(np.int64(0)),
    "usage": lambda c, s: c.usage(np.int64(0)),
    "offload": lambda c, s: c.offload(FOUR),
    "find": lambda c, s: c.find(Request("b", seq(0, 4)), from_=FOUR),
    "take_events": lambda c, s: c.take_events(timeout=FOUR),
}


@pytest.mark.parametrize("name", NUMPY_VALUES)
def test_a_number_of_numpy_is_told_for_what_it_is(name: str) -> None:
    """`4` and `np.int64(4)` read alike: an error that says only what a number must be would help nobody."""
    cache = small("twin", 8)
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 6))]).sequences
    with pytest.raises(QuireError, match=r"\(a NumPy value: pass its \.item\(\)\)"):
        NUMPY_VALUES[name](cache, sequence)
