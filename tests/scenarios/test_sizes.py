"""Growth, beams and what a request needs: rows `size` and `count`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from quire import Cache, Counts, LayerGroup, Request, Sequence, check
from quire.core.store import StoreName

from .conftest import admit, build, compute, decode, finish, fork, release, run, start_of, tokens, try_admit


def test_beams_share_whole_blocks_and_have_their_own_last_one(store: StoreName) -> None:
    """size-01: 575 tokens in blocks of 64, four beams: 8 shared pages and 4 own ones, then one each per block edge."""
    cache = build(store, 128, block_size=64, max_length=640, max_sequences=32, reuse=False)
    free = []
    groups = []
    for name in range(8):
        (first,) = admit(cache, Request((name, 0), tokens(range(575)), beams=4))
        free.append(cache.num_free())
        compute(cache, first)
        forks, plan = fork(cache, first, *((name, beam) for beam in (1, 2, 3)))
        assert [(move.tokens, move.src) for move in plan] == [(63, (0, first.slots()[8]))] * 3
        finish(cache, plan)
        beams = [first, *forks]
        slots = np.array([beam.slots() for beam in beams])
        assert (slots[:, :8] == slots[0, :8]).all() and len(set(slots[:, 8])) == 4
        for _ in range(2):
            finish(cache, cache.grow(beams, np.full(4, 7, np.int32)))
            free.append(cache.num_free())
        groups.append(beams)
    assert free[:3] == [116, 116, 112] and free[-1] == 0
    for beams in groups:
        release(cache, *beams)
    assert cache.num_free() == 128


def test_rejected_tokens_give_their_page_back(store: StoreName) -> None:
    """size-02: 575 tokens, two more, three more, four taken back: 71, 70, 70, 71 of 80 slots free."""
    cache = build(store, 80, block_size=64, max_length=640)
    (sequence,) = admit(cache, Request("a", tokens(range(575))))
    free = [cache.num_free()]
    compute(cache, sequence)
    for count in (2, 3):
        finish(cache, cache.grow(sequence, np.full(count, 9, np.int32)))
        free.append(cache.num_free())
    assert cache.trim(sequence, 4) == 1
    check(cache)
    free.append(cache.num_free())
    assert (free, sequence.length) == ([71, 70, 70, 71], 576)
    release(cache, sequence)
    assert cache.num_free() == 80


@pytest.mark.parametrize(("size", "slots"), [(1, 1152), (64, 18)])
def test_slots_to_completion(store: StoreName, size: int, slots: int) -> None:
    """size-03: 1024 tokens and 128 to come need 1152 slots of one token, 18 of 64."""
    cache = build(store, 2048, block_size=size)
    request = Request("a", tokens(range(1024)), max_new_tokens=128)
    (probe,) = cache.probe([request])
    assert probe.slots_to_completion == (slots,)
    (sequence,) = admit(cache, request)
    held = sequence.capacity() // size
    assert cache.slots_to_completion(sequence) == (slots - held,)
    release(cache, sequence)


@pytest.mark.parametrize(("length", "slots"), [(136, 9), (512, 32), (1024, 64)])
def test_slots_of_a_prompt(store: StoreName, length: int, slots: int) -> None:
    """size-04: prompts of 136, 512 and 1024 tokens in blocks of 16 need 9, 32 and 64 slots, all at admission."""
    cache = build(store, 64, block_size=16)
    request = Request("a", tokens(range(length)))
    assert cache.probe([request])[0].slots_now == (slots,)
    (sequence,) = admit(cache, request)
    assert cache.num_free() == 64 - slots
    release(cache, sequence)


@pytest.mark.parametrize(
    ("prompt", "sampled", "tokens_now", "pages"),
    [(512, 0, 1, 1), (512, 8, 1, 0), (512, 16, 1, 1), (128, 15, 1, 0), (128, 15, 2, 1), (302, 0, 4, 1), (298, 0, 4, 0)],
)
def test_pages_of_one_decode_step(store: StoreName, prompt: int, sampled: int, tokens_now: int, pages: int) -> None:
    """size-05: a step takes a page exactly when its tokens (drafts included) cross a block edge."""
    cache = build(store, 64, block_size=16)
    (sequence,) = admit(cache, Request("a", tokens(range(prompt))))
    if sampled:
        finish(cache, cache.grow(sequence, np.full(sampled, 1, np.int32)))
    compute(cache, sequence)
    before = cache.num_free()
    finish(cache, cache.grow(sequence, np.full(tokens_now, 2, np.int32)))
    assert before - cache.num_free() == pages
    release(cache, sequence)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize(
    ("length", "new", "count"), [(575, 65, 12), (64, 1, 30), (63, 2, 30), (1, 200, 20), (640, 128, 9)]
)
def test_requests_admitted_by_their_whole_need_all_finish(
    store: StoreName, reuse: bool, length: int, new: int, count: int
) -> None:
    """size-06: while the needs to completion of all live requests fit, no growth fails; all slots come back."""
    cache = build(store, 40, block_size=64, reuse=reuse, max_sequences=40)
    assert (finished(cache, length, new, count), cache.num_free()) == (count, 40)


@pytest.mark.parametrize(("length", "new", "count"), [(575, 65, 7), (63, 2, 30), (1, 200, 20)])
def test_requests_behind_a_window_admitted_by_their_need_all_finish(
    store: StoreName, length: int, new: int, count: int
) -> None:
    """size-15: the same behind a window of 128: a block at a time, the window gives back what it takes."""
    cache = build(store, 40, groups=(LayerGroup("near", window=128),), block_size=64, max_sequences=40)
    assert (finished(cache, length, new, count), cache.num_free()) == (count, 40)


def finished(cache: Cache, length: int, new: int, count: int) -> int:
    """How many requests come to their end, each admitted when its whole need fits beside that of the others."""
    waiting = [Request(n, tokens(range(5), range(1000 * n, 1000 * n + length - 5)) if length > 5 else tokens(n),
                       max_new_tokens=new) for n in range(count)]  # fmt: skip
    live: list[Sequence] = []
    done = 0
    while waiting or live:
        committed = sum(cache.slots_to_completion(sequence)[0] for sequence in live)
        if waiting and cache.probe([waiting[0]])[0].slots_to_completion[0] <= cache.num_free() - committed:
            live += admit(cache, waiting.pop(0))
            compute(cache, live[-1])
            continue
        assert live, "an empty cache must have room"
        steps = min(64, *(sequence.prompt_end + new - sequence.length for sequence in live))
        plan = cache.grow(live, np.full((len(live), steps), 3, np.int32))
        assert plan is not None
        finish(cache, plan)
        cache.commit(live)
        for sequence in [s for s in live if s.length == s.prompt_end + new]:
            release(cache, sequence)
            live.remove(sequence)
            done += 1
    return done


def test_a_beam_request_that_can_never_fit_is_told_so(store: StoreName) -> None:
    """size-07: 6 prompt tokens, 6 to come, four beams: one shared page and two each is 9, on 8 slots."""
    cache = build(store, 8)
    (refusal,) = try_admit(cache, Request("a", tokens(range(6)), beams=4, max_new_tokens=6)).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.never) == ("slots", 9, 8, True)
    assert "shorten it or enlarge the cache" in str(refusal)
    assert len(admit(cache, Request("b", tokens(range(6)), beams=3, max_new_tokens=6))) == 1


def test_beams_reuse_the_last_block_too(store: StoreName) -> None:
    """size-08: two beams of a cached prompt of 6 tokens start at 5; the second copies the block it does not share."""
    cache = build(store, 8)
    run(cache, Request("seed", tokens(range(6))))
    (first,) = admit(cache, Request("a", tokens(range(6)), beams=2))
    assert (first.start, first.slots().tolist(), cache.num_free()) == (5, [0, 1], 5)
    compute(cache, first)
    (second,), plan = fork(cache, first, "b")
    assert [(move.src, move.tokens) for move in plan] == [((0, 1), 2)]
    assert (second.slots()[0], cache.num_free()) == (0, 5)
    finish(cache, plan)
    release(cache, first, second)


def test_room_for_drafts_behind_the_prompt(store: StoreName) -> None:
    """size-09: 7 tokens and 4 extra ones: three pages at admission, no growth until the extra ones are used."""
    cache = build(store, 8)
    (sequence,) = admit(cache, Request("a", tokens(range(7)), extra_tokens=4))
    assert (sequence.capacity(), cache.num_free()) == (12, 5)
    decode(cache, sequence, *range(50, 55))
    assert cache.num_free() == 5
    decode(cache, sequence, 55)
    assert cache.num_free() == 4
    release(cache, sequence)


@pytest.mark.parametrize(("chunk", "now", "more"), [(None, 16, 0), (256, 7, 0), (64, 4, 0)])
def test_slots_to_completion_of_a_window(store: StoreName, chunk: int | None, now: int, more: int) -> None:
    """size-10: 1024 tokens and 128 to come, a window of 128, blocks of 64: what left makes room for what comes."""
    cache = build(store, 32, groups=(LayerGroup("near", window=128),), block_size=64, max_chunk=chunk)
    (probe,) = cache.probe([Request("a", tokens(range(1024)), max_new_tokens=128)])
    assert (probe.slots_now, probe.slots_to_completion) == ((now,), (now + more,))


@pytest.mark.parametrize(("length", "whole", "chunked"), [(136, 9, 9), (512, 32, 32), (1024, 64, 49)])
def test_slots_of_a_prompt_behind_a_window(store: StoreName, length: int, whole: int, chunked: int) -> None:
    """size-11: a window of 512, blocks of 16: a whole prompt takes all its blocks, one in chunks of 256 at most 49."""
    for chunk, slots in ((None, whole), (256, chunked)):
        cache = build(store, 80, groups=(LayerGroup("near", window=512),), block_size=16, max_chunk=chunk)
        request = Request("a", tokens(range(length)))
        assert cache.probe([request])[0].slots_now == (slots,)
        (sequence,) = admit(cache, request)
        assert cache.num_free() == 80 - slots
        release(cache, sequence)


@pytest.mark.parametrize(
    ("prompt", "sampled", "tokens_now", "taken", "left"),
    [(512, 0, 1, 1, 0), (512, 8, 1, 0, 0), (512, 16, 1, 1, 1), (128, 15, 2, 1, 0), (302, 0, 4, 1, 0)],
)
def test_pages_of_one_decode_step_behind_a_window(
    store: StoreName, prompt: int, sampled: int, tokens_now: int, taken: int, left: int
) -> None:
    """size-12: a step behind a window of 512 takes the same pages; a commit lets one go per block beyond it."""
    cache = build(store, 64, groups=(LayerGroup("near", window=512),), block_size=16)
    (sequence,) = admit(cache, Request("a", tokens(range(prompt))))
    if sampled:
        finish(cache, cache.grow(sequence, np.full(sampled, 1, np.int32)))
    held = 64 - cache.num_free()
    compute(cache, sequence)
    assert held - (64 - cache.num_free()) == left
    before = cache.num_free()
    finish(cache, cache.grow(sequence, np.full(tokens_now, 2, np.int32)))
    assert before - cache.num_free() == taken
    release(cache, sequence)


@pytest.mark.parametrize(("sinks", "most"), [(0, [8, 9, 5, 5]), (4, [8, 9, 6, 6]), (5, [8, 9, 7, 7])])
def test_pages_of_a_sequence_behind_windows_and_sinks(store: StoreName, sinks: int, most: list[int]) -> None:
    """size-13: 32 and 33 tokens and no window in the way; 64 tokens behind 16 and 17: what is ever held at once."""
    seen = []
    for length, window in ((32, 64), (33, 64), (64, 16), (64, 17)):
        cache = build(store, 32, groups=(LayerGroup("near", window=window, sinks=sinks),), max_length=128)
        (sequence,) = admit(cache, Request("a", tokens(0)))
        held = []
        for token in range(1, length):
            decode(cache, sequence, token)
            held.append(cache.usage().held)
        seen.append(max(held))
        release(cache, sequence)
    assert seen == most


def test_a_beam_request_behind_a_window_that_can_never_fit(store: StoreName) -> None:
    """size-14: 257 tokens, 255 to come, four beams, a window of 412, blocks of 64: 20 slots at most, on 19 refused."""
    request = Request("a", tokens(range(257)), beams=4, max_new_tokens=255)
    for slots, fits in ((19, False), (20, True)):
        cache = build(store, slots, groups=(LayerGroup("near", window=412),), block_size=64, max_length=512)
        batch = try_admit(cache, request)
        assert [(r.need, r.have, r.never) for r in batch.refused] == ([] if fits else [(20, 19, True)])


def test_beams_beside_one_that_has_its_room_from_the_prompt_on(store: StoreName) -> None:
    """size-16: the first beam keeps the room for drafts that the prompt got; the second takes pages of its own."""
    request = Request("a", tokens(range(2)), length=6, beams=2, extra_tokens=5)
    for slots, fits in ((7, False), (8, True)):
        groups = (LayerGroup("near", window=1, sinks=1),)
        cache = build(store, slots, groups=groups, block_size=2, max_length=16)
        batch = try_admit(cache, request)
        assert [(r.need, r.have, r.never) for r in batch.refused] == ([] if fits else [(8, 7, True)])
    (first,) = batch.sequences
    finish(cache, batch.plan)
    compute(cache, first)
    (second,), plan = fork(cache, first, "b")
    finish(cache, plan)
    for token in range(2, 6):
        finish(cache, cache.grow([first, second], tokens(token, token)))
        for beam in (first, second):
            compute(cache, beam)


def test_counts_of_a_prompt_and_its_repetition(store: StoreName) -> None:
    """count-01: nine tokens twice: 3 new and 3 missed; then 2 reused, 1 new, 1 missed, a hit rate of 2/3."""
    cache = build(store, 8)
    first, second = admit_twice(cache)
    assert (first.reused, first.allocated, first.allocated_new, first.missed, first.hit_rate) == (0, 3, 3, 3, 0.0)
    assert (second.reused, second.allocated, second.allocated_new, second.missed) == (2, 1, 1, 1)
    assert second.hit_rate == pytest.approx(2 / 3)
    assert (second.reused_full, second.reused_partial, second.reused_from) == (2, 0, (2,))


def admit_twice(cache: Cache) -> Iterator[Counts]:
    for name in range(2):
        (sequence,) = admit(cache, Request(name, tokens(range(9))))
        yield sequence.counts()
        compute(cache, sequence)
        release(cache, sequence)


def test_onboards_count_as_allocations(store: StoreName) -> None:
    """count-02: two pages from the host and one new one: 3 allocated, 2 onboarded, reused from tier 1."""
    cache = build(store, 3, 4)
    run(cache, Request("a", tokens(range(9))), computed=8)
    run(cache, Request("b", tokens(range(20, 32))))
    (sequence,) = admit(cache, Request("c", tokens(range(9))))
    counts = sequence.counts()
    assert (counts.allocated, counts.onboarded, counts.reused, counts.missed) == (3, 2, 2, 1)
    assert counts.reused_from == (0, 2)
    release(cache, sequence)


def test_each_request_of_a_batch_has_its_own_counts(store: StoreName) -> None:
    """count-03: a full hit, a partial hit and a stranger in one batch; the counts are theirs and add up."""
    cache = build(store, 16)
    run(cache, Request("seed", tokens(range(9))), computed=8)
    cache.take_stats()
    full, partial, stranger = admit(
        cache, Request(1, tokens(range(9))), Request(2, tokens(range(7), 50)), Request(3, tokens(range(100, 109)))
    )
    numbers = [
        (c.reused_full, c.reused_partial, c.missed, c.allocated, c.copied)
        for c in (s.counts() for s in (full, partial, stranger))
    ]
    assert numbers == [(2, 0, 1, 1, 0), (1, 1, 0, 1, 1), (0, 0, 3, 3, 0)]
    step = cache.take_stats()
    assert (step.reused_full, step.reused_partial, step.missed, step.allocated, step.copied) == (3, 1, 4, 5, 1)
    assert step.copied_tokens == 3
    assert cache.take_stats().allocated == 0


def test_gauges_add_up(store: StoreName) -> None:
    """count-04: empty, idle, shadows and held are all there is, in every tier."""
    cache = build(store, 6, 4)
    run(cache, Request("a", tokens(range(12))))
    finish(cache, cache.offload(2))
    (live,) = admit(cache, Request("b", tokens(range(50, 56))))
    device, host = cache.usage(0), cache.usage(1)
    assert (device.empty, device.idle, device.shadows, device.held) == (1, 3, 0, 2)
    assert (host.empty, host.idle, host.shadows, host.held) == (2, 0, 2, 0)
    assert start_of(cache, tokens(range(12))) == 11
    release(cache, live)
