"""Claims that nobody ends: closed, lost, interrupted. What they held comes back, at no odd moment."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import Cache, Claims, Encoder, LayerGroup, Request, Span, StateError, check
from quire.core.admission.claim import give_back
from quire.core.store import StoreName

from ..conftest import seq, serve, small

WITH_ENCODER = {"groups": (LayerGroup("text"), LayerGroup("cross", cross=True))}


def ask(name: str, **options: Any) -> Request:
    """Eight tokens that the cache has, and one more; over an encoder's input that it has, where one is read."""
    return Request(name, seq(0, 9), **options)


@pytest.fixture(params=["text", "encoder"])
def cache(store: StoreName, request: pytest.FixtureRequest) -> Cache:
    """One with and one without an encoder's stream, and a prompt stored in it."""
    built = small(store, 4, 4, **(WITH_ENCODER if request.param == "encoder" else {}))
    serve(built, some(built, "stored"))
    return built


def some(cache: Cache, name: str) -> Request:
    return ask(name, encoder=Encoder(8, seq(50, 8)) if len(cache.config.groups) > 1 else None)


def free(cache: Cache) -> list[int]:
    return [cache.num_free(group) for group in range(len(cache.config.groups))]


def test_close_gives_back(cache: Cache) -> None:
    before = free(cache)
    claims = cache.claim([some(cache, "a")])
    assert free(cache) != before and cache.open_claims() == [claims]
    claims.close()
    claims.close()
    assert (free(cache), cache.open_claims(), len(claims)) == (before, [], 0) and "settled" in repr(claims)
    check(cache)
    assert cache.clear() > 0
    check(cache)


def test_closing_admitted_claims_takes_nothing_from_their_sequences(cache: Cache) -> None:
    claims = cache.claim([some(cache, "a")])
    batch = cache.admit(claims)
    before = free(cache)
    claims.close()
    assert free(cache) == before and batch.sequences[0].live and not cache.open_claims()
    check(cache)


def test_open_claims_are_in_order(cache: Cache) -> None:
    one, two, three = (cache.claim([some(cache, name)]) for name in "abc")
    assert cache.open_claims() == [one, two, three]
    two.drop()
    assert cache.open_claims() == [one, three]
    cache.admit(one)
    with three:
        assert cache.open_claims() == [three]
    assert cache.open_claims() == []


LOST = "of them were lost, neither admitted nor dropped: they are given back"


def test_lost_claims_are_told_and_given_back(cache: Cache) -> None:
    before = free(cache)
    claims = cache.claim([some(cache, "a"), some(cache, "b")])
    del claims
    with pytest.warns(ResourceWarning, match=f"2 {LOST}") as told:
        assert cache.num_free() == before[0]
    assert [Path(warning.filename).name for warning in told] == [Path(__file__).name]
    assert (free(cache), cache.open_claims()) == (before, [])
    check(cache)


def test_a_warning_that_is_an_error_comes_after_the_deed(cache: Cache) -> None:
    before = free(cache)
    cache.claim([some(cache, "a")])
    with pytest.raises(ResourceWarning), warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.clear()
    assert free(cache) == before
    check(cache)
    cache.clear()


ACTS = (
    "clear", "truncate", "finish", "grow", "offload", "claim", "probe", "admit", "add_sequence_batch", "fork", "hold",
)  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
def test_the_next_call_gives_back(cache: Cache, act: str) -> None:
    """Whichever it is of those that take room or look at it."""
    (live,) = cache.add_sequence_batch([Request("live", seq(100, 3))]).sequences
    cache.commit(live)
    plan = cache.offload(1)
    empty = [cache.claim([])] if act == "admit" else []
    cache.claim([some(cache, "a")])
    asked: dict[str, tuple[Any, ...]] = {"truncate": (some(cache, "t"),), "finish": (plan, range(len(plan)))}
    asked |= {"grow": (live, seq(0, 1)), "offload": (1,), "claim": ([],), "clear": (), "probe": ([],)}
    asked |= {"admit": tuple(empty), "add_sequence_batch": ([],), "fork": (live, []), "hold": (live, Span(0, 2))}
    with pytest.warns(ResourceWarning, match=f"1 {LOST}"):
        done = getattr(cache, act)(*asked[act])
    assert act != "finish" or not done.setbacks
    assert cache.open_claims() == ([done] if act == "claim" else [])
    check(cache)
    if act == "claim":
        done.close()
    cache.clear()


class Losing:
    """Requests whose listing, inside a call, loses claims."""

    def __init__(self, cache: Cache, elsewhere: bool) -> None:
        self.cache, self.elsewhere = cache, elsewhere
        self.claims: list[Claims] = [cache.claim([some(cache, "lost")])]

    def __iter__(self) -> Any:
        before = self.state()
        if self.elsewhere:
            thread = threading.Thread(target=self.claims.clear, daemon=True)
            thread.start()
            thread.join(120)
            assert not thread.is_alive(), "it waits for the call that waits for it"
        else:
            self.claims.clear()
        assert self.state() == before, "given back in the middle of a call"
        yield some(self.cache, "new")

    def state(self) -> Any:
        return [stream.store.dump() for stream in self.cache._setup.streams]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in another thread"])
def test_claims_that_are_lost_inside_a_call_wait_for_the_next(cache: Cache, elsewhere: bool) -> None:
    """The collector may run at any time, while this thread or another has the lock."""
    before = free(cache)
    claims = cache.claim(Losing(cache, elsewhere))
    check(cache)
    with pytest.warns(ResourceWarning, match=f"1 {LOST}"):
        assert cache.open_claims() == [claims]
    claims.drop()
    assert free(cache) == before
    check(cache)


def test_claims_that_a_move_spoils_after_they_were_lost(store: StoreName) -> None:
    """Nobody is told of a start that changed: the claim is gone before the plan ends."""
    cache = small(store, 2, 4)
    serve(cache, Request("a", seq(0, 8)))
    batch = cache.add_sequence_batch([Request("b", seq(100, 8))])
    cache.claim([Request("r", seq(0, 8))])
    with pytest.warns(ResourceWarning):
        done = cache.finish(batch.plan, failed=[0])
    assert done.setbacks == ()
    check(cache)


def test_claims_in_a_cycle_are_found_by_the_collector(cache: Cache) -> None:
    before = free(cache)
    ring: list[Any] = [cache.claim([some(cache, "a")])]
    ring.append(ring)
    del ring
    gc.collect()
    with pytest.warns(ResourceWarning):
        assert cache.num_free() == before[0]
    check(cache)


class Finalized:
    """A step in a cycle: the collector notes that its claims are lost before it is asked for its last words."""

    def __init__(self, claims: Claims, last: Callable[[Claims], object]) -> None:
        self.claims, self.last, self.ring = claims, last, self

    def __del__(self) -> None:
        self.last(self.claims)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("last", [Claims.close, Claims.drop, lambda claims: claims.leave_out(claims[0])])
def test_claims_that_a_finalizer_ends_were_not_lost(cache: Cache, last: Callable[[Claims], object]) -> None:
    before = free(cache)
    Finalized(cache.claim([some(cache, "a")]), last)
    gc.collect()
    assert (free(cache), cache.open_claims()) == (before, [])
    check(cache)
    assert cache.clear() > 0


def test_claims_that_a_finalizer_keeps_are_settled_when_they_are_given_back(cache: Cache) -> None:
    before, kept = free(cache), list[Claims]()
    Finalized(cache.claim([some(cache, "a")]), kept.append)
    gc.collect()
    with pytest.warns(ResourceWarning, match=f"1 {LOST}"), pytest.raises(StateError, match="claim again"):
        cache.admit(kept[0])
    assert (cache.open_claims(), len(kept[0])) == ([], 0)
    kept[0].close()
    assert (free(cache), cache.num_sequences) == (before, 0)
    check(cache)


@pytest.mark.filterwarnings("error")
def test_nothing_is_told_where_nothing_was_lost(cache: Cache) -> None:
    """A batch without claims, one whose claims were all left out, and one that another thread has given back."""
    before = free(cache)
    cache.claim([])
    cache.claim([Request("long", seq(0, 3000))])
    claims = cache.claim([some(cache, "a")])
    claims.leave_out(claims[0])
    del claims
    assert free(cache) == before
    give_back(cache._registry)
    check(cache)


class Interrupted(int):
    """A number that an interrupt hits."""

    def __radd__(self, other: int) -> int:
        raise KeyboardInterrupt


def test_an_interrupted_batch_holds_nothing(cache: Cache) -> None:
    before = [stream.store.dump() for stream in cache._setup.streams]
    with pytest.raises(KeyboardInterrupt):
        cache.claim([some(cache, "a"), ask("b", max_new_tokens=Interrupted(1))])
    assert [stream.store.dump() for stream in cache._setup.streams] == before
    assert not cache.open_claims() and cache.clear() > 0
    check(cache)


@pytest.mark.parametrize("end", ["drop", "leave_out", "admit"])
def test_a_claim_that_has_ended_keeps_nothing_alive(store: StoreName, end: str) -> None:
    """Its handle and what the cache kept of it know each other only while it is open: no collector need find them."""
    cache, tokens = small(store, 8), seq(0, 8)
    gone = weakref.ref(tokens)
    gc.disable()
    try:
        claims = cache.claim([Request("a", tokens)])
        assert claims[0] is claims[0] and claims[0] in list(claims)
        if end == "admit":
            cache.release(cache.admit(claims).sequences[0])
        elif end == "drop":
            claims.drop()
        else:
            claims.leave_out(claims[0])
            claims.drop()
        del tokens, claims
        assert gone() is None
    finally:
        gc.enable()


def test_what_was_prepared_is_known_again(store: StoreName) -> None:
    cache = small(store, 8)
    prepared, other = cache.prepare(Request("a", seq(0, 8))), cache.prepare(Request("b", seq(0, 8)))
    with cache.claim([prepared, other]) as claims:
        assert [claim.prepared for claim in claims] == [prepared, other] and prepared != other
        assert {prepared, claims[0].prepared, claims[1].prepared} == {prepared, other}
        (first, _) = cache.admit(claims).sequences
    assert first.prepared == prepared and "admitted" in repr(prepared)
