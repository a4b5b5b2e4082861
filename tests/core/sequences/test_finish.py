"""A failed move is a miss with a name: it changes a promise aloud, before its step, and never gives wrong bytes."""

from __future__ import annotations

import numpy as np
import pytest

from quire import Cache, CacheConfig, Claim, Kind, LayerGroup, Request, Sequence, Span, StateError, TierConfig, check
from quire.core.records.plan import NO_MOVES, Plan
from quire.core.store import StoreName

from ..conftest import seq, serve, small


def pushed_down(store: StoreName, **options: object) -> Cache:
    """Blocks of 'a' (two) wait on the host; the device is full of idle blocks of 'c'."""
    cache = small(store, 4, 4, **options)
    serve(cache, Request("a", seq(0, 8)))
    serve(cache, Request("c", seq(100, 16)))
    assert cache.usage(1).idle == 2
    return cache


def test_a_failed_onboard_drops_the_start(store: StoreName) -> None:
    cache = pushed_down(store)
    batch = cache.add_sequence_batch([Request("r", seq(0, 12))])
    (sequence,) = batch.sequences
    assert sequence.start == 8
    onboards = [place for place, move in enumerate(batch.plan) if move.kind in (Kind.ONBOARD, Kind.EXCHANGE)]
    done = cache.finish(batch.plan, failed=[onboards[1]])  # the second block could not be read
    (setback,) = done.setbacks
    assert (setback.holder, setback.old_start, setback.start, setback.lost) == (sequence, 8, 4, False)
    assert (sequence.start, sequence.computed, sequence.committed) == (4, 4, 4)
    check(cache)
    cache.commit(sequence, 12)
    cache.release(sequence)
    check(cache)
    assert cache.probe([Request("again", seq(0, 12))])[0].start == 11


def test_every_sequence_on_a_lost_page_is_told(store: StoreName) -> None:
    cache = small(store, 8, 4)
    serve(cache, Request("a", seq(0, 8)))
    serve(cache, Request("c", seq(100, 32)))
    batch = cache.add_sequence_batch(
        [Request("r", seq(0, 10)), Request("s", np.append(seq(0, 8), 99).astype(np.int32))]
    )
    onboards = [place for place, move in enumerate(batch.plan) if move.kind in (Kind.ONBOARD, Kind.EXCHANGE)]
    assert [sequence.start for sequence in batch.sequences] == [8, 8] and len(onboards) == 2
    done = cache.finish(batch.plan, failed=[onboards[0]])
    assert {setback.holder for setback in done.setbacks} == set(batch.sequences)
    assert [sequence.start for sequence in batch.sequences] == [0, 0]
    first, second = (set(sequence.pages().tolist()) for sequence in batch.sequences)
    assert not first & second, "both compute for themselves now"
    check(cache)


def test_without_room_the_sequence_is_lost_and_released(store: StoreName) -> None:
    """Two sequences shared two pages of a full device: when the first page fails, only one of them can go on."""
    cache = small(store, 4, 4)
    serve(cache, Request("a", seq(0, 8)))
    serve(cache, Request("c", seq(100, 16)))
    batch = cache.add_sequence_batch(
        [Request("r", seq(0, 12)), Request("s", np.append(seq(0, 8), 99).astype(np.int32))]
    )
    assert len(batch.sequences) == 2 and cache.num_free() == 0
    onboards = [place for place, move in enumerate(batch.plan) if move.kind in (Kind.ONBOARD, Kind.EXCHANGE)]
    done = cache.finish(batch.plan, failed=[onboards[0]])
    lost = [setback for setback in done.setbacks if setback.lost]
    assert len(lost) == 1 and len(done.setbacks) == 2
    assert isinstance(lost[0].holder, Sequence) and not lost[0].holder.live
    check(cache)


def test_a_failed_copy_costs_only_the_partial_block(store: StoreName) -> None:
    cache = small(store, 8)
    serve(cache, Request("a", seq(0, 12)))
    batch = cache.add_sequence_batch([Request("r", np.array([0, 1, 2, 3, 4, 5, 77, 78], np.int32))])
    (sequence,) = batch.sequences
    assert sequence.start == 6 and [move.kind for move in batch.plan] == [Kind.COPY]
    done = cache.finish(batch.plan, failed=[0])
    assert [(s.old_start, s.start) for s in done.setbacks] == [(6, 4)] and sequence.computed == 4
    check(cache)


def test_a_failed_offload_loses_the_page_and_nothing_else(store: StoreName) -> None:
    cache = small(store, 2, 4, events=True)
    serve(cache, Request("a", seq(0, 8)))
    batch = cache.add_sequence_batch([Request("b", seq(100, 8))])
    assert batch.plan.count(Kind.OFFLOAD) == 2
    done = cache.finish(batch.plan, failed=[1])
    assert not done.setbacks
    assert cache.usage(1).idle == 1
    check(cache)


def test_a_failed_shadow_costs_nothing(store: StoreName) -> None:
    cache = small(store, 4, 4)
    serve(cache, Request("a", seq(0, 8)))
    plan = cache.offload(2)
    assert cache.usage(1).shadows == 2
    assert not cache.finish(plan, failed=[0, 1]).setbacks
    assert cache.usage(1).shadows == 0 and cache.probe([Request("p", seq(0, 9))])[0].start == 8
    check(cache)


def test_an_open_claim_is_told_too(store: StoreName) -> None:
    """Somebody claimed pages that are still on their way down; the move fails."""
    cache = small(store, 2, 4)
    serve(cache, Request("a", seq(0, 8)))
    batch = cache.add_sequence_batch([Request("b", seq(100, 8))])
    claims = cache.claim([Request("r", seq(0, 8))])
    assert claims[0].start == 7
    done = cache.finish(batch.plan, failed=[0])  # deepest first: block 1
    (setback,) = done.setbacks
    assert isinstance(setback.holder, Claim) and (setback.old_start, setback.start) == (7, 4)
    check(cache)
    claims.drop()
    check(cache)


@pytest.mark.parametrize("shadows", [True, False])
def test_a_failed_exchange_loses_both_pages(store: StoreName, shadows: bool) -> None:
    cache = small(store, 2, 2, shadows=shadows)
    serve(cache, Request("a", seq(0, 8)))
    serve(cache, Request("c", seq(100, 8)))
    batch = cache.add_sequence_batch([Request("r", seq(0, 8))])
    kinds = [move.kind for move in batch.plan]
    assert Kind.EXCHANGE in kinds
    done = cache.finish(batch.plan, failed=[kinds.index(Kind.EXCHANGE)])
    assert done.setbacks and batch.sequences[0].start == 0
    check(cache)


def test_a_failed_exchange_is_told_though_one_of_its_pages_is_gone(store: StoreName) -> None:
    """The page that came up was given back and its id used again before the plan was finished: the other is lost."""
    cache = small(store, 2, 2)
    serve(cache, Request("a", seq(0, 8)))
    serve(cache, Request("c", seq(100, 8)))
    batch = cache.add_sequence_batch([Request("r", seq(0, 8))])
    last = [place for place, move in enumerate(batch.plan) if move.kind is Kind.EXCHANGE][-1]
    cache.release(batch.sequences[0], store=False)
    (other,) = cache.add_sequence_batch([Request("z", seq(200, 4))]).sequences
    assert int(batch.plan.moves[last, 7]) in other.pages().tolist(), "the id is in use again"
    before = cache.usage(1).idle
    cache.finish(batch.plan, failed=[last])
    assert other.live and cache.usage(1).idle == before - 1
    check(cache)


def test_a_copy_that_may_still_fail_is_not_inherited(store: StoreName) -> None:
    """A page goes down, its block is computed anew and committed, then the move fails: nothing bad is findable."""
    cache = small(store, 4, 2)
    first, second = cache.add_sequence_batch([Request("a", seq(0, 4)), Request("r", seq(0, 4))]).sequences
    cache.commit(first)
    cache.release(first)
    moving = cache.add_sequence_batch([Request("x", seq(100, 12))])
    assert moving.plan.count(Kind.OFFLOAD) == 1
    cache.commit(second)  # takes the block's place; the copy on the host may never come
    assert cache.usage(1).shadows == 0
    assert not cache.finish(moving.plan, failed=[0]).setbacks
    assert cache.usage(1).empty == 2 and cache.probe([Request("p", seq(0, 5))])[0].start == 4
    check(cache)


def test_a_hold_on_a_lost_page_is_told(store: StoreName) -> None:
    """The sequence is gone, a transfer still holds its pages: it must not send what never came."""
    cache = pushed_down(store)
    batch = cache.add_sequence_batch([Request("r", seq(0, 12))])
    held = cache.hold(batch.sequences[0], Span(0, 12))
    assert held is not None
    cache.release(batch.sequences[0])
    onboards = [place for place, move in enumerate(batch.plan) if move.kind in (Kind.ONBOARD, Kind.EXCHANGE)]
    (setback,) = cache.finish(batch.plan, failed=[onboards[1]]).setbacks
    assert (setback.holder, setback.old_start, setback.start) == (held, 12, 4)
    check(cache)
    cache.drop(held)
    check(cache)


def test_generated_tokens_are_computed_again_after_a_setback(store: StoreName) -> None:
    cache = small(store, 8)
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 4))]).sequences
    cache.commit(sequence)
    cache.grow(sequence, seq(4, 6).reshape(1, 6))
    cache.commit(sequence)
    forked = cache.fork(sequence, ["f"])
    assert forked is not None
    ((fork,), plan) = forked
    (setback,) = cache.finish(plan, failed=[0]).setbacks
    assert (setback.holder, setback.start) == (fork, 8)
    batch = cache.add_sequence_batch([], token_budget=8, continuing=[fork])
    assert batch.spans[fork] == Span(8, 10)
    check(cache)


def test_what_could_not_be_read_to_be_copied_is_found_no_more(store: StoreName) -> None:
    """A partial hit copies from the host: when that read fails, the next request does not run into it again."""
    cache = small(store, 4, 4)
    serve(cache, Request("a", seq(0, 8)))
    serve(cache, Request("c", seq(100, 16)))
    batch = cache.add_sequence_batch([Request("r", seq(0, 6)), Request("s", np.append(seq(0, 6), 9).astype(np.int32))])
    copies = [place for place, move in enumerate(batch.plan) if move.kind == Kind.COPY and move.src[0] == 1]
    assert copies, [str(move) for move in batch.plan]
    cache.finish(batch.plan, failed=copies)
    check(cache)
    for sequence in batch.sequences:
        cache.release(sequence, store=False)
    assert cache.probe([Request("again", seq(0, 7))])[0].start == 4


def test_a_snapshot_that_could_not_be_read_is_found_no_more(store: StoreName) -> None:
    """Else the request that is claimed again after its loss would find it again, and lose it again, for ever."""
    groups = (LayerGroup("full"), LayerGroup("state", snapshot_every=4))
    tiers = (TierConfig("device", (16, 2)), TierConfig("host", (16, 4)))
    cache = Cache(CacheConfig(tiers, 4, groups, max_sequences=4, max_length=64), store=store)
    for name, first in (("a", 0), ("c", 100)):
        (sequence,) = cache.add_sequence_batch([Request(name, seq(first, 6))]).sequences
        cache.commit(sequence)
        while sequence.computed < 6:
            with cache.claim([]) as none:
                cache.finish(cache.admit(none, continuing=[sequence]).plan)
            cache.commit(sequence)
        cache.release(sequence, store=False)
    batch = cache.add_sequence_batch([Request("r", seq(0, 6))])
    copies = [place for place, move in enumerate(batch.plan) if move.kind == Kind.COPY and move.src[0] == 1]
    assert batch.sequences[0].start == 4 and copies, [str(move) for move in batch.plan]
    (setback,) = cache.finish(batch.plan, failed=copies).setbacks
    check(cache)
    assert setback.lost and setback.request is not None
    assert cache.probe([setback.request])[0].start == 0


def test_what_was_set_back_was_handed_out_to_nobody(store: StoreName) -> None:
    cache = pushed_down(store)
    batch = cache.add_sequence_batch([Request("r", seq(0, 12))])
    (sequence,) = batch.sequences
    assert (sequence.start, sequence.ran) == (8, 12)
    onboards = [place for place, move in enumerate(batch.plan) if move.kind in (Kind.ONBOARD, Kind.EXCHANGE)]
    cache.finish(batch.plan, failed=onboards)
    assert (sequence.computed, sequence.ran, cache.commit(sequence), sequence.computed) == (0, 0, 0, 0)
    check(cache)


def test_a_lost_page_that_somebody_reads_is_not_computed_again_in_place(store: StoreName) -> None:
    """It keeps its bad copy on the host until the reader has closed: found again, it would be found with that."""
    cache = pushed_down(store)
    with cache.find(Request("reader", seq(0, 8))) as found:
        assert found.tiers().tolist() == [1, 1]
        batch = cache.add_sequence_batch([Request("r", seq(0, 9))])
        (sequence,) = batch.sequences
        old = sequence.pages().tolist()
        onboards = [place for place, move in enumerate(batch.plan) if move.kind is Kind.ONBOARD]
        done = cache.finish(batch.plan, failed=[onboards[1]])  # the second block could not be read
        assert {setback.holder: setback.start for setback in done.setbacks} == {sequence: 4, found: 4}
        new = sequence.pages().tolist()
        assert new[0] == old[0] and new[1] not in old
        cache.commit(sequence, 9)
        cache.release(sequence)
        check(cache)
        assert cache.probe([Request("again", seq(0, 9))])[0].start == 8
        shadows = cache.usage(1).shadows
    check(cache)
    assert cache.usage(1).shadows == shadows - 1  # the bad one is nobody's now


def test_an_empty_plan_that_was_not_made_yet_is_refused(store: StoreName) -> None:
    cache = small(store, 8)
    made = cache.add_sequence_batch([Request("a", seq(0, 4))]).plan
    assert not len(made) and cache.finish(made) == cache.finish(made)  # nothing to do, however often
    with pytest.raises(StateError, match=f"finish of plan {made.number + 1}: it is not open here"):
        cache.finish(Plan(made.number + 1, NO_MOVES))
