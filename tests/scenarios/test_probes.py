"""What a scheduler is told before it decides. Rows `probe`; blocks of 16 tokens."""

from __future__ import annotations

import pytest

from quire import Cache, Kind, LayerGroup, Plan, Probe, Request, Scope
from quire.core.store import StoreName

from .conftest import admit, build, compute, finish, got, release, run, tokens, try_admit


def look(cache: Cache, request: Request) -> Probe:
    (probe,) = cache.probe([request])
    return probe


@pytest.mark.parametrize(
    ("cached", "length", "new", "reuse", "expected"),
    [
        pytest.param(64, 64, 32, True, (3, 63, 4, 6), id="probe-01"),
        pytest.param(0, 64, 32, True, (0, 0, 4, 6), id="probe-02"),
        pytest.param(32, 64, 0, True, (2, 32, 4, 4), id="probe-03"),
        pytest.param(80, 80, 48, True, (4, 79, 5, 8), id="probe-04"),
        pytest.param(48, 48, 0, True, (2, 47, 3, 3), id="probe-05"),
        pytest.param(64, 64, 32, False, (0, 0, 4, 6), id="probe-06"),
    ],
)
def test_hits_on_idle_pages_save_tokens_but_no_slots(
    store: StoreName, cached: int, length: int, new: int, reuse: bool, expected: tuple[int, ...]
) -> None:
    """probe-01 probe-02 probe-03 probe-04 probe-05 probe-06: blocks hit, start, slots now, slots to completion."""
    cache = build(store, 64, block_size=16, reuse=reuse)
    if cached:
        run(cache, Request("seed", tokens(range(cached))))
    request = Request("a", tokens(range(length)), max_new_tokens=new)
    probe = look(cache, request)
    assert (probe.hit_blocks, probe.start, *probe.slots_now, *probe.slots_to_completion) == expected
    assert probe.held_blocks == 0
    (sequence,) = admit(cache, request)
    assert (sequence.start, 64 - cache.num_free()) == (probe.start, *probe.slots_now)
    assert cache.slots_to_completion(sequence) == (expected[3] - expected[2],)
    release(cache, sequence)


def test_a_shared_half_counts_as_far_as_it_goes(store: StoreName) -> None:
    """probe-07: 32 shared tokens and 32 of its own, 16 to come: 2 blocks hit, 4 slots now, 5 to completion."""
    cache = build(store, 64, block_size=16)
    run(cache, Request("seed", tokens(range(32), range(100, 132))))
    probe = look(cache, Request("a", tokens(range(32), range(200, 232)), max_new_tokens=16))
    assert (probe.hit_blocks, probe.start, probe.slots_now, probe.slots_to_completion) == (2, 32, (4,), (5,))


def test_pages_in_use_cost_nothing(store: StoreName) -> None:
    """probe-08: the same prompt while the first runs: three blocks shared, one slot for a copy of the fourth."""
    cache = build(store, 64, block_size=16)
    (live,) = admit(cache, Request("live", tokens(range(64))))
    compute(cache, live)
    probe = look(cache, Request("a", tokens(range(64))))
    assert (probe.hit_blocks, probe.held_blocks, probe.start, probe.slots_now) == (3, 3, 63, (1,))
    before = cache.num_free()
    (sequence,) = admit(cache, Request("a", tokens(range(64))))
    assert before - cache.num_free() == 1
    release(cache, live, sequence)


def test_pages_on_the_host_need_a_slot_and_bytes(store: StoreName) -> None:
    """probe-09: two of three hit blocks were pushed to the host: two onboards of 1000 bytes, four slots in all."""
    cache = build(store, 4, 4, block_size=16, groups=(LayerGroup(page_bytes=1000),))
    run(cache, Request("a", tokens(range(49))), computed=48)
    run(cache, Request("b", tokens(range(100, 148))))
    probe = look(cache, Request("c", tokens(range(49))))
    assert (probe.hit_blocks, probe.start, probe.onboards, probe.onboard_bytes) == (3, 48, (2,), 2000)
    assert probe.slots_now == (4,)
    (sequence,) = admit(cache, Request("c", tokens(range(49))))
    assert (sequence.start, sequence.counts().onboarded_bytes, cache.num_free()) == (48, 2000, 0)
    release(cache, sequence)


def read_from_below(plan: Plan, groups: int) -> tuple[int, ...]:
    """Pages per group that a plan reads from the host, whatever for."""
    up = [move.group for move in plan if move.kind != Kind.OFFLOAD and max(move.src[0], move.dst[0])]
    return tuple(map(up.count, range(groups)))


@pytest.mark.parametrize("taken_over", [True, False])
def test_a_partial_hit_on_the_host_is_announced(store: StoreName, taken_over: bool) -> None:
    """probe-12: the block that 50 tokens hit in part lies on the host: an onboard, if it is taken over or copied."""
    cache = build(store, 4, 4, block_size=16, groups=(LayerGroup(page_bytes=1000),))
    run(cache, Request("a", tokens(range(64 if not taken_over else 32))))
    run(cache, Request("b", tokens(range(100, 164))))
    request = Request("c", tokens(range(20), 99))
    probe = look(cache, request)
    assert (probe.start, probe.onboards, probe.onboard_bytes) == (20, (2,), 2000)
    with cache.claim([request]) as claims:
        assert claims[0].onboards == (2,)
        batch = cache.admit(claims)
    assert read_from_below(batch.plan, 1) == (2,)
    finish(cache, batch.plan)
    assert batch.sequences[0].counts().onboarded_bytes == 2000
    release(cache, *batch.sequences)


def test_a_snapshot_on_the_host_is_announced(store: StoreName) -> None:
    """probe-13: the snapshot to go on from lies on the host: one onboard of the state group, which takes no slot."""
    groups = (LayerGroup(page_bytes=1000), LayerGroup("state", page_bytes=5000, snapshot_every=4))
    cache = build(store, (64, 2), (64, 4), groups=groups)
    for name, first in (("a", 0), ("b", 50)):
        (sequence,) = admit(cache, Request(name, tokens(range(first, first + 5))))
        while sequence.computed < 5:
            compute(cache, sequence)
            if sequence.computed < 5:
                try_admit(cache, continuing=[sequence])
        release(cache, sequence, store=False)
    assert cache.usage(1, 1).idle == 1
    request = Request("c", tokens(range(9)))
    probe = look(cache, request)
    assert (probe.start, probe.onboards, probe.onboard_bytes) == (4, (0, 1), 5000)
    batch = cache.add_sequence_batch([request])
    assert read_from_below(batch.plan, 2) == probe.onboards
    finish(cache, batch.plan)
    release(cache, *batch.sequences)


def test_two_that_wait_for_the_same_block_have_the_same_next_key(store: StoreName) -> None:
    """probe-10: the first missing block is named by its whole prefix and scope: equal names, equal content."""
    cache = build(store, 8)
    same, longer = Request(1, tokens(range(9))), Request(2, tokens(range(9), 50, 51))
    assert look(cache, same).next_key == look(cache, longer).next_key is not None
    assert look(cache, Request(3, tokens(range(9)), Scope(salt="s"))).next_key != look(cache, same).next_key
    run(cache, Request(4, tokens(range(4))))
    run(cache, Request(5, tokens(range(10, 14))))
    one, other = Request(6, tokens(range(4), range(80, 85))), Request(7, tokens(range(10, 14), range(80, 85)))
    assert look(cache, one).next_key != look(cache, other).next_key
    run(cache, Request(8, tokens(range(4), range(80, 84))))
    assert look(cache, one).next_key is None  # every whole block is there


def test_a_probe_holds_nothing(store: StoreName) -> None:
    """probe-11: what was probed may be gone at the claim; the claim's number is the one that counts."""
    cache = build(store, 2)
    run(cache, Request("seed", tokens(range(5))), computed=4)
    request = Request("a", tokens(range(5)))
    assert (look(cache, request).start, cache.num_free()) == (4, 2)
    run(cache, Request("b", tokens(range(20, 28))))
    assert got(admit(cache, request)[0]).start == 0


@pytest.mark.parametrize(("new", "more"), [(16, 1), (32, 2), (1000, 2)])
def test_nothing_is_kept_for_tokens_that_no_sequence_can_have(store: StoreName, new: int, more: int) -> None:
    """probe-14: 32 tokens of at most 64 and so many more to come: slots up to there, before and after admission."""
    cache = build(store, 64, block_size=16, max_length=64)
    request = Request("a", tokens(range(32)), max_new_tokens=new)
    assert look(cache, request).slots_to_completion == (2 + more,)
    (sequence,) = admit(cache, request)
    assert cache.slots_to_completion(sequence) == (more,)
    compute(cache, sequence)
    assert cache.slots_to_completion(sequence) == (more,)
    release(cache, sequence)
