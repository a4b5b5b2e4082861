"""Several requests in one call: who keeps a shared page, who copies it, who stays out. Rows `batch`."""

from __future__ import annotations

from typing import Any

import pytest

from quire import Cache, Kind, Refusal, Removed, Request, check
from quire.core.store import StoreName

from .conftest import Ran, admit, both_orders, build, compute, events, got, release, run, start_of, tokens, try_admit

SEVEN, NINE = tokens(range(7)), tokens(range(9))
A, B = tokens(range(100, 108), range(900, 904)), tokens(range(200, 208), range(950, 954))


def summary(refused: list[Refusal]) -> list[tuple[object, str, int, int]]:
    return [(refusal.request.id, refusal.reason, refusal.need, refusal.have) for refusal in refused]


@both_orders
@pytest.mark.parametrize("computed", [6, 7])
def test_the_last_partial_hitter_takes_the_leaf_over(store: StoreName, eviction: str, computed: int) -> None:
    """batch-01: two requests end inside one idle leaf: the first copies, the last keeps the page itself."""
    cache = build(store, 16, eviction=eviction)
    run(cache, Request("seed", SEVEN), computed=computed)
    first, second = admit(cache, Request(1, tokens(range(5), 10)), Request(2, tokens(range(5), 20)))
    assert (got(first), got(second)) == (Ran(5, [0, 2]), Ran(5, [0, 1]))


@both_orders
@pytest.mark.parametrize("full_first", [False, True])
def test_a_full_hit_keeps_the_page_and_the_partial_hitter_copies(
    store: StoreName, eviction: str, full_first: bool
) -> None:
    """batch-02: whoever comes first, a page that one request hits in full stays in the tree and the other copies it."""
    cache = build(store, 16, eviction=eviction)
    run(cache, Request("seed", NINE), computed=8)
    full, partial = Request("full", NINE), Request("partial", tokens(range(7), 10))
    batch = cache.add_sequence_batch([full, partial] if full_first else [partial, full])
    check(cache)
    by_id = {sequence.id: sequence for sequence in batch.sequences}
    assert (by_id["full"].start, by_id["partial"].start) == (8, 7)
    assert by_id["full"].slots()[:2].tolist() == [0, 1]
    assert by_id["partial"].slots()[0] == 0 and by_id["partial"].slots()[1] not in (0, 1)
    (copy,) = batch.plan
    assert (copy.kind, copy.src, copy.dst, copy.tokens) == (Kind.COPY, (0, 1), (0, by_id["partial"].slots()[1]), 3)


@both_orders
def test_everyone_copies_a_block_that_has_children(store: StoreName, eviction: str) -> None:
    """batch-03: two requests end inside a block with two children: both copy, the block itself is free again."""
    cache = build(store, 16, eviction=eviction)
    run(cache, Request("s1", tokens(range(8))))
    run(cache, Request("s2", tokens(range(4), range(10, 14))))
    first, second = admit(cache, Request(1, tokens(0, 1, 2, 50)), Request(2, tokens(0, 1, 60, 70)))
    assert (got(first), got(second)) == (Ran(3, [3]), Ran(2, [4]))
    assert cache.num_free() == 14
    assert start_of(cache, NINE) == 8


@both_orders
def test_a_block_with_children_hit_in_full_and_in_part(store: StoreName, eviction: str) -> None:
    """batch-04: the full hit holds the block, the partial one copies it."""
    cache = build(store, 16, eviction=eviction)
    run(cache, Request("s1", NINE), computed=8)
    run(cache, Request("s2", tokens(range(4), range(10, 15))), computed=8)
    first, second = admit(cache, Request(1, NINE), Request(2, tokens(0, 1, 2, 50)))
    assert (first.start, second.start) == (8, 3)
    assert first.slots()[:2].tolist() == [0, 1] and second.slots()[0] not in first.slots()


@both_orders
def test_a_hit_beside_a_stranger_is_not_disturbed(store: StoreName, eviction: str) -> None:
    """batch-05: the stranger takes none of the pages the other one hits."""
    cache = build(store, 16, eviction=eviction)
    run(cache, Request("seed", NINE), computed=8)
    first, second = admit(cache, Request(1, NINE), Request(2, tokens(range(100, 104))))
    assert (first.start, second.start) == (8, 0)
    assert first.slots()[:2].tolist() == [0, 1] and not set(second.slots()) & set(first.slots())


@both_orders
def test_of_three_partial_hitters_the_last_takes_over(store: StoreName, eviction: str) -> None:
    """batch-06: three requests end inside one idle leaf: two copies and one take-over, three pages."""
    cache = build(store, 16, eviction=eviction)
    run(cache, Request("seed", SEVEN), computed=6)
    sequences = admit(cache, *(Request(n, tokens(range(5), n)) for n in (10, 20, 30)))
    assert [got(sequence) for sequence in sequences] == [Ran(5, [0, 2]), Ran(5, [0, 3]), Ran(5, [0, 1])]


@both_orders
def test_equal_prompts_in_one_batch_do_not_share(store: StoreName, eviction: str) -> None:
    """batch-07: nothing is computed yet, so nothing is shared; the first to commit is found, the other's pages go."""
    cache = build(store, 6, eviction=eviction)
    first, second = admit(cache, Request(1, tokens(range(8))), Request(2, tokens(range(8))))
    assert (first.start, second.start, cache.num_free()) == (0, 0, 2)
    assert (compute(cache, first), compute(cache, second)) == (2, 0)
    release(cache, second, first)
    assert (cache.num_free(), cache.usage().idle) == (6, 2)


def host_full_of_hits(store: StoreName, eviction: str, **options: Any) -> Cache:
    """Two prompts of two blocks each, both pushed down to the host by a third one that fills the device."""
    cache = build(store, 6, 4, eviction=eviction, **options)
    run(cache, Request("a", tokens(range(100, 109))), computed=8)
    run(cache, Request("b", tokens(range(200, 209))), computed=8)
    run(cache, Request("c", tokens(range(300, 324))))
    assert (cache.usage(0).idle, cache.usage(1).idle) == (6, 4)
    assert [probe.start for probe in cache.probe([Request(1, A), Request(2, B)])] == [8, 8]
    cache.take_stats()
    return cache


@pytest.mark.parametrize(("eviction", "slots"), [("release_order", [3, 4, 5, 0, 1, 2]), ("lru", [3, 4, 0, 1, 5, 2])])
def test_the_promise_is_kept_when_every_hit_is_on_a_full_host(
    store: StoreName, eviction: str, slots: list[int]
) -> None:
    """batch-08: two hits of 8 tokens on a full host, a full device, a budget of 8: both are in and compute 4 each."""
    cache = host_full_of_hits(store, eviction)
    batch = cache.add_sequence_batch([Request(1, A), Request(2, B)], token_budget=8)
    check(cache)
    assert (batch.num_tokens, [sequence.start for sequence in batch.sequences], batch.refused) == (8, [8, 8], [])
    assert [slot for sequence in batch.sequences for slot in sequence.slots()] == slots
    kinds = [move.kind for move in batch.plan]
    assert kinds == [Kind.EXCHANGE, Kind.EXCHANGE, Kind.OFFLOAD] * 2
    step = cache.take_stats()
    assert (step.allocated, step.onboarded, step.offloaded, step.reused, step.missed) == (6, 4, 6, 4, 2)
    assert (step.allocated_new, step.dropped) == (0, 2)  # for the two new pages; none for the onboards
    cache.finish(batch.plan)


def test_onboards_alone_drop_nothing(store: StoreName) -> None:
    """batch-09: as batch-08 without anything new to compute into: exchanges only, no page leaves the cache."""
    cache = host_full_of_hits(store, "lru", events=True)
    events(cache)
    with cache.claim([Request(1, A[:8]), Request(2, B[:8])], purpose="decode") as claims:
        batch = cache.admit(claims)
    check(cache)
    assert [move.kind for move in batch.plan] == [Kind.EXCHANGE] * 4
    step = cache.take_stats()
    assert (step.allocated, step.onboarded, step.offloaded, step.dropped) == (4, 4, 4, 0)
    assert not [event for event in events(cache) if isinstance(event, Removed)]
    assert start_of(cache, tokens(range(300, 325))) == 24


@both_orders
def test_the_budget_is_kept_on_final_numbers(store: StoreName, eviction: str) -> None:
    """batch-10: as batch-08, budget 7: one is in, the other refused; what it hit is open to eviction again."""
    cache = host_full_of_hits(store, eviction)
    batch = try_admit(cache, Request(1, A), Request(2, B), token_budget=7)
    assert [sequence.id for sequence in batch.sequences] == [1] and batch.num_tokens == 4
    assert summary(batch.refused) == [(2, "tokens", 4, 3)]
    assert (
        start_of(cache, B) == 4
    )  # the first one's new page pushed a page down, which took the place of B's second block


def test_a_copy_source_is_given_back_right_after_its_last_copy(store: StoreName) -> None:
    """batch-11: three slots: two copies of a block with a child, then a stranger that gets the block's own slot."""
    cache = build(store, 3)
    run(cache, Request("seed", tokens(range(8))))
    requests = [Request(1, tokens(0, 1, 2, 50)), Request(2, tokens(0, 1, 60, 70)), Request(3, tokens(range(80, 84)))]
    assert [got(sequence) for sequence in admit(cache, *requests)] == [Ran(3, [2]), Ran(2, [1]), Ran(0, [0])]


def test_a_request_may_use_the_slot_of_the_block_it_has_just_copied(store: StoreName) -> None:
    """batch-12: two slots, both cached: a request copies part of a block; its next page gets that block's slot."""
    cache = build(store, 2)
    run(cache, Request("seed", tokens(range(8))))
    assert got(admit(cache, Request(1, tokens(0, 1, 2, 50, 51)))[0]) == Ran(3, [1, 0])


@both_orders
def test_the_longest_prefix_that_fits_is_admitted(store: StoreName, eviction: str) -> None:
    """batch-13: three prompts of two blocks on five slots: two are in, the third is told what it lacks."""
    cache = build(store, 5, eviction=eviction)
    requests = [Request(n, tokens(range(10 * n, 10 * n + 8))) for n in range(3)]
    batch = try_admit(cache, *requests)
    assert [sequence.id for sequence in batch.sequences] == [0, 1]
    assert summary(batch.refused) == [(2, "slots", 2, 1)]


def test_all_or_nothing_admits_none(store: StoreName) -> None:
    """batch-14: as batch-13, all or nothing: nobody is in and nothing has changed."""
    cache = build(store, 5)
    requests = [Request(n, tokens(range(10 * n, 10 * n + 8))) for n in range(3)]
    batch = try_admit(cache, *requests, all_or_nothing=True)
    assert batch.sequences == [] and {refusal.request.id for refusal in batch.refused} == {0, 1, 2}
    assert (cache.num_free(), cache.usage().empty, len(batch.plan)) == (5, 5, 0)
    assert cache.stats().allocated == 0


def test_rows_run_out_like_any_resource(store: StoreName) -> None:
    """batch-15: two sequences at most: the third request is refused for want of a row."""
    cache = build(store, 8, max_sequences=2)
    batch = try_admit(cache, *(Request(n, tokens(range(10 * n, 10 * n + 4))) for n in range(4)))
    assert summary(batch.refused) == [(2, "sequences", 3, 2), (3, "order", 3, 2)]


def test_what_a_refused_request_hit_makes_room_for_the_others(store: StoreName) -> None:
    """batch-16: a refused request's claim is let go before slots are taken; it is told what it would need now."""
    cache = build(store, 4)
    run(cache, Request("seed", tokens(range(8))), computed=8)
    first, second = Request(1, tokens(range(20, 32))), Request(2, tokens(range(9)))
    batch = try_admit(cache, first, second)
    assert [sequence.id for sequence in batch.sequences] == [1]
    assert summary(batch.refused) == [(2, "slots", 3, 1)]  # its second block went to the first: one hit and two new
    assert cache.num_free() == 1
