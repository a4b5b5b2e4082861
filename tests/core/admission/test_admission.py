"""Budgets are enforced between the phases, on exact numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, Request, Retention, Span, StateError, TierConfig, check
from quire.core.store import StoreName

from ..conftest import seq, serve, small


def test_token_budget_admits_the_longest_prefix(store: StoreName) -> None:
    """Cached tokens cost nothing: what is charged is what is computed."""
    cache = small(store, 32)
    serve(cache, Request("seed", seq(0, 12)))
    requests = [Request("hit", seq(0, 14)), Request("cold", seq(100, 6)), Request("late", seq(200, 2))]
    batch = cache.add_sequence_batch(requests, token_budget=8)
    assert [(s.id, batch.spans[s].start, batch.spans[s].end) for s in batch.sequences] == [
        ("hit", 12, 14),
        ("cold", 0, 6),
    ]
    assert batch.num_tokens == 8
    (late,) = batch.refused
    assert (late.request.id, late.reason, late.need, late.have, late.never) == ("late", "tokens", 2, 0, False)
    check(cache)


@pytest.mark.parametrize("chunk", [None, 4])
def test_a_budget_of_nothing_computes_nothing_new(store: StoreName, chunk: int | None) -> None:
    """Decoding may take a whole step. Then prompts under way and new requests wait; what needs no token comes in."""
    cache = small(store, 32)
    serve(cache, Request("seed", seq(0, 9)))
    (long,) = cache.add_sequence_batch([Request("long", seq(100, 12))], token_budget=4, max_chunk=4).sequences
    cache.commit(long)
    free = cache.num_free()
    batch = cache.add_sequence_batch(
        [Request("hit", seq(0, 9)), Request("new", seq(50, 5))], token_budget=0, max_chunk=chunk, continuing=[long]
    )
    assert (batch.num_tokens, list(batch.sequences), list(batch.waiting), bool(batch.plan)) == (0, [], [long], False)
    facts = [(one.request.id, one.reason, one.need, one.have, one.never, one.unchunked) for one in batch.refused]
    assert facts == [("hit", "tokens", 1, 0, False, False), ("new", "order", 1, 0, False, False)]
    assert cache.num_free() == free and long.ran == 4 and not cache.open_claims()
    received = cache.admit(cache.claim([Request("received", seq(0, 9))], "decode"), token_budget=0, max_chunk=chunk)
    assert [one.id for one in received.sequences] == ["received"] and received.num_tokens == 0
    again = cache.add_sequence_batch([Request("hit", seq(0, 9))], token_budget=9, max_chunk=8, continuing=[long])
    assert again.num_tokens == 9 and not again.refused, "the next step goes on as if nothing had been"
    check(cache)


@pytest.mark.parametrize("all_or_nothing", [False, True])
@pytest.mark.parametrize("short_of", ["tokens", "sequences"])
def test_behind_one_that_lacks_slots_nothing_else_is_short(
    store: StoreName, short_of: str, all_or_nothing: bool
) -> None:
    """The third would have lacked tokens, or a row, had the second come in. It did not: the third waits for it."""
    rows, budget = (2, None) if short_of == "sequences" else (8, 24)
    cache = Cache(CacheConfig([TierConfig("device", 4)], 4, max_sequences=rows), store=store)
    requests = [Request(name, seq(100 * nth, 10)) for nth, name in enumerate("abcd")]
    batch = cache.add_sequence_batch(requests, token_budget=budget, all_or_nothing=all_or_nothing)
    reasons = {one.request.id: (one.reason, one.need, one.have) for one in batch.refused}
    slots = next(numbers for numbers in reasons.values() if numbers[0] == "slots")
    assert reasons["b"] == slots and reasons["c"] == reasons["d"] == ("order", *slots[1:])
    assert [one.id for one in batch.sequences] == ([] if all_or_nothing else ["a"])
    check(cache)


@pytest.mark.parametrize("receipts", [False, True])
def test_a_clock_that_admits_the_same_request_is_too_early_to_do_harm(store: StoreName, receipts: bool) -> None:
    """A call reads the clock before it looks at anything: then the id is taken, and that is said."""
    calls: list[str] = []

    def clock() -> float:
        if calls and calls.pop() == "now":
            cache.add_sequence_batch([Request("a", seq(0, 9))])
        return 1.0

    config = CacheConfig([TierConfig("device", 16)], 4, eviction="adaptive", receipts=receipts)
    cache = Cache(config, clock=clock, store=store)
    calls.append("now")
    with pytest.raises(StateError, match="a sequence of that id is live"):
        cache.add_sequence_batch([Request("a", seq(0, 13))])
    assert not calls and cache.num_sequences == 1 and not cache.open_claims()
    check(cache)


def test_all_or_nothing(store: StoreName) -> None:
    cache = small(store, 32)
    batch = cache.add_sequence_batch(
        [Request("a", seq(0, 4)), Request("b", seq(50, 5))], token_budget=8, all_or_nothing=True
    )
    assert not batch.sequences and not batch.spans
    assert {refusal.request.id for refusal in batch.refused} == {"a", "b"}
    assert cache.num_free() == 32
    batch = cache.add_sequence_batch(
        [Request("a", seq(0, 4)), Request("b", seq(50, 5))], token_budget=9, all_or_nothing=True
    )
    assert len(batch.sequences) == 2 and not batch.refused


def test_slots_are_counted_before_the_first_move(store: StoreName) -> None:
    """Two of three fit; the third is given back and says what it lacks."""
    cache = small(store, 5)
    batch = cache.add_sequence_batch([Request(n, seq(100 * n, 8)) for n in range(3)])
    assert [sequence.id for sequence in batch.sequences] == [0, 1]
    (refusal,) = batch.refused
    assert (refusal.reason, refusal.need, refusal.have) == ("slots", 2, 1)
    assert "release something" in str(refusal)
    check(cache)


def test_giving_back_the_last_claim_makes_room_for_the_first(store: StoreName) -> None:
    """What a refused request had claimed is room again: here the first fits only because the second is out."""
    cache = small(store, 4)
    serve(cache, Request("seed", seq(0, 9)))  # two full blocks and a tail, all idle; one slot is empty
    requests = [Request("new", seq(100, 12)), Request("hit", seq(0, 16))]
    batch = cache.add_sequence_batch(requests)
    assert [sequence.id for sequence in batch.sequences] == ["new"]
    assert batch.refused[0].request.id == "hit"
    check(cache)


def test_an_early_given_back_source_serves_the_same_batch(store: StoreName) -> None:
    """Pool of three: the copier's source, an idle inner block, gives its slot to the next page of this very batch."""
    cache = small(store, 3)
    serve(cache, Request("inner", seq(0, 8)))  # blocks 0 and 1; block 0 has a child
    requests = [Request("partial", np.array([0, 1, 9, 9, 8, 8, 8, 8], np.int32))]  # copies 2 tokens of block 0
    batch = cache.add_sequence_batch(requests)
    assert [sequence.start for sequence in batch.sequences] == [2]
    check(cache)


def test_chunks_use_the_budget_to_the_token_and_keep_the_promise(store: StoreName) -> None:
    """A long prompt is computed in parts; its slots are all there from the first part on."""
    cache = small(store, 16)
    batch = cache.add_sequence_batch([Request("long", seq(0, 30))], token_budget=10, max_chunk=10)
    (sequence,) = batch.sequences
    assert batch.spans[sequence].end == 10 and sequence.capacity() == 32
    ends = []
    while batch.spans:
        end = batch.spans[sequence].end
        cache.commit(sequence, end)
        ends.append(end)
        check(cache)
        if end == 30:
            break
        batch = cache.add_sequence_batch([], token_budget=10, max_chunk=10, continuing=[sequence])
    assert ends == [10, 20, 30]


def test_continuing_sequences_are_charged_first(store: StoreName) -> None:
    cache = small(store, 16)
    first = cache.add_sequence_batch([Request("long", seq(0, 20))], token_budget=8, max_chunk=8)
    (long,) = first.sequences
    cache.commit(long, 8)
    batch = cache.add_sequence_batch([Request("new", seq(100, 8))], token_budget=12, max_chunk=12, continuing=[long])
    assert (batch.spans[long].start, batch.spans[long].end) == (8, 20)
    assert [refusal.request.id for refusal in batch.refused] == ["new"]


def test_a_continuing_sequence_that_the_budget_does_not_reach_waits(store: StoreName) -> None:
    """With nobody new as with somebody."""
    cache = small(store, 32)
    requests = [Request(name, seq(place, 20)) for name, place in (("first", 0), ("second", 100))]
    first, second = cache.add_sequence_batch(requests, token_budget=16, max_chunk=8).sequences
    cache.commit([first, second])
    batch = cache.add_sequence_batch((), token_budget=8, max_chunk=8, continuing=[first, second])
    assert (list(batch.spans), batch.waiting, batch.num_tokens) == ([first], [second], 8)
    cache.commit(first)
    with cache.claim([]) as claims:
        batch = cache.admit(claims, token_budget=8, max_chunk=8, continuing=[second, first])
    assert (list(batch.spans), batch.waiting, batch.num_tokens) == ([second], [first], 8)


def test_nothing_stays_held_of_a_batch_whose_continuing_sequences_are_wrong(store: StoreName) -> None:
    """It is noticed when the requests have been claimed: what they had found is anybody's again."""
    cache = small(store, 8)
    serve(cache, Request("seed", seq(0, 16)))
    (done,) = cache.add_sequence_batch([Request("done", seq(100, 8))]).sequences
    cache.commit(done)
    free = cache.num_free()
    with pytest.raises(StateError, match="its prompt is computed"):
        cache.add_sequence_batch([Request("hit", seq(0, 17)), Request("cold", seq(200, 4))], continuing=[done])
    assert cache.num_free() == free and cache.num_sequences == 1 and not cache.open_claims()
    check(cache)
    assert cache.add_sequence_batch([Request("hit", seq(0, 17))]).sequences[0].start == 16


def test_what_it_may_generate_ends_at_max_length(store: StoreName) -> None:
    """More than that is no reason to refuse it, and takes no slots."""
    cache = small(store, 8, max_length=32)
    request = Request("long", seq(0, 6), max_new_tokens=1000)
    (probe,) = cache.probe([request])
    assert (probe.slots_now, probe.slots_to_completion) == ((2,), (8,))
    (sequence,) = cache.add_sequence_batch([request]).sequences
    assert cache.slots_to_completion(sequence) == (6,)
    while sequence.length < 32:
        cache.commit(sequence)
        assert cache.grow(sequence, seq(0, 1)) is not None
    cache.commit(sequence)
    assert cache.slots_to_completion(sequence) == (0,)
    check(cache)


def test_a_request_that_can_never_fit_is_refused_at_once(store: StoreName) -> None:
    cache = small(store, 4, max_length=64)
    requests = [Request("wide", seq(0, 17)), Request("long", seq(0, 8), max_new_tokens=60), Request("fine", seq(0, 8))]
    with cache.claim(requests) as claims:
        assert [(r.request.id, r.reason, r.need, r.have, r.never) for r in claims.refused] == [
            ("wide", "slots", 5, 4, True),
            ("long", "slots", 16, 4, True),
        ]
        batch = cache.admit(claims)
    assert [sequence.id for sequence in batch.sequences] == ["fine"]
    assert [refusal.never for refusal in batch.refused] == [True, True]
    beams = cache.add_sequence_batch([Request("beams", seq(50, 6), beams=4)])
    assert beams.refused[0].never and (beams.refused[0].need, beams.refused[0].have) == (5, 4)


def test_rows_run_out(store: StoreName) -> None:
    cache = small(store, 32, max_sequences=2)
    batch = cache.add_sequence_batch([Request(n, seq(100 * n, 2)) for n in range(3)])
    assert len(batch.sequences) == 2
    assert (batch.refused[0].reason, batch.refused[0].have) == ("sequences", 2)


def test_explicit_length_drafts_reuse_off_and_dummies_take_the_same_door(store: StoreName) -> None:
    cache = small(store, 32)
    serve(cache, Request("seed", seq(0, 12)))
    requests = [
        Request("short", seq(0, 12), length=6),
        Request("wide", seq(0, 4), length=10),
        Request("drafts", seq(0, 13), extra_tokens=4),
        Request("alone", seq(0, 12), reuse=False),
        Request.dummy("dummy", 5),
    ]
    batch = cache.add_sequence_batch(requests)
    got = {s.id: (s.start, batch.spans[s].end, s.capacity()) for s in batch.sequences}
    assert got == {
        "short": (5, 6, 8),
        "wide": (3, 4, 12),
        "drafts": (12, 13, 20),
        "alone": (0, 12, 12),
        "dummy": (0, 5, 8),
    }
    for sequence in batch.sequences:
        cache.commit(sequence, batch.spans[sequence].end)
        check(cache)
    for sequence in batch.sequences:
        cache.release(sequence)
        check(cache)
    assert cache.probe([Request("p", np.ones(5, np.int32))])[0].start == 0, "a dummy leaves nothing behind"


def test_a_prefill_receiver_keeps_what_is_held_up_to_the_whole_prompt(store: StoreName) -> None:
    """purpose="decode": nothing is computed here, so the last token may be reused as well."""
    cache = small(store, 8)
    serve(cache, Request("seed", seq(0, 8)))
    with cache.claim([Request("d", seq(0, 8))], purpose="decode") as claims:
        assert (claims[0].start, claims[0].num_tokens) == (8, 0)
    with cache.claim([Request("c", seq(0, 8))]) as claims:
        assert (claims[0].start, claims[0].num_tokens) == (7, 1)
    check(cache)


def test_prepared_requests_are_claimed_like_plain_ones(store: StoreName) -> None:
    cache = small(store, 8)
    serve(cache, Request("seed", seq(0, 8)))
    prepared = cache.prepare(Request("p", seq(0, 12)))
    batch = cache.add_sequence_batch([prepared])
    assert batch.sequences[0].start == 8


def test_several_open_claims_hold_apart(store: StoreName) -> None:
    """Claims of two callers are open at once; each keeps its promise, whatever the other does in between."""
    cache = small(store, 6, 2)
    serve(cache, Request("seed", seq(0, 8)))
    first = cache.claim([Request("one", seq(0, 12))])
    second = cache.claim([Request("two", seq(0, 16))])
    check(cache)
    batch = cache.admit(second)
    cache.finish(batch.plan)
    assert batch.sequences[0].start == 8
    check(cache)
    batch = cache.admit(first)
    assert batch.sequences[0].start == 8
    check(cache)


def test_a_prompt_that_waits_is_not_overtaken(store: StoreName) -> None:
    cache = small(store, 16)
    request = Request("long", seq(0, 20), uncut=[Span(8, 12)])
    (long,) = cache.add_sequence_batch([request], token_budget=8, max_chunk=8).sequences
    cache.commit(long)
    batch = cache.add_sequence_batch([Request("new", seq(100, 2))], token_budget=3, max_chunk=8, continuing=[long])
    assert not batch.spans and [r.request.id for r in batch.refused] == ["new"], "the end of its span is out of reach"


@pytest.mark.parametrize(
    ("budget", "chunk", "need", "have"), [(9, 8, 10, 8), (None, 8, 10, 8), (9, 16, 10, 9), (9, None, 12, 9)]
)
def test_an_uncut_span_that_has_no_room_is_refused_with_its_length(
    store: StoreName, budget: int | None, chunk: int | None, need: int, have: int
) -> None:
    """It is short of what one step must compute together; without parts that is the whole prompt."""
    cache = small(store, 16)
    request = Request("r", seq(0, 12), uncut=[Span(0, 10)])
    (refusal,) = cache.add_sequence_batch([request], token_budget=budget, max_chunk=chunk).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.never) == ("tokens", need, have, False)


def test_commit_counts_what_was_handed_out(store: StoreName) -> None:
    """In the middle of a prompt the default is the last span, not every known token."""
    cache = small(store, 16)
    (long,) = cache.add_sequence_batch([Request("long", seq(0, 20))], token_budget=8, max_chunk=8).sequences
    assert cache.commit(long) == 2 and long.computed == 8
    cache.add_sequence_batch([], max_chunk=12, continuing=[long])
    assert cache.commit([long]) == 3 and long.computed == 20


def test_a_clock_that_raises_changes_nothing(store: StoreName) -> None:
    works = True

    def clock() -> float:
        if not works:
            raise OSError("no time")
        return 0.0

    cache = Cache(CacheConfig((TierConfig("device", 8),), block_size=4, max_length=256), clock=clock, store=store)
    serve(cache, Request("seed", seq(0, 8)))
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 4))]).sequences
    held = cache.hold(sequence, Span(0, 4))
    assert held is not None
    before = cache._setup.store.dump()
    works = False
    for act in (
        lambda: cache.add_sequence_batch([Request("n", seq(0, 8), retention=Retention(decode_seconds=1.0))]),
        lambda: cache.drop(held),
        lambda: cache.release(sequence),
    ):
        with pytest.raises(OSError, match="no time"):
            act()
        assert cache._setup.store.dump() == before and not cache._registry.open_claims
        check(cache)
    works = True
    cache.drop(held)
    cache.release(sequence)
    check(cache)


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -float("inf"), 1e300, None, "5", [0.0]])
def test_a_clock_that_says_no_time_is_refused_and_changes_nothing(store: StoreName, time: Any) -> None:
    times = [0.0]
    config = CacheConfig((TierConfig("device", 8),), block_size=4, max_length=256)
    cache = Cache(config, clock=lambda: times[-1], store=store)
    serve(cache, Request("seed", seq(0, 8)))
    before = cache._setup.store.dump()
    times.append(time)
    with pytest.raises(InputError, match=r"the clock of a cache: it returned .* pass one that returns seconds"):
        cache.add_sequence_batch([Request("n", seq(0, 8))])
    assert cache._setup.store.dump() == before and not cache._registry.open_claims
    times.append(1.0)
    assert serve(cache, Request("n", seq(0, 8))) > 0
    check(cache)
    with pytest.raises(InputError, match="pass a function that returns seconds"):
        Cache(config, clock=time, store=store)


def test_a_chunk_is_at_least_a_token(store: StoreName) -> None:
    with pytest.raises(InputError, match="at least 1"):
        small(store, 8).add_sequence_batch([Request("r", seq(0, 8))], max_chunk=0)
