"""A tier that no step waits for: what walks, plans and finds make of it, copies down ahead, prefetch."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from quire import (
    Cache,
    CacheConfig,
    InputError,
    Kind,
    LayerGroup,
    Plan,
    Prefetch,
    Refusal,
    Request,
    Scope,
    StateError,
    TierConfig,
    check,
)
from quire.core.store import StoreName

from ..conftest import text

SIZE = 4
SLOW = 2


def cache_of(store: StoreName, device: int = 4, host: int = 4, slow: int = 16, **options: Any) -> Cache:
    tiers = (TierConfig("device", device), TierConfig("host", host), TierConfig("disk", slow, slow=True))
    clock = options.pop("clock", lambda: 0.0)
    config = CacheConfig(tiers, SIZE, max_length=64, receipts=True, prefetch_share=options.pop("share", 1.0), **options)
    return Cache(config, store=store, clock=clock)


def serve(cache: Cache, name: str, tokens: np.ndarray) -> int:
    """Compute a prompt and leave it; where it started."""
    batch = cache.add_sequence_batch([Request(name, tokens)])
    (sequence,) = batch.sequences
    touched = {move.src[0] for move in batch.plan} | {move.dst[0] for move in batch.plan}
    assert SLOW not in touched  # no plan of a step
    cache.finish(batch.plan)
    cache.commit(sequence)
    cache.trim(sequence, 1)
    start = sequence.start
    cache.release(sequence)
    check(cache)
    return start


def copied(cache: Cache, limit: int = 99) -> Plan:
    plan = cache.copy_down(limit)
    check(cache)
    cache.finish(plan)
    check(cache)
    return plan


def filled(store: StoreName, **options: Any) -> Cache:
    """Device 4, host 4; the first prompt is in the slow tier only."""
    cache = cache_of(store, device=5, **options)
    serve(cache, "a", text(1))
    copied(cache)
    serve(cache, "b", text(2))
    copied(cache)
    serve(cache, "c", text(3))
    return cache


def test_what_is_in_the_slow_tier_only_is_missing_and_named(store: StoreName) -> None:
    cache = filled(store)
    with cache.claim([Request("again", text(1))]) as claims:
        (claim,) = claims
        assert claim.start == 0 and claim.coming == 16 and claim.coming_pages == (4,)
        assert [(miss.cause, miss.start, miss.stop) for miss in claim.receipt.misses] == [
            ("slow", 0, 16), ("last_token", 16, 17),
        ]  # fmt: skip
        assert claim.receipt.misses[0].counterfactual == "a prefetch ahead of the claim"
        assert claim.receipt.client().misses[0].cause == "gone"
    with cache.find(Request("again", text(1))) as found:
        assert found.end == 0
    assert cache.probe([Request("again", text(1))])[0].start == 0


def test_a_host_page_without_a_copy_below_is_dropped_and_counted(store: StoreName) -> None:
    cache = cache_of(store, device=5)
    for number in range(3):
        serve(cache, str(number), text(number))
    assert cache.stats().dropped == cache.stats().behind > 0
    ahead = filled(store)
    assert ahead.stats().behind == 0 and ahead.stats().demoted > 0 and ahead.usage(SLOW).idle == 4


def test_a_copy_down_counts_when_its_plan_is_finished(store: StoreName) -> None:
    cache = cache_of(store)
    serve(cache, "a", text(1, 3))
    plan = cache.copy_down(2)
    assert plan.background and len(plan) == 2 and cache.background_plans() == [plan]
    assert {(move.kind, move.dst[0]) for move in plan} == {(Kind.OFFLOAD, SLOW)}
    assert cache.open_plans() == [] and cache.usage(SLOW).shadows == 0 and cache.usage(SLOW).filling == 2
    assert len(cache.copy_down(9)) == 1  # the others are under way already
    cache.finish(plan)
    assert cache.usage(SLOW).shadows == 2 and cache.stats().copied_down == 2
    check(cache)


def test_a_copy_that_failed_costs_nothing_but_itself(store: StoreName) -> None:
    cache = cache_of(store)
    serve(cache, "a", text(1, 3))
    assert not cache.finish(cache.copy_down(9), [0, 2]).setbacks
    assert cache.usage(SLOW).shadows == 1 and cache.usage(SLOW).empty == 15
    assert serve(cache, "again", text(1, 3)) == 12
    assert len(copied(cache)) == 2


def test_what_a_copy_reads_is_not_evicted_before_it_is_finished(store: StoreName) -> None:
    cache = cache_of(store, device=5)
    serve(cache, "a", text(1))
    plan = cache.copy_down(9)
    slots = {move.src for move in plan}
    assert cache.add_sequence_batch([Request("b", text(2))]).refused[0].have == 1
    cache.finish(plan)
    batch = cache.add_sequence_batch([Request("b", text(2))])
    assert {move.src for move in batch.plan} <= slots
    check(cache)


def test_a_copy_of_a_page_that_was_lost_meanwhile_does_not_count(store: StoreName) -> None:
    cache = cache_of(store, device=6)
    serve(cache, "a", text(1, 2))
    plan = cache.copy_down(9)
    assert len(plan) == 2
    batch = cache.add_sequence_batch([Request("b", text(1, 2))])
    (sequence,) = batch.sequences
    bad = int(sequence.slots()[0])
    done = cache.lose(0, [bad])
    assert [(setback.holder, setback.start, setback.lost) for setback in done.setbacks] == [(sequence, 0, False)]
    assert bad not in sequence.slots().tolist()
    cache.commit(sequence, 9)  # good bytes, and the copy that is being made has the bad ones
    check(cache)
    cache.finish(plan)
    check(cache)
    assert cache.usage(SLOW).shadows == 1 and cache.probe([Request("c", text(1, 2))])[0].start == 8


def test_what_a_step_may_fail_to_write_is_not_copied(store: StoreName) -> None:
    cache = cache_of(store, device=5)
    serve(cache, "a", text(1))
    batch = cache.add_sequence_batch([Request("b", text(2))])
    assert batch.plan.count(Kind.OFFLOAD) == 4
    assert len(cache.copy_down(9)) == 0  # its bytes might never come down
    check(cache)
    cache.finish(batch.plan, [0])
    assert len(copied(cache)) == 3 and cache.usage(SLOW).shadows == 3


def test_a_prefetch_waits_for_the_step_that_reads_its_slots(store: StoreName) -> None:
    cache = filled(store)
    batch = cache.add_sequence_batch([Request("b", text(2))])
    assert batch.plan.count(Kind.ONBOARD) + batch.plan.count(Kind.EXCHANGE) > 0
    late = cache.prefetch(Request("again", text(1)))
    assert isinstance(late, Prefetch) and late.plan.after == batch.plan.number
    cache.finish(batch.plan)
    cache.finish(late.plan)
    check(cache)


def test_a_snapshot_that_waits_for_the_next_plan_is_not_copied(store: StoreName) -> None:
    tiers = (TierConfig("device", 6), TierConfig("host", 4), TierConfig("disk", 8, slow=True))
    cache = Cache(CacheConfig(tiers, SIZE, (LayerGroup("state", snapshot_every=SIZE),), max_length=64), store=store)
    batch = cache.add_sequence_batch([Request("a", text(1, 2))], max_chunk=SIZE)
    cache.commit(batch.sequences)
    assert len(cache.copy_down(9)) == 0  # its bytes are in the next plan
    again = cache.add_sequence_batch([], continuing=batch.sequences, max_chunk=SIZE)
    assert again.plan.count(Kind.COPY) == 1 and len(cache.copy_down(9)) == 0
    cache.finish(again.plan)
    assert len(copied(cache)) == 1


def test_a_snapshot_that_waits_keeps_no_page_of_another_group_from_being_copied(store: StoreName) -> None:
    """Each pool numbers its pages from 0: the same number in another group is another page."""
    groups = (LayerGroup("full"), LayerGroup("state", snapshot_every=2 * SIZE))
    cache = cache_of(store, device=10, groups=groups)
    for number in (1, 2, 3):
        batch = cache.add_sequence_batch([Request(number, text(number, 2))])
        cache.finish(batch.plan)
        cache.commit(batch.sequences)
        if number < 3:
            cache.release(batch.sequences[0])
    inside = cache._setup.store
    (waiting,) = [page for page in range(10) if inside.is_pending(1, page)]
    info = inside.page_info(0, waiting)
    assert info is not None and not info.holders and not inside.is_pending(0, waiting)
    assert [move.group for move in cache.copy_down(9)] == [0, 0, 0, 0, 1, 1]


def test_the_slow_tier_gives_up_what_is_worth_least_and_no_shadow(store: StoreName) -> None:
    cache = cache_of(store, device=5, slow=4)
    serve(cache, "a", text(1))
    assert len(copied(cache)) == 4
    serve(cache, "b", text(2))
    assert len(copied(cache)) == 0  # the four there are shadows of pages in the host
    serve(cache, "c", text(3))
    assert len(copied(cache)) == 4  # now they are the last copies, and older
    assert cache.explain(Request("x", text(1))).missed("slow") == 0


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_a_prefetch_brings_the_hit_into_the_host(store: StoreName, eviction: Any) -> None:
    cache = filled(store, eviction=eviction)
    found = cache.prefetch(Request("again", text(1)))
    assert isinstance(found, Prefetch) and found.end == 16 and found.plan.count(Kind.ONBOARD) == 4
    assert not found.arrived and cache.usage(1).filling == 4
    with cache.claim([Request("again", text(1))]) as claims:
        assert claims[0].start == 0  # nothing waits for it
    cache.finish(found.plan)
    assert found.arrived and cache.usage(1).prefetched == 4 and cache.usage(SLOW).shadows == 4
    check(cache)
    assert serve(cache, "again", text(1)) == 16
    assert found.closed and cache.stats().prefetched == 4


def test_what_has_arrived_is_held_until_it_is_closed(store: StoreName) -> None:
    cache = filled(store)
    found = cache.prefetch(Request("again", text(1)))
    assert isinstance(found, Prefetch)
    cache.finish(found.plan)
    serve(cache, "d", text(4))
    with cache.claim([Request("again", text(1))]) as claims:
        assert claims[0].start == 16
    assert not found.closed  # a claim that was dropped has changed nothing
    found.close()
    serve(cache, "e", text(5))
    serve(cache, "f", text(6))
    with cache.claim([Request("again", text(1))]) as claims:
        assert claims[0].start == 0 and claims[0].coming == 16
    check(cache)


def test_a_prefetch_ends_at_its_deadline_and_when_it_is_lost(store: StoreName) -> None:
    now = [0.0]
    cache = filled(store, clock=lambda: now[0])
    found = cache.prefetch(Request("again", text(1)), deadline=5.0)
    assert isinstance(found, Prefetch)
    assert cache.open_prefetches() == [found]
    now[0] = 5.0
    assert cache.open_prefetches() == [] and found.closed
    cache.finish(found.plan)  # what was under way has come all the same
    assert cache.usage(1).idle == 4 and cache.usage(1).prefetched == 0
    lost = cache.prefetch(Request("again", text(1)))
    assert isinstance(lost, Prefetch) and len(lost.plan) == 0
    del lost
    gc.collect()
    with pytest.warns(ResourceWarning, match="prefetches"):
        cache.open_prefetches()
    check(cache)


def test_prefetches_hold_no_more_than_their_share(store: StoreName) -> None:
    cache = filled(store, share=0.5)
    refused = cache.prefetch(Request("again", text(1)))
    assert isinstance(refused, Refusal) and (refused.need, refused.have, refused.never) == (4, 2, True)
    part = cache.prefetch(Request("again", text(1), reuse_limit=8))
    assert isinstance(part, Prefetch) and part.end == 8
    more = cache.prefetch(Request("more", text(1), reuse_limit=12))
    assert isinstance(more, Refusal) and (more.need, more.have) == (1, 0)
    same = cache.prefetch(Request("same", text(1), reuse_limit=8))
    assert isinstance(same, Prefetch) and len(same.plan) == 0  # the same pages, under way already
    cache.finish(part.plan)
    part.close()
    assert same.arrived and cache.usage(1).prefetched == 2
    check(cache)


def test_a_page_that_cannot_be_read_from_the_slow_tier_is_lost(store: StoreName) -> None:
    cache = filled(store)
    found = cache.prefetch(Request("again", text(1)))
    assert isinstance(found, Prefetch)
    assert cache.finish(found.plan, [1]).setbacks == ()
    with cache.claim([Request("again", text(1))]) as claims:
        assert claims[0].start == 4
        assert claims[0].receipt.missed("failed") > 0
    check(cache)


def test_bad_pages_and_forgotten_ones_leave_the_slow_tier(store: StoreName) -> None:
    cache = filled(store)
    assert cache.lose(0, [0], tier=SLOW).setbacks == ()
    assert cache.usage(SLOW).empty == 9
    found = cache.prefetch(Request("again", text(1)))
    assert isinstance(found, Prefetch)
    cache.clear()
    assert cache.usage(SLOW).held == len(found.plan)  # they are being read
    cache.finish(found.plan)
    assert cache.usage(SLOW).empty == 16 and cache.usage(1).empty == 4
    check(cache)


def test_only_what_resuming_needs_is_brought_up(store: StoreName) -> None:
    tiers = (TierConfig("device", 6), TierConfig("host", 6), TierConfig("disk", 20, slow=True))
    groups = (LayerGroup("window", window=SIZE),)
    config = CacheConfig(tiers, SIZE, groups, max_length=64, prefetch_share=1.0, eviction="release_order")
    cache = Cache(config, store=store)
    for number in range(4):
        serve(cache, str(number), text(number))
        copied(cache)
    found = cache.prefetch(Request("again", text(0)))
    assert isinstance(found, Prefetch) and found.end == 16 and len(found.plan) == 1
    cache.finish(found.plan)
    assert serve(cache, "again", text(0)) == 16


def test_without_a_device_host_and_disk_serve_finds_and_writers(store: StoreName) -> None:
    cache = cache_of(store, device=0)

    def bring(number: int) -> int:
        with cache.writer(Request(number, text(number)), tier=1) as writer:  # type: ignore[union-attr]
            return writer.written(16)

    assert bring(1) == 4 and len(copied(cache)) == 4
    assert bring(2) == 4 and cache.usage(SLOW).idle == 4
    with cache.prefetch(Request("x", text(1))) as found:  # type: ignore[union-attr]
        cache.finish(found.plan)
        with cache.find(Request("x", text(1))) as hit:
            assert hit.end == 16 and hit.tiers().tolist() == [1] * 4
            hit.used()
        assert found.closed
    assert bring(2) == 4  # what is in the slow tier only, or gone, is written again
    check(cache)


def test_a_found_page_keeps_its_slot_when_it_comes_up(store: StoreName) -> None:
    cache = Cache(
        CacheConfig((TierConfig("d", 5), TierConfig("h", 4)), SIZE, max_length=64, shadows=False), store=store
    )
    for number in (1, 2):
        batch = cache.add_sequence_batch([Request(number, text(number))])
        cache.finish(batch.plan)
        cache.commit(batch.sequences)
        cache.trim(batch.sequences[0], 1)
        cache.release(batch.sequences[0])
    found = cache.find(Request("x", text(1)))
    tiers, slots = found.tiers(), found.slots()
    assert tiers.tolist() == [1] * 4
    batch = cache.add_sequence_batch([Request("y", text(1))])
    assert batch.sequences[0].start == 16 and batch.plan.count(Kind.EXCHANGE) == 0
    check(cache)
    assert cache.usage(1).shadows == 4 and found.slots().tolist() == slots.tolist()
    cache.finish(batch.plan)
    written = cache.writer(Request("z", text(7)), tier=1)
    assert isinstance(written, Refusal) and written.have == 0  # nobody takes them
    found.close()
    assert not isinstance(cache.writer(Request("z", text(7)), tier=1), Refusal)
    check(cache)


def test_misuse_is_refused(store: StoreName) -> None:
    plain = Cache(CacheConfig((TierConfig("d", 5), TierConfig("h", 4)), SIZE), store=store)
    for call in (lambda: plain.copy_down(1), lambda: plain.prefetch(Request(1, text(1))), plain.lasting_changes):
        with pytest.raises(StateError):
            call()
    cache = cache_of(store)
    for wrong in (-1, True, 2.0):
        with pytest.raises(InputError):
            cache.copy_down(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="deadline"):
        cache.prefetch(Request(1, text(1)), deadline="soon")  # type: ignore[arg-type]
    for tiers in ((5, 4), (5, 4, 3, 2)):
        many = [TierConfig(str(nth), slots, slow=nth == 1) for nth, slots in enumerate(tiers)]
        with pytest.raises(InputError, match="slow tier"):
            CacheConfig(many)
    with pytest.raises(InputError, match="prefetch_share"):
        cache_of(store, share=1.5)
    with pytest.raises(InputError, match="lasting"):
        CacheConfig((TierConfig("d", 5),), lasting=True)
    assert cache.forget(Scope(salt="nobody")) == 0


def test_a_page_that_a_prefetch_holds_is_copied_from_and_not_taken_over(store: StoreName) -> None:
    cache = filled(store)
    found = cache.prefetch(Request("again", text(1)))
    assert isinstance(found, Prefetch)
    cache.finish(found.plan)
    part = np.concatenate([text(1)[:14], text(9)[:2]])
    batch = cache.add_sequence_batch([Request("part", part)])
    assert batch.sequences[0].start == 14 and batch.plan.count(Kind.COPY) == 1
    check(cache)
    cache.finish(batch.plan)
    cache.release(batch.sequences[0], store=False)
    with cache.claim([Request("again", text(1))]) as claims:
        assert claims[0].start == 16


def test_moves_that_were_given_up_leave_their_pages_where_they_are(store: StoreName) -> None:
    """A failed move says that its page is bad; an undone one says nothing, and it can be tried again."""
    cache = filled(store)
    found = cache.prefetch(Request("again", text(1)))
    assert isinstance(found, Prefetch) and len(found.plan) == 4
    with pytest.raises(InputError, match="indices of its moves"):
        cache.finish(found.plan, (), [4])
    assert cache.finish(found.plan, [3], [0, 1]).setbacks == ()
    found.close()
    check(cache)
    again = cache.prefetch(Request("again", text(1)))
    assert isinstance(again, Prefetch) and (again.end, len(again.plan)) == (12, 2), "the last one is lost"
    cache.finish(again.plan)
    again.close()
    batch = cache.add_sequence_batch([Request("step", text(1))])
    assert len(batch.plan)
    with pytest.raises(InputError, match="a step's plan"):
        cache.finish(batch.plan, (), [0])
    cache.finish(batch.plan)
    check(cache)
