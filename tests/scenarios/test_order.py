"""Which slot goes next: priorities, age, chains, orphans. Rows `order`."""

from __future__ import annotations

import pytest

from quire import Request, Retention
from quire.core.store import StoreName

from .conftest import (
    Ran,
    admit,
    both_orders,
    build,
    compute,
    decode,
    got,
    keep,
    release,
    run,
    start_of,
    tokens,
    try_admit,
)  # fmt: skip

FIRST, SECOND, THIRD = tokens(range(8)), tokens(range(8, 16)), tokens(range(16, 24))


@both_orders
def test_lower_priorities_go_first_then_the_longest_idle_and_the_deepest(store: StoreName, eviction: str) -> None:
    """order-01: the worked example: priorities 90, 10, default and 20 on four slots."""
    cache = build(store, 4, eviction=eviction)
    for sequence in admit(cache, Request(0, FIRST, retention=keep(90, 10)), Request(1, SECOND)):
        compute(cache, sequence)
        release(cache, sequence)
    assert run(cache, Request(2, THIRD, retention=keep(20, 20))) == Ran(0, [1, 3])
    assert run(cache, Request(3, SECOND)) == Ran(4, [2, 3])
    assert cache.num_free() == 4
    assert run(cache, Request(4, FIRST)) == Ran(4, [0, 1])
    assert start_of(cache, THIRD) == 0


@both_orders
def test_decoded_pages_have_the_decode_priority(store: StoreName, eviction: str) -> None:
    """order-02: computed decode pages are kept at their own priority: the low one of the last release goes first."""
    cache = build(store, 8, eviction=eviction)
    free = []
    sequences = []
    for name, priority in ((0, 90), (1, 5)):
        retention = Retention(keep(*[priority] * 3).ranges, decode_priority=priority)
        (sequence,) = admit(cache, Request(name, tokens(range(12 * name, 12 * name + 12)), retention=retention))
        free.append(cache.num_free())
        decode(cache, sequence, 50 + name)
        compute(cache, sequence)
        free.append(cache.num_free())
        sequences.append(sequence)
    release(cache, *sequences)
    assert [*free, cache.num_free()] == [5, 4, 1, 0, 8]
    assert run(cache, Request(2, tokens(range(24, 36)))).slots == [7, 6, 5]
    assert start_of(cache, tokens(range(12))) == 11


def test_a_decode_page_without_computed_tokens_is_empty_at_release(store: StoreName) -> None:
    """order-03: as order-02, but the sampled token is not computed: its page holds nothing and goes first."""
    cache = build(store, 8)
    for name, priority in ((0, 90), (1, 5)):
        retention = Retention(keep(*[priority] * 3).ranges, decode_priority=priority)
        run(cache, Request(name, tokens(range(12 * name, 12 * name + 12)), retention=retention), sampled=(50,))
    assert cache.usage().empty == 2
    assert run(cache, Request(2, tokens(range(24, 36)))).slots == [3, 7, 6]
    assert start_of(cache, tokens(range(12))) == 11


@both_orders
def test_a_short_leaf_lives_through_growth_and_a_full_cache(store: StoreName, eviction: str) -> None:
    """order-04: a block and its growth, a stranger, a long prompt that evicts the block, and the end of the room."""
    cache = build(store, 4, eviction=eviction)
    assert run(cache, Request(0, tokens(range(4))), sampled=(4,)) == Ran(0, [0])
    (stranger,) = admit(cache, Request(1, tokens(100, 1, 2, 3)))
    assert got(stranger) == Ran(0, [2])
    long = tokens(range(200, 212))
    (sequence,) = admit(cache, Request(2, long))
    assert got(sequence) == Ran(0, [3, 1, 0])
    compute(cache, stranger)
    compute(cache, sequence)
    release(cache, stranger, sequence)
    (again,) = admit(cache, Request(3, long))
    assert (again.start, cache.num_free()) == (11, 1)
    decode(cache, again, 300)
    assert cache.num_free() == 0
    (refusal,) = try_admit(cache, Request(4, tokens(7))).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.never) == ("slots", 1, 0, False)
    release(cache, again)


@both_orders
def test_the_longest_idle_goes_first(store: StoreName, eviction: str) -> None:
    """order-05: two pages released one after the other go in that order, after six slots that never held anything."""
    cache = build(store, 8, eviction=eviction)
    first, second = admit(cache, Request(1, tokens(range(4))), Request(2, tokens(range(10, 14))))
    for sequence in (second, first):
        compute(cache, sequence)
        release(cache, sequence)
    others = admit(cache, *(Request(n, tokens(range(10 * n, 10 * n + 4))) for n in range(3, 9)))
    assert [sequence.slots().tolist() for sequence in others] == [[2], [3], [4], [5], [6], [7]]
    last = admit(cache, Request(20, tokens(range(200, 204))), Request(21, tokens(range(210, 214))))
    assert [sequence.slots().tolist() for sequence in last] == [[1], [0]]  # second was released before first


@both_orders
def test_a_slot_given_back_with_nothing_in_it(store: StoreName, eviction: str) -> None:
    """order-06: the slot of a truncated page: before all cached ones, or behind what was released earlier."""
    cache = build(store, 2, eviction=eviction)
    run(cache, Request(0, tokens(range(4))))
    run(cache, Request(1, tokens(range(10, 14))))
    assert cache.truncate(Request("t", tokens(range(10, 14)))) == 1
    assert run(cache, Request(2, tokens(range(20, 24)))).slots == {"lru": [1], "release_order": [0]}[eviction]
    assert start_of(cache, tokens(range(5))) == {"lru": 4, "release_order": 0}[eviction]


@pytest.mark.parametrize(("eviction", "slot"), [("release_order", 1), ("lru", 2)])
def test_a_high_interior_block_outlives_its_low_child(store: StoreName, eviction: str, slot: int) -> None:
    """order-07: priorities 90 and 0; the default order loses nothing at all while a slot is empty."""
    cache = build(store, 4, eviction=eviction)
    run(cache, Request(0, FIRST, retention=keep(90, 0)))
    (sequence,) = admit(cache, Request(1, tokens(range(100, 104))))
    assert (got(sequence), cache.num_free()) == (Ran(0, [slot]), 3)
    assert start_of(cache, tokens(range(9))) == (4 if eviction == "release_order" else 8)
    release(cache, sequence)
    assert start_of(cache, tokens(range(4), range(50, 54))) == 4


@pytest.mark.parametrize(("eviction", "slots"), [("release_order", [3, 4, 5]), ("lru", [4, 5, 0])])
def test_a_chain_may_lose_its_first_block_and_nothing_breaks(store: StoreName, eviction: str, slots: list[int]) -> None:
    """order-08: priorities 0, 35, 90 along one chain, then strangers of one and of three blocks."""
    cache = build(store, 6, eviction=eviction)
    run(cache, Request(0, tokens(range(12)), retention=keep(0, 35, 90)))
    (one,) = admit(cache, Request(1, tokens(range(100, 104))))
    assert cache.num_free() == 5
    compute(cache, one)
    release(cache, one)
    (three,) = admit(cache, Request(2, tokens(range(200, 212))))
    assert (got(three), cache.num_free()) == (Ran(0, slots), 3)
    compute(cache, three)
    release(cache, three)
    assert start_of(cache, tokens(range(200, 212))) == 11
    assert start_of(cache, tokens(range(13))) == 0
    assert cache.num_free() == 6


@pytest.mark.parametrize(("eviction", "slots"), [("release_order", [0, 2, 3, 4]), ("lru", [2, 3, 4, 0])])
def test_a_low_interior_block_goes_before_its_high_child(store: StoreName, eviction: str, slots: list[int]) -> None:
    """order-09: priorities 0 and 90: a long prompt takes everything but the block of 90."""
    cache = build(store, 5, eviction=eviction)
    run(cache, Request(0, FIRST, retention=keep(0, 90)))
    (sequence,) = admit(cache, Request(1, tokens(range(100, 116))))
    assert (got(sequence), cache.num_free()) == (Ran(0, slots), 1)
    compute(cache, sequence)
    release(cache, sequence)
    assert start_of(cache, tokens(range(100, 116))) == 15


@both_orders
def test_blocks_below_a_hole_are_found_again_when_it_is_filled(store: StoreName, eviction: str) -> None:
    """order-10: an evicted first block hides its child; storing the block again brings the child back."""
    cache = build(store, 3, eviction=eviction)
    run(cache, Request(0, FIRST, retention=keep(0, 90)))
    run(cache, Request(1, tokens(range(100, 108))))
    assert start_of(cache, tokens(range(9))) == 0
    assert run(cache, Request(2, tokens(range(4), 50)), computed=4).start == 0
    assert start_of(cache, tokens(range(9))) == 8


def test_a_stopped_request_leaves_its_slots_empty(store: StoreName) -> None:
    """order-11: what was never computed, or is not to be stored, is empty at release."""
    cache = build(store, 4)
    run(cache, Request(0, FIRST))
    (stopped,) = admit(cache, Request(1, SECOND))
    release(cache, stopped)
    assert cache.usage().empty == 2
    (cancelled,) = admit(cache, Request(2, THIRD))
    compute(cache, cancelled, 7)
    release(cache, cancelled, store=False)
    assert cache.usage().empty == 1  # the whole block it had committed stays findable
    assert (start_of(cache, FIRST), start_of(cache, SECOND), start_of(cache, THIRD)) == (7, 0, 4)


@both_orders
def test_claimed_pages_are_passed_over(store: StoreName, eviction: str) -> None:
    """order-12: an open claim keeps its page, whatever the order says; dropping it puts nothing out of place."""
    cache = build(store, 2, eviction=eviction)
    run(cache, Request(0, tokens(range(4))))
    run(cache, Request(1, tokens(range(10, 14))))
    claims = cache.claim([Request(2, tokens(range(5)))])
    assert (claims[0].start, cache.num_free()) == (4, 1)
    assert run(cache, Request(3, tokens(range(20, 24)))).slots == [1]
    claims.drop()
    assert cache.num_free() == 2
    assert run(cache, Request(4, tokens(range(30, 34)))).slots == [0]
