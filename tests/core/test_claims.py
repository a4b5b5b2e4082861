"""Claims that nobody ends: closed, lost, interrupted. What they held comes back, at no odd moment."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import Any

import pytest

from quire import Cache, Claims, Encoder, LayerGroup, Request, check

from .conftest import seq, serve, small

WITH_ENCODER = {"groups": (LayerGroup("text"), LayerGroup("cross", cross=True))}


def ask(name: str, **options: Any) -> Request:
    """Eight tokens that the cache has, and one more; over an encoder's input that it has, where one is read."""
    return Request(name, seq(0, 9), **options)


@pytest.fixture(params=["text", "encoder"])
def cache(store: str, request: pytest.FixtureRequest) -> Cache:
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
    assert (free(cache), cache.open_claims(), claims.settled, len(claims)) == (before, [], True, 0)
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


def test_lost_claims_are_told_and_given_back(cache: Cache) -> None:
    before = free(cache)
    claims = cache.claim([some(cache, "a"), some(cache, "b")])
    with pytest.warns(ResourceWarning, match=r"Claims\(2 open, 0 refused\) was neither admitted nor dropped"):
        del claims
    assert (free(cache), cache.open_claims()) == (before, [])
    check(cache)


@pytest.mark.parametrize("act", ["clear", "truncate", "finish", "grow", "offload", "claim"])
def test_the_next_call_gives_back(cache: Cache, act: str) -> None:
    """Whichever it is; check sees no claim after it."""
    (live,) = cache.add_sequence_batch([Request("live", seq(100, 3))]).sequences
    plan = cache.offload(1)
    claims = cache.claim([some(cache, "a")])
    with pytest.warns(ResourceWarning):
        del claims
    if act == "claim":
        cache.claim([]).drop()
    else:
        asked = {
            "truncate": (some(cache, "t"),),
            "finish": (plan, range(len(plan))),
            "grow": (live, seq(0, 1)),
            "offload": (1,),
        }
        done = getattr(cache, act)(*asked.get(act, ()))
        assert act != "finish" or not done.setbacks
    assert not cache._state.open_claims
    check(cache)
    cache.clear()


class Losing:
    """Requests whose listing, inside a call, loses claims."""

    def __init__(self, cache: Cache, elsewhere: bool) -> None:
        self.cache, self.elsewhere = cache, elsewhere
        self.claims: list[Claims] = [cache.claim([some(cache, "lost")])]
        self.caught: list[Any] = []

    def __iter__(self) -> Any:
        with warnings.catch_warnings(record=True) as self.caught:
            warnings.simplefilter("always")
            before = self.state()
            if self.elsewhere:
                thread = threading.Thread(target=self.claims.clear, daemon=True)
                thread.start()
                thread.join(10)
                assert not thread.is_alive(), "it waits for the call that waits for it"
            else:
                self.claims.clear()
            assert self.state() == before, "given back in the middle of a call"
        yield some(self.cache, "new")

    def state(self) -> Any:
        return [stream.store.dump() for stream in self.cache._state.streams]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in another thread"])
def test_claims_that_are_lost_inside_a_call_wait_for_the_next(cache: Cache, elsewhere: bool) -> None:
    """The collector may run at any time, while this thread or another has the lock."""
    before = free(cache)
    losing = Losing(cache, elsewhere)
    claims = cache.claim(losing)
    assert [warning.category for warning in losing.caught] == [ResourceWarning]
    check(cache)
    assert cache.open_claims() == [claims]
    claims.drop()
    assert free(cache) == before
    check(cache)


def test_nobody_is_told_when_the_cache_goes_too(store: str) -> None:
    cache = small(store, 4)
    serve(cache, ask("stored"))
    claims = cache.claim([ask("a")])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del cache
        del claims
        gc.collect()
    assert not [warning for warning in caught if warning.category is ResourceWarning]


class Interrupted(int):
    """A number that an interrupt hits."""

    def __radd__(self, other: int) -> int:
        raise KeyboardInterrupt


def test_an_interrupted_batch_holds_nothing(cache: Cache) -> None:
    before = [stream.store.dump() for stream in cache._state.streams]
    with pytest.raises(KeyboardInterrupt):
        cache.claim([some(cache, "a"), ask("b", max_new_tokens=Interrupted(1))])
    assert [stream.store.dump() for stream in cache._state.streams] == before
    assert not cache.open_claims() and cache.clear() > 0
    check(cache)
