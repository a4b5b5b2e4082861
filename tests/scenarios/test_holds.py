"""Pages kept beyond their sequence. Rows `hold`."""

from __future__ import annotations

from quire import Cache, Hold, Request, Sequence, Span, check
from quire.core.store import StoreName

from .conftest import admit, build, compute, release, run, start_of, tokens


def hold(cache: Cache, sequence: Sequence, start: int, end: int) -> Hold:
    held = cache.hold(sequence, Span(start, end))
    check(cache)
    assert held is not None
    return held


def drop(cache: Cache, held: Hold) -> None:
    cache.drop(held)
    check(cache)


def test_a_whole_chain_can_be_held(store: StoreName) -> None:
    """hold-01: 11 tokens on six slots: three held pages stay taken after the release and come back with the drop."""
    cache = build(store, 6)
    (first,) = admit(cache, Request("a", tokens(range(11))))
    compute(cache, first)
    release(cache, first, store=False)
    (again,) = admit(cache, Request("b", tokens(range(11))))
    compute(cache, again)
    held = hold(cache, again, 0, 11)
    assert (again.start, len(held.pages[0]), held.slots[0].tolist()) == (8, 3, again.slots().tolist())
    release(cache, again)
    assert cache.num_free() == 3
    drop(cache, held)
    assert cache.num_free() == 6


def test_a_held_page_is_not_free_until_it_is_dropped(store: StoreName) -> None:
    """hold-02: 8 tokens on four slots: 2 free while held, 4 after; what was held is still found."""
    cache = build(store, 4)
    (sequence,) = admit(cache, Request("a", tokens(range(8))))
    compute(cache, sequence)
    held = hold(cache, sequence, 0, 8)
    release(cache, sequence)
    assert cache.num_free() == 2
    drop(cache, held)
    assert (cache.num_free(), cache.usage().empty, start_of(cache, tokens(range(9)))) == (4, 2, 8)


def test_holding_a_private_twin_never_frees_more_than_there_is(store: StoreName) -> None:
    """hold-03: two equal prompts in one batch on six slots, the second one held: 2, 4, 4, 4, 6 free."""
    cache = build(store, 6)
    first, second = admit(cache, Request(1, tokens(range(8))), Request(2, tokens(range(8))))
    free = [cache.num_free()]
    compute(cache, first)
    release(cache, first)
    free.append(cache.num_free())
    compute(cache, second)
    held = hold(cache, second, 0, 8)
    free.append(cache.num_free())
    drop(cache, held)
    free.append(cache.num_free())
    release(cache, second)
    assert [*free, cache.num_free()] == [2, 4, 4, 4, 6]


def test_held_pages_outlive_pressure_and_are_reused(store: StoreName) -> None:
    """hold-04: a page held twice stays through a full cache, at its priority's cost or not, until the last drop."""
    cache = build(store, 4)
    (sequence,) = admit(cache, Request("a", tokens(range(8))))
    compute(cache, sequence)
    held, again = hold(cache, sequence, 0, 4), hold(cache, sequence, 2, 3)
    release(cache, sequence)
    run(cache, Request("b", tokens(range(50, 62))))
    assert start_of(cache, tokens(range(9))) == 4
    drop(cache, held)
    assert (cache.num_free(), start_of(cache, tokens(range(9)))) == (3, 4)
    drop(cache, again)
    assert cache.num_free() == 4


def test_an_empty_span_holds_nothing(store: StoreName) -> None:
    """hold-05: legal, and free to drop."""
    cache = build(store, 4)
    (sequence,) = admit(cache, Request("a", tokens(range(8))))
    held = hold(cache, sequence, 4, 4)
    assert len(held.pages[0]) == 0
    release(cache, sequence)
    assert cache.num_free() == 4
    drop(cache, held)
