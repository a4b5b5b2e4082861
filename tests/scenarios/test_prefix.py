"""What is found again: blocks, tails, scopes, extra ids, media. Rows `cut` and `reuse`."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
from numpy.typing import NDArray

from quire import InputError, Media, Removed, Request, Scope, Span, StateError, Stored
from quire.core.records.request import Int32
from quire.core.store import StoreName

from .conftest import Ran, admit, both_orders, build, compute, events, got, release, run, start_of, tokens, try_admit

NINE = tokens(range(9))
IMAGE, OTHER = b"a" * 32, b"b" * 32


@pytest.mark.parametrize(
    ("computed", "stored", "sizes"),
    [
        (10, True, [(2, 4), (1, 2)]),
        (7, True, [(1, 4), (1, 3)]),
        (8, True, [(2, 4)]),
        (10, False, [(2, 4)]),
        (3, True, [(1, 3)]),
    ],
)
def test_tokens_are_cut_into_blocks_and_a_tail(
    store: StoreName, computed: int, stored: bool, sizes: list[tuple[int, ...]]
) -> None:
    """cut-01: whole blocks are committed, the computed tail is stored at release; a cancelled request leaves none."""
    cache = build(store, 8, events=True)
    (sequence,) = admit(cache, Request("a", tokens(range(10))))
    compute(cache, sequence, computed)
    release(cache, sequence, store=stored)
    records = [event for event in events(cache) if isinstance(event, Stored)]
    assert [(len(record.hashes), record.tokens_per_block) for record in records] == sizes
    assert [token for record in records for token in record.tokens] == list(range(sum(n * size for n, size in sizes)))


@pytest.mark.parametrize(("length", "start"), [(1, 0), (4, 3), (5, 4), (8, 7), (9, 8), (10, 9)])
def test_the_last_prompt_token_is_always_computed(store: StoreName, length: int, start: int) -> None:
    """cut-02: a fully cached prompt starts at its last token; for decoding alone nothing is left to compute."""
    cache = build(store, 8)
    prompt = tokens(range(length))
    run(cache, Request("a", prompt))
    assert start_of(cache, prompt) == start
    with cache.claim([Request("b", prompt)], purpose="decode") as claims:
        assert (claims[0].start, claims[0].num_tokens) == (length, 0)


def test_a_stored_chain_is_found_and_leads_back_to_the_root(store: StoreName) -> None:
    """reuse-01: 17 tokens in blocks of 8 leave two blocks in one chain under the root of their scope."""
    cache = build(store, 8, block_size=8, events=True)
    run(cache, Request("a", tokens(range(17))), computed=17)
    _, chain, tail = events(cache)
    assert isinstance(chain, Stored) and isinstance(tail, Stored)
    assert chain.parent is None and len(chain.hashes) == 2
    assert tail.parent == chain.hashes[1] and tail.tokens.tolist() == [16]
    (probe,) = cache.probe([Request("b", tokens(range(16)))], purpose="decode")
    assert (probe.hit_blocks, probe.start) == (2, 16)
    assert start_of(cache, tokens(range(8, 17))) == 0  # the second block alone is nobody's first


@both_orders
def test_an_image_is_part_of_what_its_tokens_are(store: StoreName, eviction: str) -> None:
    """reuse-02: the same image is reused, another one only up to its first token, a split one up to the split."""
    cache = build(store, 16, eviction=eviction)

    def ask(name: Hashable, *media: Media) -> Ran:
        return run(cache, Request(name, NINE, media=media), computed=8)

    assert ask("first", Media(IMAGE, (Span(2, 6),))) == Ran(0, [0, 1, 2])
    assert ask("same", Media(IMAGE, (Span(2, 6),))) == Ran(8, [0, 1, 3])
    assert ask("other", Media(OTHER, (Span(2, 6),))) == Ran(2, [4, 5, 6])
    assert ask("two", Media(IMAGE, (Span(2, 4),)), Media(OTHER, (Span(4, 6),))) == Ran(4, [0, 7, 8])


def test_an_image_at_another_offset_is_another_block(store: StoreName) -> None:
    """reuse-03: runs of one item go on where the last one ended; the same tokens at another offset are not the same."""
    cache = build(store, 16)
    whole, halves = Media(IMAGE, (Span(2, 6),)), Media(IMAGE, (Span(2, 4), Span(4, 6)))
    run(cache, Request("a", NINE, media=(whole,)), computed=8)
    assert start_of(cache, NINE, media=(halves,)) == 8
    assert start_of(cache, NINE, media=(Media(IMAGE, (Span(1, 5),)),)) == 1
    assert start_of(cache, NINE, media=(Media(IMAGE, (Span(2, 6),), uuid="x"),)) == 2
    assert start_of(cache, NINE) == 2


@both_orders
def test_adapters_and_extra_ids_keep_requests_apart(store: StoreName, eviction: str) -> None:
    """reuse-04: equal tokens under another adapter or other extra ids share nothing from the first difference on."""
    cache = build(store, 16, eviction=eviction)
    ids = np.arange(100, 109, dtype=np.int64)
    late = np.where(np.arange(9) >= 4, ids + 50, ids)

    def ask(name: Hashable, lora: int | None, extra_ids: NDArray[np.int64] | None, prompt: Int32 = NINE) -> Ran:
        return run(cache, Request(name, prompt, Scope(lora=lora), extra_ids=extra_ids), sampled=(9, 10))

    assert ask(0, 1, ids) == Ran(0, [0, 1, 2])
    assert ask(1, 2, ids) == Ran(0, [3, 4, 5])
    assert ask(2, 1, ids) == Ran(8, [0, 1, 6])
    longer = np.concatenate([ids, np.zeros(2, np.int64)])  # sampled tokens have no extra id
    (sequence,) = admit(cache, Request(3, tokens(range(11)), Scope(lora=2), extra_ids=longer))
    assert got(sequence) == Ran(10, [3, 4, 5])
    release(cache, sequence)
    assert ask(4, 1, ids + 7) == Ran(0, [7, 8, 9])
    assert ask(5, 1, late) == Ran(4, [0, 10, 11])
    assert ask(6, 2, late) == Ran(4, [3, 12, 13])


@both_orders
def test_a_salt_is_a_cache_of_its_own(store: StoreName, eviction: str) -> None:
    """reuse-05: requests of one salt share, others do not; no salt is not the same as any salt."""
    cache = build(store, 16, eviction=eviction)

    def ask(name: Hashable, salt: str | None) -> Ran:
        return run(cache, Request(name, NINE, Scope(salt=salt)), computed=8)

    assert ask(0, None) == Ran(0, [0, 1, 2])
    assert ask(1, "a") == Ran(0, [3, 4, 5])
    assert ask(2, "a") == Ran(8, [3, 4, 6])
    assert ask(3, "b") == Ran(0, [7, 8, 9])
    assert ask(4, None) == Ran(8, [0, 1, 10])


@both_orders
def test_a_tail_is_shared_by_copy_or_taken_over(store: StoreName, eviction: str) -> None:
    """reuse-06: a sampled tail is found by the longer prompt, which takes it over; other extra ids find nothing."""
    cache = build(store, 16, eviction=eviction)
    ids = np.arange(100, 109, dtype=np.int64)
    assert run(cache, Request(0, NINE, extra_ids=ids), sampled=(9, 10)) == Ran(0, [0, 1, 2])
    assert run(cache, Request(1, NINE, extra_ids=ids), sampled=(9, 10)) == Ran(8, [0, 1, 3])
    longer = np.concatenate([ids, np.zeros(2, np.int64)])
    first, second = admit(cache, Request(2, NINE, extra_ids=ids), Request(3, tokens(range(11)), extra_ids=longer))
    assert (got(first), got(second)) == (Ran(8, [0, 1, 4]), Ran(10, [0, 1, 2]))
    assert run(cache, Request(4, NINE, extra_ids=ids + 7)) == Ran(0, [5, 6, 7])
    release(cache, first, second)


def test_a_scope_value_and_its_absence_differ(store: StoreName) -> None:
    """reuse-07: None, 0 and '' are three adapters; a new model epoch starts from nothing."""
    cache = build(store, 16)
    run(cache, Request("a", NINE))
    for scope in (Scope(lora=0), Scope(lora=""), Scope(lora=b""), Scope(salt=0), Scope(epoch=1)):
        assert start_of(cache, NINE, scope=scope) == 0
    assert start_of(cache, NINE) == 8


def test_a_request_that_does_not_reuse_leaves_nothing_and_finds_nothing(store: StoreName) -> None:
    """reuse-08: reuse=False and dummies neither look up nor store, and do not meet each other."""
    cache = build(store, 8)
    ones = tokens([1] * 9)
    run(cache, Request("user", ones))
    before = start_of(cache, ones)
    for request in (Request("off", ones, reuse=False), Request.dummy("warm-up", 9), Request.dummy("padding", 9)):
        assert run(cache, request).start == 0
        assert cache.usage().empty == 5  # of 8, the user's two blocks and tail are kept
    assert (before, start_of(cache, ones)) == (8, 8)


def test_a_taken_over_tail_is_no_longer_found(store: StoreName) -> None:
    """reuse-09: a tail goes to one taker at a time; its old content is removed, the taker's stored instead."""
    cache = build(store, 8, events=True)
    run(cache, Request("a", tokens(range(6))))
    (tail,) = [event for event in events(cache) if isinstance(event, Stored) and event.tokens_per_block == 2]
    (sequence,) = admit(cache, Request("b", tokens(range(5), 90, 91)))
    assert got(sequence) == Ran(5, [0, 1])
    assert start_of(cache, tokens(range(6), 99)) == 4
    assert events(cache) == [Removed(0, tail.hashes)]
    compute(cache, sequence)
    release(cache, sequence)
    assert start_of(cache, tokens(range(5), 90, 91, 92)) == 7
    assert start_of(cache, tokens(range(6), 99)) == 5


def test_a_live_id_is_not_admitted_again_and_no_room_is_no_error(store: StoreName) -> None:
    """reuse-10: a second request of a live id is an error; one without room is refused with its numbers."""
    cache = build(store, 4)
    (sequence,) = admit(cache, Request("a", tokens(range(8))))
    compute(cache, sequence)
    with pytest.raises(StateError, match="a sequence of that id is live"):
        cache.add_sequence_batch([Request("a", tokens(range(8)))])
    (refusal,) = try_admit(cache, Request("b", tokens(range(20, 32)))).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.never) == ("slots", 3, 2, False)
    (refusal,) = try_admit(cache, Request("c", tokens(range(17)))).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.never) == ("slots", 5, 4, True)
    release(cache, sequence)
    assert admit(cache, Request("a", tokens(range(8))))[0].start == 7


def test_a_block_that_another_has_committed_stays_private_and_serves_when_needed(store: StoreName) -> None:
    """reuse-11: of two live copies the first is found; when it was evicted the other takes its place at release."""
    cache = build(store, 4)
    first, second = admit(cache, Request("a", tokens(range(8))), Request("b", tokens(range(8))))
    assert (compute(cache, first), compute(cache, second)) == (2, 0)
    release(cache, first)
    assert start_of(cache, tokens(range(9))) == 8
    (third,) = admit(cache, Request("c", tokens(range(20, 28))))  # takes the only two slots nobody holds
    assert start_of(cache, tokens(range(9))) == 0
    release(cache, second)
    assert start_of(cache, tokens(range(9))) == 8
    release(cache, third)


@pytest.mark.parametrize(("busy", "slots"), [("nobody", [0, 1]), ("held", [0, 3]), ("on the host", [0, 3])])
def test_of_equal_partial_candidates_the_cheapest_serves(store: StoreName, busy: str, slots: list[int]) -> None:
    """reuse-13: an idle leaf on the device before a held one or one on the host; among equals the lowest page."""
    cache = build(store, 4, 4)
    first, second = admit(cache, Request("a", tokens(range(8))), Request("b", tokens(range(6), 80, 90)))
    for sequence in (first, second):
        compute(cache, sequence)
    release(cache, *((second,) if busy == "held" else (first, second)))
    if busy == "on the host":
        release(cache, *admit(cache, Request("pressure", tokens(range(50, 58)))))
    (sequence,) = admit(cache, Request("c", tokens(range(6), 99)))
    assert got(sequence) == Ran(6, slots) and sequence.counts().copied == 0


@pytest.mark.parametrize("copies", [True, False])
def test_partial_hits_can_be_limited_or_turned_off(store: StoreName, copies: bool) -> None:
    """reuse-12: without copies only an idle leaf serves a partial hit; without partial hits a start is a block edge."""
    cache = build(store, 8, copy_on_partial_reuse=copies)
    run(cache, Request("a", tokens(range(8))), computed=8)
    inner = tokens(0, 1, 2, 50)  # ends inside the first block, which has a child
    assert start_of(cache, inner) == (3 if copies else 0)
    assert start_of(cache, tokens(range(6), 50)) == 6  # the second block is an idle leaf
    whole = build(store, 8, partial_reuse=False)
    run(whole, Request("a", tokens(range(8))), computed=8)
    assert (start_of(whole, tokens(range(6), 50)), start_of(whole, tokens(range(9)))) == (4, 8)


def test_a_request_may_limit_its_own_reuse(store: StoreName) -> None:
    """reuse-14: 8 tokens cached: of 9 at most 6, 4, 3 or 0 are reused; what it computes is stored as ever."""
    cache = build(store, 8, partial_reuse=True)
    run(cache, Request("a", tokens(range(8))), computed=8)
    for limit, start in ((None, 8), (9, 8), (6, 6), (4, 4), (3, 3), (0, 0)):
        with cache.claim([Request("b", tokens(range(9)), reuse_limit=limit)]) as claims:
            assert (claims[0].start, claims[0].num_tokens) == (start, 9 - start)
    run(cache, Request("c", tokens(range(12)), reuse_limit=0), computed=12)
    assert start_of(cache, tokens(range(13))) == 12
    with pytest.raises(InputError, match="reuse_limit"):
        Request("d", tokens(range(9)), reuse_limit=-1)
