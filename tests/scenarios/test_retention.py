"""How long pages stay: retention values, expiry, truncation. Rows `retain` and `truncate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from quire import InputError, Request, Retained, RetainRange, Retention, Scope, Stored, UnknownError
from quire.core.store import StoreName

from .conftest import Clock, admit, both_orders, build, compute, events, keep, release, run, start_of, tokens

TABLE = [  # block size, length, ranges, priorities by first token, priorities by the highest range touched
    (64, 256, [(0, 64, 80), (64, 128, 50)], [80, 50, 35, 35], [80, 50, 35, 35]),
    (32, 127, [(0, 63, 80), (63, 127, 30)], [80, 80, 30, 30], [80, 80, 30, 30]),
    (32, 128, [(0, 1, 80), (1, 2, 5)], [80, 35, 35, 35], [80, 35, 35, 35]),
    (64, 192, [(0, 65, 80), (65, 129, 30)], [80, 80, 30], [80, 80, 30]),
    (64, 256, [(0, 64, 80), (129, None, 50)], [80, 35, 35, 50], [80, 35, 50, 50]),
    (64, 256, [(127, 193, 80)], [35, 35, 80, 80], [35, 80, 80, 80]),
    (64, 128, [(1, None, 80)], [35, 80], [80, 80]),
    (256, 192, [(0, 128, 80)], [80], [80]),
]


@pytest.mark.parametrize("by", ["first", "max"])
@pytest.mark.parametrize(("size", "length", "ranges", "first", "highest"), TABLE)
def test_a_block_takes_the_value_of_its_range(
    store: StoreName,
    by: Literal["first", "max"],
    size: int,
    length: int,
    ranges: list[tuple[int, int | None, int]],
    first: list[int],
    highest: list[int],
) -> None:
    """retain-01: a block has the priority of the range that holds its first token, or of the highest one it touches."""
    cache = build(store, 8, block_size=size, events=True)
    retention = Retention(tuple(RetainRange(*values) for values in ranges), by=by)
    run(cache, Request("a", tokens(range(length)), retention=retention))
    stored = [priority for event in events(cache) if isinstance(event, Stored) for priority in event.priorities]
    assert stored == (first if by == "first" else highest)


def test_a_range_value_is_stored_and_other_blocks_have_the_default(store: StoreName) -> None:
    """retain-02: [0, 4) at 80 gives 80, 35, 35; a name that is not live has no value to ask for."""
    cache = build(store, 8, events=True)
    (sequence,) = admit(cache, Request("a", tokens(range(12)), retention=keep(80)))
    compute(cache, sequence)
    (stored,) = [event for event in events(cache) if isinstance(event, Stored)]
    assert stored.priorities == (80, 35, 35)
    with pytest.raises(UnknownError, match="no live sequence has that id"):
        cache.sequence("b")


@both_orders
def test_an_expired_page_falls_back_to_the_default(store: StoreName, eviction: str) -> None:
    """retain-03: 80 for 10 ms has run out after 50 ms: that chain, not the one at 50, loses its deepest block."""
    clock = Clock()
    cache = build(store, 8, clock=clock, eviction=eviction)
    run(cache, Request(0, tokens(range(12)), retention=keep(80, 80, 80, seconds=0.010)))
    run(cache, Request(1, tokens(range(20, 32)), retention=keep(50, 50, 50)))
    assert (start_of(cache, tokens(range(12))), start_of(cache, tokens(range(20, 32)))) == (11, 11)
    clock.now = 0.050
    cache.refresh()
    assert run(cache, Request(2, tokens(range(40, 52)))).slots == [6, 7, 2]
    assert (start_of(cache, tokens(range(12))), start_of(cache, tokens(range(20, 32)))) == (8, 11)


def test_time_runs_from_the_release(store: StoreName) -> None:
    """retain-04: expiry counts from release, to the microsecond, and makes a page the next victim of its peers."""
    clock = Clock()
    cache = build(store, 3, clock=clock, events=True)
    run(cache, Request(0, tokens(range(4)), retention=keep(80, seconds=0.001)))
    events(cache)
    cache.refresh()
    assert events(cache) == []
    clock.now = 0.002
    cache.refresh()
    (fallen,) = events(cache)
    assert isinstance(fallen, Retained) and (fallen.old, fallen.new) == (80, 35)
    cache.refresh()
    assert events(cache) == []


@pytest.mark.parametrize(("now", "slot"), [(0.005, 1), (0.009, 0)])
def test_a_short_high_value_and_a_long_low_one(store: StoreName, now: float, slot: int) -> None:
    """retain-05: 80 for 3 ms and 50 for 8 ms, released at 5 ms: at 5 ms the 50 goes first, at 9 ms the expired 80."""
    clock = Clock()
    cache = build(store, 2, clock=clock)
    clock.now = 0.005
    run(cache, Request(0, tokens(range(4)), retention=keep(80, seconds=0.003)))
    run(cache, Request(1, tokens(range(10, 14)), retention=keep(50, seconds=0.008)))
    clock.now = now
    cache.refresh()
    assert run(cache, Request(2, tokens(range(20, 24)))).slots == [slot]


@pytest.mark.parametrize(("eviction", "slot"), [("lru", 1), ("release_order", 1), ("adaptive", 0)])
def test_expiry_also_raises(store: StoreName, eviction: str, slot: int) -> None:
    """retain-06: a page kept at 5 for a while is worth the default afterwards, behind those that were idle before;
    in the adaptive order, at its true age, before them."""
    clock = Clock()
    cache = build(store, 2, clock=clock, eviction=eviction)
    run(cache, Request(0, tokens(range(4)), retention=keep(5, seconds=1.0)))
    clock.now = 0.5  # of one age bin they would go in the order in which they joined it
    run(cache, Request(1, tokens(range(10, 14))))
    clock.now = 1.0
    assert run(cache, Request(2, tokens(range(20, 24)))).slots == [slot]  # admission lets time run out by itself


def test_of_equal_expiries_the_last_release_counts(store: StoreName) -> None:
    """retain-11: Two pages run out at one moment; the one that was held and released once more is the second."""
    clock = Clock()
    cache = build(store, 3, clock=clock, eviction="lru")
    for name, first in (("one", 0), ("other", 10), ("one again", 0)):
        run(cache, Request(name, tokens(range(first, first + 5)), retention=keep(50, seconds=5.0)), computed=4)
    clock.now = 10.0
    cache.refresh()
    run(cache, Request("new", tokens(range(20, 28))))
    assert (start_of(cache, tokens(range(5))), start_of(cache, tokens(range(10, 15)))) == (4, 0)


def test_no_time_at_all_is_a_duration(store: StoreName) -> None:
    """retain-12: 80 for 0 seconds is over with the next call that looks at the clock."""
    cache = build(store, 3, clock=Clock(), events=True)
    run(cache, Request(0, tokens(range(4)), retention=keep(80, seconds=0)))
    cache.refresh()
    assert [(event.old, event.new) for event in events(cache) if isinstance(event, Retained)] == [(80, 35)]


def test_a_page_runs_out_though_another_was_released_many_times_since(store: StoreName) -> None:
    """retain-13: What is noted of times to come is swept now and then; what still counts stays."""
    clock = Clock()
    cache = build(store, 4, clock=clock, events=True)
    run(cache, Request("once", tokens(range(4)), retention=keep(80, seconds=5.0)))
    for nth in range(100):
        run(cache, Request(nth, tokens(range(10, 15)), retention=keep(60, seconds=5.0)), computed=4)
    events(cache)
    clock.now = 10.0
    cache.refresh()
    told = [(event.old, event.new) for event in events(cache) if isinstance(event, Retained)]
    assert sorted(told) == [(60, 35), (80, 35)]


def test_pages_of_several_ages_grow_old_together(store: StoreName) -> None:
    """retain-14: adaptive; a long pause brings both to one age, and the one that was older still goes first."""
    clock = Clock()
    cache = build(store, 3, clock=clock, eviction="adaptive")
    for now, first in ((0.0, 0), (2.0, 10)):
        clock.now = now
        run(cache, Request(first, tokens(range(first, first + 4))))
    cache.refresh()
    clock.now = 100.0
    cache.refresh()
    run(cache, Request("new", tokens(range(20, 28))))
    assert (start_of(cache, tokens(range(4), 9)), start_of(cache, tokens(range(10, 14), 9))) == (0, 4)


def test_a_reused_page_stops_its_clock(store: StoreName) -> None:
    """retain-07: while somebody holds a page its time stands still; the next release starts a new period."""
    clock = Clock()
    cache = build(store, 2, clock=clock, events=True)
    run(cache, Request(0, tokens(range(5)), retention=keep(80, seconds=1.0)), computed=4)
    clock.now = 0.9
    (holder,) = admit(cache, Request(1, tokens(range(5))))
    clock.now = 5.0
    cache.refresh()
    release(cache, holder)
    clock.now = 5.9
    cache.refresh()
    assert not [event for event in events(cache) if isinstance(event, Retained)]
    clock.now = 6.0
    cache.refresh()
    assert [(event.old, event.new) for event in events(cache) if isinstance(event, Retained)] == [(80, 35)]


def test_a_reused_page_keeps_its_value_unless_the_request_has_one(store: StoreName) -> None:
    """retain-08: reuse without a value changes neither priority nor time; with one it sets both, also downwards."""
    clock = Clock()
    cache = build(store, 4, clock=clock, events=True)
    prompt = tokens(range(5))
    run(cache, Request(0, prompt, retention=keep(80, seconds=1.0)), computed=4)
    run(cache, Request(1, prompt), computed=4)
    clock.now = 1.0
    cache.refresh()  # the second release started the same second again
    run(cache, Request(2, prompt, retention=keep(10)), computed=4)
    clock.now = 100.0
    cache.refresh()
    assert [(event.old, event.new) for event in events(cache) if isinstance(event, Retained)] == [(80, 35), (35, 10)]


def test_a_copy_has_the_value_of_its_source(store: StoreName) -> None:
    """retain-10: what is copied from a page of 80 is worth 80; what is taken over starts with the default."""
    clock = Clock()
    cache = build(store, 8, clock=clock, events=True)
    run(cache, Request(0, tokens(range(8)), retention=keep(80, 80, seconds=1.0)))
    events(cache)
    run(cache, Request(1, tokens(0, 1, 2, 50)))  # the first block has a child: copied
    (copied,) = [event for event in events(cache) if isinstance(event, Stored)]
    run(cache, Request(2, tokens(range(6), 60, 70)))  # the second has none: taken over
    (taken,) = [event for event in events(cache) if isinstance(event, Stored)]
    assert (copied.priorities, taken.priorities) == ((80,), (35,))
    clock.now = 1.0
    cache.refresh()
    assert Retained(0, copied.hashes[0], 80, 35) in events(cache)


@pytest.mark.parametrize(
    "ranges",
    [
        lambda: (RetainRange(0, None, 50), RetainRange(64, 128, 50)),
        lambda: (RetainRange(64, 32, 50),),
        lambda: (RetainRange(0, 64, 50), RetainRange(63, 128, 50)),
        lambda: (RetainRange(64, 128, 50), RetainRange(0, 64, 50)),
        lambda: (RetainRange(0, 64, 101),),
        lambda: (RetainRange(0, 64, 50, -1.0),),
    ],
    ids=["behind an open end", "backwards", "overlap", "out of order", "priority", "duration"],
)
def test_ranges_that_make_no_sense_are_refused(ranges: Callable[[], list[RetainRange]]) -> None:
    """retain-09: an open end before another range, an end before its start, overlaps, values out of range: errors."""
    with pytest.raises(InputError):
        Retention(ranges())


def test_truncating_one_branch_leaves_the_other(store: StoreName) -> None:
    """truncate-01: 10 common tokens, branches of 8 and 17: cutting the second at 10 leaves the first whole."""
    cache = build(store, 32)
    first, second = tokens(range(10), range(100, 108)), tokens(range(10), range(200, 217))
    run(cache, Request("a", first))
    (sequence,) = admit(cache, Request("b", second))
    assert (sequence.start, sequence.counts().reused) == (10, 3)
    compute(cache, sequence)
    release(cache, sequence)
    assert cache.truncate(Request("t", second), keep=10) == 4
    assert start_of(cache, second) == 12
    (again,) = admit(cache, Request("a", first))
    assert (again.start, again.counts().reused, again.counts().missed) == (17, 5, 0)
    release(cache, again)


def test_truncating_inside_a_shared_block_keeps_that_block(store: StoreName) -> None:
    """truncate-02: 11 common tokens, 8 more each; cutting one at 11 leaves the other 5 of 5, itself 3."""
    cache = build(store, 32)
    first, second = tokens(range(11), range(100, 108)), tokens(range(11), range(200, 208))
    run(cache, Request("a", first))
    run(cache, Request("b", second))
    cache.truncate(Request("t", second), keep=11)
    (probe_a, probe_b) = cache.probe([Request("a", first), Request("b", second)])
    assert (probe_a.start, probe_b.start) == (18, 12)
    (again,) = admit(cache, Request("a", first))
    assert (again.counts().reused, again.counts().missed) == (5, 0)
    release(cache, again)


@pytest.mark.parametrize(
    ("keep_tokens", "start", "gone"), [(0, 0, 5), (1, 4, 4), (7, 8, 3), (8, 8, 3), (9, 12, 2), (16, 16, 1), (17, 17, 0)]
)
def test_truncation_cuts_at_the_first_block_that_starts_there_or_later(
    store: StoreName, keep_tokens: int, start: int, gone: int
) -> None:
    """truncate-03: of 18 computed tokens; a block that starts exactly at the cut goes."""
    cache = build(store, 8)
    run(cache, Request("a", tokens(range(18))))
    assert cache.truncate(Request("t", tokens(range(18))), keep=keep_tokens) == gone
    assert start_of(cache, tokens(range(18))) == start
    assert cache.num_free() == 8


def test_truncation_stays_in_its_scope_and_detaches_what_is_held(store: StoreName) -> None:
    """truncate-04: another salt keeps its chain; a live sequence keeps its pages to itself until its release."""
    cache = build(store, 8)
    prompt = tokens(range(8))
    run(cache, Request("salted", prompt, Scope(salt="s")))
    (live,) = admit(cache, Request("live", prompt))
    compute(cache, live)
    assert cache.truncate(Request("t", prompt)) == 2
    assert (start_of(cache, prompt), start_of(cache, prompt, scope=Scope(salt="s"))) == (0, 7)
    assert cache.num_free() == 6
    release(cache, live)
    assert (cache.num_free(), cache.usage().empty) == (8, 6)
    assert cache.truncate(Request("t", prompt, Scope(salt="unknown"))) == 0


def test_clearing_forgets_everything(store: StoreName) -> None:
    """truncate-05: all scopes go; live sequences keep their pages and store nothing of their old chain any more."""
    cache = build(store, 8)
    run(cache, Request("a", tokens(range(8))))
    run(cache, Request("b", tokens(range(8)), Scope(lora=1)))
    (live,) = admit(cache, Request("live", tokens(range(9))))
    assert live.start == 8
    assert cache.clear() == 4
    assert start_of(cache, tokens(range(8))) == start_of(cache, tokens(range(8)), scope=Scope(lora=1)) == 0
    compute(cache, live)
    release(cache, live)
    assert (cache.usage().empty, start_of(cache, tokens(range(8)))) == (8, 0)
