"""Pools that layer groups share: what they take from each other, what is counted together. Rows `pool`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import CacheConfig, InputError, Kind, LayerGroup, Refusal, Request, Span, TierConfig, check
from quire.core.store import StoreName

from ..conftest import admit, build, compute, decode, finish, release, run, start_of, tokens, try_admit

TWO = (LayerGroup("a", pool="kv"), LayerGroup("b", pool="kv"))


def pair(window: int, **more: Any) -> tuple[LayerGroup, LayerGroup]:
    """A full group and a window in one pool."""
    return LayerGroup("full", pool="kv"), LayerGroup("window", window=window, pool="kv", **more)


@pytest.mark.parametrize(("pool", "slots", "runs"), [(None, (64, 16), 16), ("kv", 80, 40)])
def test_short_requests_use_what_a_long_one_needs(store: StoreName, pool: str | None, slots: Any, runs: int) -> None:
    """pool-01: slots for one long prompt; many short ones have all of them, if groups share."""
    groups = (LayerGroup("full", pool=pool), LayerGroup("window", window=64, pool=pool))
    cache = build(store, slots, groups=groups, block_size=16, max_sequences=64, max_length=1024, max_chunk=128)
    short = [Request(number, tokens(range(16 * number, 16 * number + 15))) for number in range(64)]
    assert len(try_admit(cache, *short).sequences) == runs
    other = build(store, slots, groups=groups, block_size=16, max_sequences=64, max_length=1024, max_chunk=128)
    assert len(try_admit(other, Request("long", tokens(range(1023)))).sequences) == 1


def test_one_group_makes_way_for_another(store: StoreName) -> None:
    """pool-02: slots are one row of numbers; what one group leaves idle the other takes, passed pages first."""
    cache = build(store, 7, groups=pair(5), max_length=64)
    (first,) = admit(cache, Request("a", tokens(range(12))))
    assert (first.slots(0).tolist(), first.slots(1).tolist()) == ([0, 1, 2], [3, 4, 5])
    compute(cache, first)
    release(cache, first)
    assert start_of(cache, tokens(range(12), 99)) == 12
    run(cache, Request("b", tokens(range(100, 104))))  # takes the empty slot and the window page nobody resumes at
    assert start_of(cache, tokens(range(12), 99)) == 12
    run(cache, Request("c", tokens(range(200, 208))))
    assert start_of(cache, tokens(range(12), 99)) < 12
    assert cache.num_free(0) == cache.num_free(1) == 7


def test_what_never_fits_is_a_sum(store: StoreName) -> None:
    """pool-03: a prompt of three blocks takes six pages of two groups: of a pool of five it is refused permanently."""
    cache = build(store, 5, groups=TWO)
    (refused,) = cache.claim([Request("a", tokens(range(12)))]).refused
    assert (refused.need, refused.have, refused.never, refused.group) == (6, 5, True, 0)
    assert run(cache, Request("b", tokens(range(8)))).start == 0


def test_pages_of_both_groups_go_down_and_come_up(store: StoreName) -> None:
    """pool-04: device and host are shared alike; each move says whose page it is, and none swaps two groups' pages."""
    cache = build(store, 4, 4, groups=TWO, shadows=False)
    run(cache, Request("a", tokens(range(8))))
    run(cache, Request("b", tokens(range(100, 108))))
    assert cache.usage(1, 0).idle == cache.usage(1, 1).idle == 4
    with cache.claim([Request("c", tokens(range(8)))]) as claims:
        assert claims[0].onboards == (2, 2)
        batch = cache.admit(claims)
    check(cache)
    moves = [(move.kind, move.group) for move in batch.plan]
    for group in (0, 1):
        assert sum(kind != Kind.OFFLOAD and its == group for kind, its in moves) == 2, moves
    assert batch.sequences[0].start == 7
    finish(cache, batch.plan)


def test_a_batch_is_counted_together(store: StoreName) -> None:
    """pool-05: two requests of four pages in a pool of seven: the second lacks one."""
    cache = build(store, 7, groups=TWO)
    batch = try_admit(cache, *[Request(name, tokens(range(at, at + 8))) for name, at in (("a", 0), ("b", 100))])
    assert [sequence.id for sequence in batch.sequences] == ["a"]
    (refused,) = batch.refused
    assert (refused.need, refused.have, refused.never) == (4, 3, False)


def test_growth_is_counted_together(store: StoreName) -> None:
    """pool-06: at a block's edge both groups take a page: of one that is left neither does."""
    for slots, grows in ((3, False), (4, True)):
        cache = build(store, slots, groups=TWO)
        (sequence,) = admit(cache, Request("a", tokens(range(4))))
        compute(cache, sequence)
        plan = cache.grow(sequence, tokens(4))
        check(cache)
        assert (plan is not None, cache.num_free(0), sequence.length) == (grows, slots - 2 - 2 * grows, 4 + grows)


def test_a_snapshot_takes_no_slot_that_is_owed(store: StoreName) -> None:
    """pool-07: a state and full attention in one pool: while decoding the last slot is the next block's."""
    state = LayerGroup("state", snapshot_every=0, snapshot_at_end=False, snapshot_decoding=4, pool="kv")
    groups = (state, LayerGroup("full", pool="kv"))
    for slots, snapshots in ((4, 0), (5, 1)):
        cache = build(store, slots, groups=groups, max_length=64)
        (sequence,) = admit(cache, Request("a", tokens(range(7))))
        compute(cache, sequence)
        before = np.count_nonzero(sequence.pages(0) >= 0)
        finish(cache, cache.grow(sequence, tokens(range(7, 9))))  # past the edge at 8
        assert np.count_nonzero(sequence.pages(0) >= 0) - before == snapshots
        assert np.count_nonzero(sequence.pages(1) >= 0) == 3


def test_what_is_reserved_counts_for_the_pool(store: StoreName) -> None:
    """pool-08: a prompt in chunks keeps its window's peak from everybody in the pool, and gives it back at its end."""
    cache = build(store, 16, groups=pair(5), max_chunk=8, max_length=64)
    with cache.claim([Request("long", tokens(range(24)))]) as claims:
        batch = cache.admit(claims)
    (sequence,) = batch.sequences
    free = [cache.num_free(0)]
    while sequence.computed < 24:
        compute(cache, sequence, sequence.ran)
        if sequence.computed < 24:
            with cache.claim([]) as none:
                batch = cache.admit(none, continuing=[sequence])
            check(cache)
            finish(cache, batch.plan)
            free.append(cache.num_free(1))
    assert free[0] == free[1]  # a window's page that leaves is reserved again at once
    assert cache.num_free(0) > free[0]
    release(cache, sequence)
    assert cache.num_free(0) == 16


def test_each_group_says_what_it_lost(store: StoreName) -> None:
    """pool-09: what is gone is remembered for each group: the page of a window that went is told as the window's."""
    for eviction in ("lru", "adaptive"):
        cache = build(store, 6, groups=pair(9), eviction=eviction, receipts=True, max_length=64)
        run(cache, Request("a", tokens(range(8))))
        run(cache, Request("b", tokens(range(100, 108))))
        receipt = cache.explain(Request("a", tokens(range(8), 8)))
        causes = {(miss.cause, miss.group) for miss in receipt.misses if miss.cause == "evicted"}
        assert causes and causes <= {("evicted", 0), ("evicted", 1)}


def test_a_bad_slot_is_its_page_whoever_reports_it(store: StoreName) -> None:
    """pool-10: a bad slot is named by a group of the pool, and holds another's page: its sequence goes back."""
    cache = build(store, 8, groups=TWO)
    (sequence,) = admit(cache, Request("a", tokens(range(8))))
    compute(cache, sequence)
    slot = int(sequence.slots(1)[1])
    done = cache.lose(0, [slot])
    check(cache)
    assert [(setback.holder, setback.start) for setback in done.setbacks] == [(sequence, 4)]
    finish(cache, done.plan)
    assert start_of(cache, tokens(range(8), 9)) == 4


def test_writers_are_counted_together(store: StoreName) -> None:
    """pool-11: no device, a host pool of five: two blocks of two groups can be written, three never."""
    cache = build(store, 0, 5, groups=TWO)
    refused = cache.writer(Request("a", tokens(range(12))), tier=1)
    assert isinstance(refused, Refusal) and (refused.need, refused.have, refused.never) == (6, 5, True)
    writer = cache.writer(Request("b", tokens(range(8))), tier=1)
    assert not isinstance(writer, Refusal)
    slots = [*writer.slots(0).tolist(), *writer.slots(1).tolist()]
    assert len(set(slots)) == 4
    writer.written(8)
    check(cache)
    assert cache.usage(1, 0).idle == cache.usage(1, 1).idle == 4


def test_forks_are_counted_together(store: StoreName) -> None:
    """pool-12: a fork inside a block takes a page of each group: of three that are left one fork is had, not two."""
    cache = build(store, 7, groups=TWO)
    (sequence,) = admit(cache, Request("a", tokens(range(6))))
    compute(cache, sequence)
    assert cache.num_free(0) == 3
    assert cache.fork(sequence, ["b", "c"]) is None
    made = cache.fork(sequence, ["b"])
    assert made is not None
    finish(cache, made[1])
    assert cache.num_free(1) == 1
    decode(cache, sequence, 6)


def test_holds_of_an_unfinished_prompt_are_counted_together(store: StoreName) -> None:
    """pool-13: what a hold keeps of two windows must be there besides what is reserved for both."""
    groups = tuple(LayerGroup(name, window=9, pool="kv") for name in ("near", "far"))
    seen = set()
    for slots in range(8, 16):
        cache = build(store, slots, groups=groups, max_chunk=4, max_length=64)
        (sequence,) = admit(cache, Request("a", tokens(range(24))))
        compute(cache, sequence, sequence.ran)
        free, held = cache.num_free(0), sum(int(np.count_nonzero(sequence.pages(group) >= 0)) for group in (0, 1))
        made = cache.hold(sequence, Span(0, 4))
        check(cache)
        assert (made is None) == (held > free), (slots, held, free)
        seen.add(made is None)
    assert seen == {True, False}


def test_a_source_that_could_never_stand_beside_its_copies_is_left(store: StoreName) -> None:
    """pool-14: two requests with one source: the second copies a page of each group, for which four slots are few."""
    for slots, start in ((4, 4), (5, 6)):
        cache = build(store, slots, groups=TWO)
        run(cache, Request("a", tokens(range(8))))
        with cache.claim([Request(name, tokens(range(6), 99)) for name in ("b", "c")]) as claims:
            check(cache)
            assert [claim.start for claim in claims] == [6, start]


def test_a_source_is_left_where_the_groups_before_take_all_there_is(store: StoreName) -> None:
    """pool-15: beside a page of its own, room and a spare of the first group there is none for the second's copy."""
    groups = (LayerGroup("first", pool="kv", extra_tokens=1), LayerGroup("second", pool="kv"))
    for slots, start in ((4, 0), (5, 3)):
        cache = build(store, slots, groups=groups)
        run(cache, Request("a", tokens(0, 0, 0, 0, 0)))
        with cache.claim([Request("b", tokens(0, 0, 0, 0), beams=2)]) as claims:
            assert [claim.start for claim in claims] == [start]
            batch = cache.admit(claims)
        assert [sequence.id for sequence in batch.sequences] == ["b"]
        check(cache)


def test_what_cannot_be_shared_is_refused() -> None:
    """pool-16: pages of two sizes, an encoder's pages, a number per group where there are fewer pools."""
    sizes = (LayerGroup("a", 64, pool="kv"), LayerGroup("b", 128, pool="kv"))
    with pytest.raises(InputError, match=r"'a' and 'b' in pool 'kv'.*64 and 128 bytes"):
        CacheConfig([TierConfig("device", 8)], groups=sizes)
    with pytest.raises(InputError, match="the encoder's pages"):
        LayerGroup("cross", cross=True, pool="kv")
    with pytest.raises(InputError, match="2 numbers for 1 pools of 2 groups"):
        CacheConfig([TierConfig("device", (8, 8))], groups=TWO)
    with pytest.raises(InputError, match="its pool is 5"):
        LayerGroup("a", pool=5)  # type: ignore[arg-type]
    config = CacheConfig([TierConfig("device", (8, 4))], groups=(*TWO, LayerGroup("alone")))
    assert config.pool_of == (0, 0, 1) and [config.slots_of(0, group) for group in range(3)] == [8, 8, 4]
