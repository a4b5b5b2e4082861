"""Long prompts through small windows: pages come chunk by chunk, room for later ones is reserved. Rows `reserve`."""

from __future__ import annotations

from typing import Any

import pytest

from quire import Batch, Cache, LayerGroup, Request, Sequence, Span, StateError, check
from quire.core.store import StoreName

from ..conftest import admit, build, compute, finish, fork, release, run, start_of, tokens, try_admit
from .test_windows import prefill

FULL, NEAR = LayerGroup("full"), LayerGroup("near", window=8)
LONG = tokens(range(40))


def chunked(
    store: StoreName, slots: int = 7, groups: tuple[LayerGroup, ...] = (FULL, NEAR), chunk: int | None = 8
) -> Cache:
    """Blocks of 4, chunks of two blocks; a window of 8 reads two blocks back, so five pages at once are enough."""
    return build(store, (32, slots), groups=groups, max_chunk=chunk)


def begin(cache: Cache, request: Request, **limits: Any) -> Sequence:
    """Its first chunk, computed."""
    (sequence,) = admit(cache, request, **limits)
    compute(cache, sequence)
    return sequence


def go_on(cache: Cache, *sequences: Sequence, **limits: Any) -> list[Span | None]:
    """One more chunk for each, not yet computed; the spans."""
    with cache.claim([]) as none:
        batch = cache.admit(none, continuing=sequences, **limits)
    check(cache)
    finish(cache, batch.plan)
    return [batch.spans.get(sequence) for sequence in sequences]


def refused(batch: Batch) -> tuple[str, int, int, int | None, bool]:
    (refusal,) = batch.refused
    return refusal.reason, refusal.need, refusal.have, refusal.group, refusal.never


def test_a_long_prompt_goes_through_a_small_window(store: StoreName) -> None:
    """reserve-01: 40 tokens through 7 slots, 8 at a time: the free count stands still until the last chunk is done."""
    cache = chunked(store)
    sequence = begin(cache, Request("a", LONG))
    shown = [(sequence.slots(1).tolist(), cache.num_free(1), cache.usage(0, 1).empty)]
    while sequence.computed < 40:
        assert go_on(cache, sequence) == [Span(sequence.computed, sequence.computed + 8)]
        compute(cache, sequence)
        shown.append((sequence.slots(1)[-2:].tolist(), cache.num_free(1), cache.usage(0, 1).empty))
    assert shown == [([0, 1], 2, 5), ([2, 3], 2, 3), ([4, 5], 2, 1), ([6, 1], 2, 0), ([0, 3], 5, 0)]
    assert (sequence.held(1), cache.num_free(0)) == ((Span(32, 40),), 22)
    release(cache, sequence)
    assert (cache.num_free(1), start_of(cache, tokens(LONG, 99))) == (7, 40)


def test_nobody_gets_reserved_slots(store: StoreName) -> None:
    """reserve-02: 5 slots are empty, 3 of them reserved: three blocks are refused, two are admitted, and all finish."""
    cache = chunked(store)
    first = begin(cache, Request("a", LONG))
    assert refused(try_admit(cache, Request("b", tokens(range(100, 109))))) == ("slots", 3, 2, 1, False)
    (second,) = admit(cache, Request("b", tokens(range(100, 108))))
    assert (cache.num_free(1), cache.usage(0, 1).empty) == (0, 3)
    compute(cache, second)
    while first.computed < 40:
        assert cache.grow(second, tokens(7)) is None
        check(cache)
        assert go_on(cache, first) == [Span(first.computed, first.computed + 8)]
        compute(cache, first)
    finish(cache, cache.grow(second, tokens(7)))
    release(cache, first, second)
    assert cache.num_free(1) == 7


def test_claims_do_not_eat_the_reserve(store: StoreName) -> None:
    """reserve-03: an open claim on the last idle pages: the prompt goes on, and the claim is refused at admission."""
    cache = chunked(store)
    run(cache, Request("seed", tokens(range(100, 108))))
    sequence = begin(cache, Request("a", LONG))
    claims = cache.claim([Request("b", tokens(range(100, 109)))])
    assert (claims[0].start, cache.num_free(1)) == (8, 0)
    for end in (16, 24):
        assert go_on(cache, sequence) == [Span(end - 8, end)]
        compute(cache, sequence)
    assert refused(cache.admit(claims)) == ("slots", 3, 2, 1, False)
    check(cache)
    assert (go_on(cache, sequence), cache.num_free(1)) == ([Span(24, 32)], 2)
    release(cache, sequence)


def test_claims_in_the_way_delay_a_chunk(store: StoreName) -> None:
    """reserve-04: claims on four idle pages, made after it, leave -2 free: the chunk waits for their drop."""
    cache = chunked(store)
    for first in (100, 200):
        run(cache, Request("seed", tokens(range(first, first + 8))))
    sequence = begin(cache, Request("a", LONG))
    with cache.claim([Request(n, tokens(range(n, n + 9))) for n in (100, 200)]) as claims:
        assert ([claim.start for claim in claims], cache.num_free(1)) == ([8, 8], -2)
        assert (go_on(cache, sequence), sequence.slots(1).tolist()) == ([None], [4, 5])
    check(cache)
    assert (go_on(cache, sequence), cache.num_free(1)) == ([Span(8, 16)], 2)
    release(cache, sequence)


def test_without_chunks_the_window_must_take_the_whole_prompt(store: StoreName) -> None:
    """reserve-05: ten blocks in one step do not fit 7 slots, ever; nothing is claimed."""
    cache = chunked(store, chunk=None)
    batch = try_admit(cache, Request("a", LONG))
    assert refused(batch) == ("slots", 10, 7, 1, True)
    assert str(batch.refused[0]).startswith("request 'a' needs 10 slots of group 1, 7 are there; shorten it")
    assert (cache.num_free(0), cache.num_free(1)) == (32, 7)


@pytest.mark.parametrize("length", [40, 100])
def test_the_least_window_pool_for_any_prompt(store: StoreName, length: int) -> None:
    """reserve-06: what is read (2 blocks) and a chunk that begins inside a block (3): 5 slots, whatever the length."""
    prompt = Request("a", tokens(range(length)))
    assert refused(try_admit(chunked(store, 4), prompt)) == ("slots", 5, 4, 1, True)
    assert len(admit(chunked(store, 5), prompt)) == 1


def test_smaller_chunks_keep_the_same_reserve(store: StoreName) -> None:
    """reserve-07: a step may hand out less than max_chunk; what is kept for the prompt stays five pages."""
    cache = chunked(store)
    sequence = begin(cache, Request("a", LONG), max_chunk=4)
    assert (sequence.slots(1).tolist(), cache.num_free(1)) == ([0], 2)
    for end in (9, 14, 19):
        assert go_on(cache, sequence, max_chunk=5) == [Span(end - 5, end)]
        assert cache.num_free(1) == 2
        compute(cache, sequence)
    assert (go_on(cache, sequence), cache.num_free(1)) == ([Span(19, 27)], 2)
    release(cache, sequence)


def test_a_hit_that_nobody_shares_is_part_of_the_reserve(store: StoreName) -> None:
    """reserve-08: 16 tokens found: their last two blocks make room when they leave: 5 of 7 slots are taken."""
    cache = chunked(store)
    seed, _ = prefill(cache, Request("seed", LONG[:16]))
    release(cache, seed)
    (sequence,) = admit(cache, Request("a", LONG))
    assert (sequence.start, cache.num_free(1)) == (16, 2)
    compute(cache, sequence)
    assert (sequence.computed, cache.num_free(1)) == (24, 2)
    for end in (32, 40):
        assert go_on(cache, sequence) == [Span(end - 8, end)]
        compute(cache, sequence)
    assert cache.num_free(1) == 5
    release(cache, sequence)


def test_holds_of_an_unfinished_prompt_need_room_of_their_own(store: StoreName) -> None:
    """reserve-09: two pages held take the two free slots; a second hold finds none and is not given."""
    cache = chunked(store)
    sequence = begin(cache, Request("a", LONG))
    held = cache.hold(sequence, Span(0, 8))
    assert held is not None and held.blocks[1].tolist() == [0, 1] and cache.num_free(1) == 0
    assert cache.hold(sequence, Span(4, 8)) is None
    check(cache)
    while sequence.computed < 40:
        assert go_on(cache, sequence) == [Span(sequence.computed, sequence.computed + 8)]
        compute(cache, sequence)
    release(cache, sequence)
    assert cache.num_free(1) == 5
    cache.drop(held)
    check(cache)
    assert (cache.num_free(1), start_of(cache, tokens(range(8), 99))) == (7, 8)


def test_a_cancelled_prompt_gives_its_reserve_back(store: StoreName) -> None:
    """reserve-10: released after one chunk of five: 7 slots are free at once."""
    cache = chunked(store)
    sequence = begin(cache, Request("a", LONG))
    assert cache.num_free(1) == 2
    release(cache, sequence, store=False)
    assert cache.num_free(1) == 7


def test_two_prompts_share_a_window_pool(store: StoreName) -> None:
    """reserve-11: two long prompts in turn through 10 slots: no chunk ever waits; a third prompt does."""
    cache = chunked(store, 10)
    both = [begin(cache, Request(n, tokens(range(n, n + 40)))) for n in (100, 200)]
    assert cache.num_free(1) == 0
    assert refused(try_admit(cache, Request("c", tokens(range(4))))) == ("slots", 1, 0, 1, False)
    for end in (16, 24, 32, 40):
        assert go_on(cache, *both) == [Span(end - 8, end)] * 2
        for sequence in both:
            compute(cache, sequence)
    assert cache.num_free(1) == 6
    release(cache, *both)


def test_sinks_and_beams_are_part_of_the_reserve(store: StoreName) -> None:
    """reserve-12: a sink block and two spare pages for three beams: 6 reserved and 2 set aside, of 13 slots."""
    cache = chunked(store, 13, (FULL, LayerGroup("near", window=8, sinks=4)))
    (sequence,) = admit(cache, Request("a", LONG[:38], beams=3))
    assert (cache.num_free(0), cache.num_free(1)) == (20, 5)
    compute(cache, sequence)
    while sequence.computed < 38:
        go_on(cache, sequence)
        compute(cache, sequence)
    assert (sequence.held(1), cache.num_free(1)) == ((Span(0, 4), Span(28, 38)), 7)
    forks, plan = fork(cache, sequence, "b", "c")
    assert ([move.tokens for move in plan], cache.num_free(1)) == ([2] * 4, 7)
    finish(cache, plan)
    release(cache, sequence, *forks)
    assert (cache.num_free(0), cache.num_free(1)) == (32, 13)


def test_a_prompt_under_way_is_not_grown(store: StoreName) -> None:
    """reserve-13: tokens behind a prompt of which 8 of 40 are computed: an error; nothing was reserved for them."""
    cache = chunked(store)
    sequence = begin(cache, Request("a", LONG))
    with pytest.raises(StateError, match="prompt"):
        cache.grow(sequence, tokens(40))
    check(cache)
    assert (sequence.length, cache.num_free(1)) == (40, 2)
    release(cache, sequence)


def test_claims_in_the_way_leave_spares_alone(store: StoreName) -> None:
    """reserve-14: claims leave -2 free beside a prompt under way: two beams still have the page set aside for them."""
    cache = chunked(store, 10)
    for first in (100, 200):
        run(cache, Request("seed", tokens(range(first, first + 8))))
    under_way, beam = begin(cache, Request("a", LONG)), begin(cache, Request("b", tokens(range(300, 306)), beams=2))
    with cache.claim([Request(n, tokens(range(n, n + 9))) for n in (100, 200)]) as claims:
        assert ([claim.start for claim in claims], cache.num_free(1)) == ([8, 8], -2)
        (second,), plan = fork(cache, beam, "c")
        assert ([move.tokens for move in plan], cache.num_free(1)) == ([2, 2], -2)
    finish(cache, plan)
    release(cache, under_way, beam, second)
    assert cache.num_free(1) == 10


def test_a_request_alone_fits_into_its_window_and_a_chunk(store: StoreName) -> None:
    """reserve-15: window 64, chunks of 128, blocks of 16: 13 slots serve 600 tokens, and 300 more behind them."""
    groups, text = (FULL, LayerGroup("near", window=64)), tokens(range(900))
    cache = build(store, (64, 13), groups=groups, block_size=16, max_chunk=128)
    first, _ = prefill(cache, Request("a", text[:600]))
    release(cache, first)
    second, spans = prefill(cache, Request("b", text))
    assert (second.start, spans) == (600, [Span(600, 728), Span(728, 856), Span(856, 900)])
    release(cache, second)
    small = build(store, (64, 12), groups=groups, block_size=16, max_chunk=128)
    assert refused(try_admit(small, Request("a", text))) == ("slots", 13, 12, 1, True)


def test_pages_that_a_hit_shares_are_charged(store: StoreName) -> None:
    """reserve-16: a prompt under way counts on the two pages of its hit; who shares them is charged for them."""
    other = tokens(LONG[:16], range(100, 124))
    for slots, free in ((11, 6), (12, 7)):
        cache = chunked(store, slots)
        seed, _ = prefill(cache, Request("seed", LONG[:16]))
        release(cache, seed)
        (first,) = admit(cache, Request("a", LONG))
        assert (first.start, cache.num_free(1)) == (16, free)
        batch = try_admit(cache, Request("b", other))
        if slots == 11:
            assert refused(batch) == ("slots", 7, 6, 1, False)
            continue
        (second,) = batch.sequences
        assert (second.start, cache.num_free(1)) == (16, 0)
        for end in (24, 32, 40):
            compute(cache, first)
            compute(cache, second)
            assert end == 40 or go_on(cache, first, second) == [Span(end, end + 8)] * 2
        assert cache.num_free(1) == 8
        release(cache, first, second)
        assert cache.num_free(1) == 12


def test_a_hold_of_pages_that_a_prompt_counts_on_needs_room(store: StoreName) -> None:
    """reserve-17: the two pages of a hit that a prompt alone has make room later; a hold of them needs two slots."""
    for slots, free in ((6, None), (7, 0)):
        cache = chunked(store, slots)
        seed, _ = prefill(cache, Request("seed", LONG[:16]))
        release(cache, seed)
        (sequence,) = admit(cache, Request("a", LONG))
        held = cache.hold(sequence, Span(8, 16))
        check(cache)
        assert (held and cache.num_free(1)) == free
        compute(cache, sequence)
        while sequence.computed < 40:
            assert go_on(cache, sequence) != [None]
            compute(cache, sequence)
        release(cache, sequence)


def test_a_prompt_under_way_is_findable_up_to_its_last_block(store: StoreName) -> None:
    """reserve-18: 320 of 640 tokens computed behind a window of 64: others start at 320, not where pages left it."""
    groups, text = (FULL, LayerGroup("near", window=64)), tokens(range(640))
    cache = build(store, (96, 40), groups=groups, block_size=16, max_chunk=64, partial_reuse=False)
    first = begin(cache, Request("a", text))
    while first.computed < 320:
        go_on(cache, first)
        compute(cache, first)
    assert start_of(cache, text) == 320 and start_of(cache, tokens(text[:300], range(900, 940))) == 288
    (second,) = admit(cache, Request("b", tokens(text[:320], range(900, 1000))))
    assert second.start == 320
    compute(cache, second)
    while first.computed < 640 or second.computed < 420:
        unfinished = [one for one in (first, second) if one.computed < one.prompt_end]
        assert None not in go_on(cache, *unfinished)
        for one in unfinished:
            compute(cache, one)
    release(cache, first, second)
    assert (cache.num_free(0), cache.num_free(1)) == (96, 40)


def test_pages_of_a_prompt_under_way_are_charged_to_who_shares_them(store: StoreName) -> None:
    """reserve-19: two pages of the window that were to make room are kept: 5 and 2 slots, or nobody comes in."""
    other = tokens(LONG[:16], range(100, 124))
    for slots in (10, 11, 12):
        cache = chunked(store, slots)
        first = begin(cache, Request("a", LONG))
        go_on(cache, first)
        compute(cache, first)
        batch = try_admit(cache, Request("b", other))
        if slots < 12:
            assert refused(batch) == ("slots", 7, slots - 5, 1, False)
            continue
        (second,) = batch.sequences
        assert (second.start, cache.num_free(1)) == (16, 0)
        compute(cache, second)
        for end in (24, 32, 40):
            unfinished = [one for one in (first, second) if one.computed < 40]
            assert None not in go_on(cache, *unfinished), end
            for one in unfinished:
                compute(cache, one)
        release(cache, first, second)
        assert cache.num_free(1) == 12
