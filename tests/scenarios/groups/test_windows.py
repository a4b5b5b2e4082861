"""Windows and sinks: what leaves a sequence, what stays findable, where a hole may be bridged. Rows `window`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import Cache, LayerGroup, Request, Sequence, Span, check
from quire.core.store import StoreName

from ..conftest import Ran, admit, build, compute, decode, finish, got, release, run, start_of, tokens

FULL = LayerGroup("full")


def window(size: int, name: str = "window", **more: Any) -> LayerGroup:
    return LayerGroup(name, window=size, **more)


def twelve_of(cache: Cache, name: str = "a") -> Sequence:
    """11 tokens in one step, one sampled, all computed: the first of three blocks is behind a window of 8."""
    (sequence,) = admit(cache, Request(name, tokens(range(11))))
    decode(cache, sequence, 11)
    compute(cache, sequence)
    return sequence


def prefill(cache: Cache, request: Request, **limits: Any) -> tuple[Sequence, list[Span]]:
    """A prompt in as many steps as its chunks and snapshots make of it: the sequence and its spans."""
    with cache.claim([request]) as claims:
        batch = cache.admit(claims, **limits)
    (sequence,), spans = batch.sequences, []
    while True:
        check(cache)
        finish(cache, batch.plan)
        spans.append(batch.spans[sequence])
        compute(cache, sequence)
        if sequence.computed == sequence.prompt_end:
            return sequence, spans
        with cache.claim([]) as none:
            batch = cache.admit(none, continuing=[sequence], **limits)


def starts(cache: Cache, length: int, *lengths: int) -> list[int]:
    """Where prompts begin that share the first so many of 0..length and then go on differently."""
    return [start_of(cache, tokens(range(min(n, length)), 999)) for n in lengths]


def test_two_windows_and_a_partial_hit_behind_both(store: StoreName) -> None:
    """window-01: 11 tokens and four sampled: the window of 8 let go of block 0; the next prompt finds it in both."""
    cache = build(store, 16, groups=(window(16, "far"), window(8, "near")), max_length=128)
    (first,) = admit(cache, Request("a", tokens(range(11))))
    assert first.slots(0).tolist() == first.slots(1).tolist() == [0, 1, 2]
    decode(cache, first, 11, 12, 13, 14)
    assert (first.slots(0).tolist(), first.slots(1).tolist()) == ([0, 1, 2, 3], [-1, 1, 2, 3])
    assert (cache.num_free(0), cache.num_free(1)) == (12, 13)
    release(cache, first)
    (second,) = admit(cache, Request("b", tokens(range(7))))
    assert got(second) == Ran(6, [0, 4]) and second.slots(1).tolist() == [0, 4]
    decode(cache, second, 90, 91)
    assert second.slots(0).tolist() == second.slots(1).tolist() == [0, 4, 5]


def test_what_left_the_window_is_still_found(store: StoreName) -> None:
    """window-02: block 0 leaves when the third block is whole, not when a token comes; its page stays findable."""
    cache = build(store, 8, groups=(window(8),))
    (sequence,) = admit(cache, Request("a", tokens(range(11))))
    free = []
    for act in (compute, lambda *_: finish(cache, cache.grow(sequence, tokens(11))), compute):
        act(cache, sequence)
        free.append(cache.num_free())
    assert (free, sequence.slots().tolist(), sequence.held()) == ([5, 5, 6], [-1, 1, 2], (Span(4, 12),))
    release(cache, sequence)
    assert (start_of(cache, tokens(range(4))), cache.num_free()) == (3, 8)


def test_what_left_is_found_while_its_sequence_lives(store: StoreName) -> None:
    """window-03: a live sequence is past block 0; another request takes that block and shares nothing else."""
    cache = build(store, 10, groups=(window(8),))
    first = twelve_of(cache)
    assert start_of(cache, tokens(range(4))) == 3
    (second,) = admit(cache, Request("b", tokens(range(4), 50)))
    assert got(second) == Ran(4, [0, 3])
    compute(cache, second)
    release(cache, first, second)
    assert cache.num_free() == 10


def test_a_slot_that_went_to_others_is_not_touched_again(store: StoreName) -> None:
    """window-04: other content takes the slot of the block that left; both are stored once and freed once."""
    cache = build(store, 4, groups=(window(8),), events=True)
    first = twelve_of(cache)
    assert cache.num_free() == 2
    (other,) = admit(cache, Request("b", tokens(range(50, 58))))
    assert (other.slots().tolist(), cache.num_free()) == ([3, 0], 0)
    compute(cache, other)
    release(cache, first, other)
    assert (start_of(cache, tokens(range(50, 58))), cache.num_free()) == (7, 4)
    assert starts(cache, 12, 4, 8, 12) == [0, 0, 12]
    told = [type(event).__name__ for event in cache.take_events()]
    assert (told.count("Stored"), told.count("Removed")) == (3, 1)


def test_without_reuse_what_left_is_empty(store: StoreName) -> None:
    """window-05: reuse off: the slot of block 0 is empty and last in line."""
    cache = build(store, 5, groups=(window(8),), reuse=False)
    twelve_of(cache)
    assert (cache.num_free(), cache.usage().empty) == (3, 3)
    (other,) = admit(cache, Request("b", tokens(range(50, 54))))
    assert other.slots().tolist() == [3]


def test_a_hole_is_not_filled_by_who_let_go(store: StoreName) -> None:
    """window-06: the page of block 0 is lost to a cancelled request: release stores the rest, not the hole."""
    cache = build(store, 3, groups=(window(8),))
    first = twelve_of(cache)
    (other,) = admit(cache, Request("b", tokens(range(50, 54))))
    assert (other.slots().tolist(), cache.num_free()) == ([0], 0)
    release(cache, other, store=False)
    release(cache, first)
    assert (start_of(cache, tokens(range(4))), start_of(cache, tokens(range(4, 8))), cache.num_free()) == (0, 0, 3)
    assert starts(cache, 12, 8, 11, 12, 13) == [0, 0, 12, 12]


def test_a_sequence_with_holes_is_counted_by_its_pages(store: StoreName) -> None:
    """window-07: two pages held, one idle; 20 tokens to come take two slots more, the window gives the rest."""
    cache = build(store, 5, groups=(window(8),))
    (sequence,) = admit(cache, Request("a", tokens(range(11)), max_new_tokens=21))
    decode(cache, sequence, 11)
    compute(cache, sequence)
    usage = cache.usage()
    assert (cache.num_free(), usage.held, usage.idle, usage.empty) == (3, 2, 1, 2)
    assert cache.slots_to_completion(sequence) == (2,)
    for token in range(12, 32):
        decode(cache, sequence, token)
        assert cache.usage().held <= 3
    release(cache, sequence)
    assert cache.num_free() == 5


def test_blocks_leave_as_soon_as_nothing_reads_them(store: StoreName) -> None:
    """window-08: a window of 4 keeps one block: block 0 leaves with the prompt's step, block 1 with the next block."""
    cache = build(store, 8, groups=(window(4),))
    (sequence,) = admit(cache, Request("a", tokens(range(11))))
    compute(cache, sequence)
    assert (sequence.slots().tolist(), cache.num_free()) == ([-1, 1, 2], 6)
    decode(cache, sequence, 11, 12)
    assert (sequence.slots().tolist(), cache.num_free()) == ([-1, -1, 2, 3], 6)
    assert start_of(cache, tokens(range(4))) == 3
    release(cache, sequence)


def test_prompts_that_branch_keep_their_places(store: StoreName) -> None:
    """window-09: one first block, two branches, one of them twice: nothing is lost or doubled."""
    cache = build(store, 8, groups=(window(8),))
    head, one, two = range(4), range(10, 14), range(20, 24)
    found = [run(cache, Request(n, tokens(head, b)), sampled=range(90, 95)) for n, b in enumerate((one, two, one, one))]
    assert [ran.start for ran in found] == [0, 4, 7, 7]
    assert cache.num_free() == 8


def test_a_hold_keeps_the_blocks_that_are_there(store: StoreName) -> None:
    """window-10: a hold of 11 tokens is three pages; of 13 tokens behind a window of 8 it is blocks 1 to 3."""
    cache = build(store, 6, groups=(window(8),))
    (first,) = admit(cache, Request("a", tokens(range(11))))
    compute(cache, first)
    release(cache, first, store=False)
    for name, length, start, blocks in (("b", 11, 8, [0, 1, 2]), ("c", 13, 8, [1, 2, 3])):
        (sequence,) = admit(cache, Request(name, tokens(range(length))))
        assert sequence.start == start
        compute(cache, sequence)
        held = cache.hold(sequence, Span(0, length))
        assert held is not None and held.blocks[0].tolist() == blocks
        assert held.slots[0].tolist() == sequence.slots()[blocks].tolist()
        release(cache, sequence)
        assert cache.num_free() == 3
        cache.drop(held)
        check(cache)
        assert cache.num_free() == 6


def test_a_window_of_the_prompts_length(store: StoreName) -> None:
    """window-11: a window of 575 over 575 tokens: 71, 71 and 70 of 80 slots free; eight such leave 8."""
    cache = build(store, 80, groups=(window(575),), block_size=64, max_length=640)
    free = []
    for name in range(8):
        (sequence,) = admit(cache, Request(name, tokens(range(1000 * name, 1000 * name + 575))))
        free.append(cache.num_free())
        decode(cache, sequence, 1)
        free.append(cache.num_free())
        if not name:
            decode(cache, sequence, 2)
            free.append(cache.num_free())
            cache.trim(sequence, 1)
            check(cache)
    assert free[:3] == [71, 71, 70] and free[-1] == 8


def test_a_window_smaller_than_a_block(store: StoreName) -> None:
    """window-12: a window of 3 over blocks of 4 keeps one whole block and the one being filled."""
    cache = build(store, 16, groups=(window(3),), reuse=False, max_length=128)
    (sequence,) = admit(cache, Request("a", tokens(range(2))))
    seen = {2: sequence.slots().tolist()}
    for token in range(2, 14):
        decode(cache, sequence, token)
        seen[sequence.length] = sequence.slots().tolist()
    edges = {4: [0], 5: [0, 1], 8: [0, 1], 9: [-1, 1, 2], 12: [-1, 1, 2], 13: [-1, -1, 2, 3]}
    assert {length: seen[length] for length in edges} == edges
    release(cache, sequence)
    assert cache.num_free() == 16


def test_a_hole_is_bridged_exactly_when_nothing_in_it_is_read(store: StoreName) -> None:
    """window-13: ten blocks, the window has its last six: every start from 24 on, and none before."""
    cache = build(store, (16, 6), groups=(FULL, window(8)), max_chunk=8)
    sequence, _ = prefill(cache, Request("a", tokens(range(40))))
    release(cache, sequence)
    assert starts(cache, 40, 8, 16, 20, 23) == [0, 0, 0, 0]
    assert starts(cache, 40, 24, 25, 28, 31, 39, 40, 50) == [24, 25, 28, 31, 39, 40, 40]
    with cache.claim([Request("b", tokens(range(31)))]) as claims:
        assert claims[0].spans == ((Span(0, 30),), (Span(20, 30),))  # from 28 on it reads 21 and later


@pytest.mark.parametrize(("size", "found"), [(8, [4, 4, 4, 16]), (9, [4, 4, 4, 16]), (10, [0, 0, 0, 16])])
def test_a_bridge_needs_one_token_less_than_the_window(store: StoreName, size: int, found: list[int]) -> None:
    """window-14: of 16 tokens one block left first and is lost; a query reads only W - 1 tokens before itself."""
    cache = build(store, 16, groups=(window(size),))
    run(cache, Request("a", tokens(range(16))))
    (other,) = admit(cache, Request("b", tokens(range(100, 152))))
    release(cache, other, store=False)
    assert starts(cache, 16, 4, 8, 12, 16) == found


def test_a_window_nobody_can_outgrow_is_full_attention(store: StoreName) -> None:
    """window-15: a window of max_length or more, with sinks: nothing ever leaves, one free count with a full group."""
    cache = build(store, 8, groups=(FULL, window(32, sinks=5)), max_length=32)
    (sequence,) = admit(cache, Request("a", tokens(range(28))))
    decode(cache, sequence, *range(28, 32))
    compute(cache, sequence)
    assert sequence.slots(0).tolist() == sequence.slots(1).tolist() == list(range(8))
    assert (cache.num_free(0), cache.num_free(1)) == (0, 0)
    release(cache, sequence)


def test_every_window_has_its_own_front(store: StoreName) -> None:
    """window-16: windows of 16, 8 and 4 side by side: after 32 tokens they hold 4, 2 and 1 blocks."""
    cache = build(store, 12, groups=(window(16, "a"), window(8, "b"), window(4, "c")), max_length=64)
    (sequence,) = admit(cache, Request("a", tokens(range(32))))
    compute(cache, sequence)
    assert [sequence.held(group) for group in range(3)] == [(Span(16, 32),), (Span(24, 32),), (Span(28, 32),)]
    assert [cache.num_free(group) for group in range(3)] == [8, 10, 11]
    finish(cache, cache.grow(sequence, np.arange(9, dtype=np.int32)))
    compute(cache, sequence)
    assert [sequence.held(group) for group in range(3)] == [(Span(24, 41),), (Span(32, 41),), (Span(36, 41),)]
    release(cache, sequence)
    assert [cache.num_free(group) for group in range(3)] == [12, 12, 12]


def test_sinks_are_held_for_ever(store: StoreName) -> None:
    """window-17: five sink tokens are two blocks, a window of 8 two more and the one being filled: 5 pages, not 7."""
    cache = build(store, 8, groups=(window(8, sinks=5),))
    (sequence,) = admit(cache, Request("a", tokens(range(20))))
    compute(cache, sequence)
    assert (sequence.slots().tolist(), cache.num_free()) == ([0, 1, -1, 3, 4], 4)
    decode(cache, sequence, *range(20, 30))
    assert (sequence.slots().tolist(), cache.num_free()) == ([0, 1, -1, -1, -1, 5, 6, 7], 3)
    assert sequence.held() == (Span(0, 8), Span(20, 29))
    release(cache, sequence)


@pytest.mark.parametrize(("sinks", "found"), [(0, [0, 0, 16]), (4, [0, 0, 0])])
def test_sinks_are_needed_for_a_hit(store: StoreName, sinks: int, found: list[int]) -> None:
    """window-18: blocks 0 and 1 of four are lost: without sinks the fourth edge is still good, with them none is."""
    cache = build(store, 6, groups=(window(8, sinks=sinks),))
    (sequence,) = admit(cache, Request("a", tokens(range(16))))
    compute(cache, sequence)
    assert sequence.slots().tolist() == [0 if sinks else -1, -1, 2, 3]
    held = cache.hold(sequence, Span(8, 16))
    release(cache, sequence)
    run(cache, Request("b", tokens(range(100, 116)), reuse=False))
    assert held is not None
    cache.drop(held)
    check(cache)
    assert starts(cache, 16, 4, 12, 16) == found


def test_rejected_tokens_do_not_bring_back_what_left(store: StoreName) -> None:
    """window-19: 12 computed, 5 more grown and taken back: the pages behind go, the hole stays."""
    cache = build(store, 8, groups=(window(8),))
    sequence = twelve_of(cache)
    finish(cache, cache.grow(sequence, np.arange(5, dtype=np.int32)))
    assert (sequence.slots().tolist(), cache.num_free()) == ([-1, 1, 2, 3, 4], 4)
    assert cache.trim(sequence, 5) == 2
    check(cache)
    assert (sequence.slots().tolist(), cache.num_free()) == ([-1, 1, 2], 6)
    release(cache, sequence)
