"""Waiting for reuse: who would gain by what another computes in the same step, and how a claim is left out for it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire import Cache, Claim, LayerGroup, Prepared, Request, Scope, Sequence, Span, StateError, check
from quire.core.state.claim import promise_of
from quire.core.store import StoreName

from ...effort import cases
from ..conftest import seq, serve, small

FULL, NEAR = LayerGroup("full"), LayerGroup("near", window=6)
STATE = LayerGroup("state", snapshot_every=8)
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "whole blocks": {"partial_reuse": False},
    "no copies": {"copy_on_partial_reuse": False},
    "window": {"groups": (FULL, NEAR), "max_chunk": 16},
    "state": {"groups": (FULL, STATE), "max_chunk": 16},
    "both": {"groups": (FULL, NEAR, STATE), "max_chunk": 16},
    "inside": {"groups": (FULL, replace(STATE, snapshot_inside=True)), "max_chunk": 16},
}


def build(store: StoreName, kind: str = "full", **options: Any) -> Cache:
    return small(store, 64, **KINDS[kind] | options)


def gains(cache: Cache, mine: Request, other: Request, span: Span) -> bool:
    """Whether `mine`, claimed now, would gain."""
    with cache.claim([mine]) as claims:
        before = cache.num_free()
        answer = claims[0].gains_from(cache.prepare(other), span)
        check(cache)
        assert cache.num_free() == before
    return answer


def joined(*parts: Any) -> Any:
    return np.concatenate(parts)


# -- the rule ----------------------------------------------------------------------------------------------------------


def test_the_first_missing_block_decides(store: StoreName) -> None:
    """It gains when that block is computed, whole, whatever else is in the span."""
    cache = build(store)
    mine, other = Request("mine", seq(0, 14)), Request("other", seq(0, 20))
    for span in ((0, 20), (0, 8), (0, 4)):
        assert gains(cache, mine, other, Span(*span)), span
    for span in ((0, 3), (4, 20), (8, 12)):
        assert not gains(cache, mine, other, Span(*span)), span
    serve(cache, Request("seed", seq(0, 4)))
    for span in ((0, 20), (4, 8), (5, 8)):
        assert gains(cache, mine, other, Span(*span)), span
    for span in ((4, 7), (0, 4), (8, 20)):
        assert not gains(cache, mine, other, Span(*span)), span


def test_what_it_shares_at_once_is_no_gain_of_waiting(store: StoreName) -> None:
    """Having what the other computes now, it waits only for an equal block behind that."""
    cache = build(store)
    other = cache.prepare(Request("other", joined(seq(0, 16), seq(50, 8))))
    with cache.claim([Request("mine", seq(0, 24))]) as claims:
        for having, gained in ((0, True), (6, True), (8, True), (12, True), (16, False)):
            span = Span(having, 24)
            assert claims[0].gains_from(other, span, having) is gained, having
        assert not claims[0].gains_from(other, Span(8, 11), 8), "not the whole of it"
        assert not claims[0].gains_from(other, Span(8, 24)), "it has nothing of that other's first part"


def test_a_step_later_it_is_there(store: StoreName) -> None:
    """Three equal prompts: two are left out, and start behind what the first has computed meanwhile."""
    cache = build(store)
    requests = [Request(name, seq(0, 22)) for name in "abc"]
    with cache.claim(requests) as claims:
        first, *others = list(claims)
        span = Span(first.start, first.prepared.end)
        for claim in others:
            assert claim.gains_from(first.prepared, span)
            claims.leave_out(claim)
        batch = cache.admit(claims, token_budget=100)
    assert [sequence.id for sequence in batch.sequences] == ["a"] and not batch.refused
    cache.finish(batch.plan)
    cache.commit(batch.sequences[0])
    with cache.claim(requests[1:]) as claims:
        assert [claim.start for claim in claims] == [20, 20]
        assert not any(claim.gains_from(first.prepared, span) for claim in claims), "that part is there now"
    check(cache)


def test_an_equal_block_behind_another_beginning(store: StoreName) -> None:
    """Blocks are the same only with everything before them."""
    cache = build(store)
    mine, other = Request("mine", joined(seq(50, 4), seq(4, 8))), Request("other", seq(0, 12))
    assert not gains(cache, mine, other, Span(0, 12))
    serve(cache, Request("seed", seq(50, 4)))
    assert not gains(cache, mine, other, Span(0, 12)) and not gains(cache, mine, other, Span(4, 12))


@pytest.mark.parametrize("length", [1, 3])
def test_a_prompt_without_a_whole_block_waits_for_nobody(store: StoreName, length: int) -> None:
    cache = build(store)
    assert not gains(cache, Request("mine", seq(0, length)), Request("other", seq(0, 12)), Span(0, 12))


def test_what_names_tokens_counts(store: StoreName) -> None:
    """Scopes, extra ids and reuse: who could not share a page gains nothing by waiting for it."""
    cache = build(store)
    ids = np.zeros(12, np.int64)
    ids[2] = 7
    tokens, all_of_it = seq(0, 12), Span(0, 12)
    plain = Request("plain", tokens)
    others = {
        "salt": Request("x", tokens, Scope(salt="b")),
        "lora": Request("x", tokens, Scope(lora=0)),
        "ids": Request("x", tokens, extra_ids=ids),
        "off": Request("x", tokens, reuse=False),
        "dummy": Request.dummy("x", 12),
    }
    for name, other in others.items():
        assert not gains(cache, plain, other, all_of_it), name
        assert not gains(cache, other, plain, all_of_it), name
    for name in ("salt", "lora", "ids"):
        assert gains(cache, others[name], replace(others[name], id="y"), all_of_it), name


def test_without_reuse_nobody_gains(store: StoreName) -> None:
    cache = build(store, reuse=False)
    assert not gains(cache, Request("mine", seq(0, 12)), Request("other", seq(0, 12)), Span(0, 12))


@pytest.mark.parametrize("kind", ["full", "whole blocks", "no copies"])
def test_a_reuse_limit_ends_what_can_be_gained(store: StoreName, kind: str) -> None:
    """The block it lacks counts if all of it may be reused; a limit of the other one changes nothing: it stores all."""
    cache = build(store, kind)
    other, limits = Request("other", seq(0, 20), reuse_limit=0), (None, 0, 3, 4, 7, 8, 12, 99)
    for known, gaining in ((0, {None, 4, 7, 8, 12, 99}), (4, {None, 8, 12, 99}), (8, {None, 12, 99})):
        if known:
            serve(cache, Request("seed", seq(0, known)))
        mine = {limit: Request("mine", seq(0, 14), reuse_limit=limit) for limit in limits}
        assert {limit for limit in limits if gains(cache, mine[limit], other, Span(0, 20))} == gaining, known


def test_a_reuse_limit_before_a_snapshot(store: StoreName) -> None:
    cache, other = build(store, "state"), Request("other", seq(0, 23))
    for end, gaining in ((8, {None, 8, 15, 16}), (16, {None, 16})):
        mine = {limit: Request("mine", seq(0, 20), reuse_limit=limit) for limit in (None, 0, 7, 8, 15, 16)}
        assert {limit for limit in mine if gains(cache, mine[limit], other, Span(0, end))} == gaining, end


def test_windows_are_findable_as_they_are_computed(store: StoreName) -> None:
    """Its pages are to make room for its next ones, and still others may have them: a part is worth waiting for."""
    cache = build(store, "window")
    mine, other = Request("mine", seq(0, 20)), Request("other", seq(0, 24))
    for end, answer in ((3, False), (4, True), (16, True), (24, True)):
        assert gains(cache, mine, other, Span(0, end)) is answer, end
    assert not gains(cache, mine, other, Span(16, 24)), "its first missing block is not among them"


def test_states_are_kept_at_snapshots(store: StoreName) -> None:
    """A span that ends on a snapshot of the other one, within the common beginning, is worth waiting for."""
    cache = build(store, "state")
    mine, other = Request("mine", joined(seq(0, 20), seq(80, 6))), Request("other", seq(0, 23))
    for end, answer in [(4, False), (8, True), (12, False), (16, True), (20, True), (23, False)]:
        assert gains(cache, mine, other, Span(0, end)) is answer, end  # every 8, and the last edge inside the prompt
    assert gains(cache, mine, other, Span(8, 16)), "what is before the span is the other's, and will be there"
    assert not gains(cache, Request("x", joined(seq(0, 15), seq(80, 9))), other, Span(0, 16))
    assert not gains(cache, Request("x", seq(0, 15)), other, Span(0, 16)), "it is shorter"
    run_parts(cache, Request("seed", seq(0, 17)))
    assert not gains(cache, mine, other, Span(0, 8)) and not gains(cache, mine, other, Span(0, 16))
    assert gains(cache, mine, other, Span(16, 20))


def test_states_inside_a_span(store: StoreName) -> None:
    """Where a step writes them itself, the first that it lacks counts, wherever the span ends."""
    cache = build(store, "inside")
    mine, other = Request("mine", joined(seq(0, 20), seq(80, 6))), Request("other", seq(0, 23))
    for end, answer in [(4, False), (7, False), (8, True), (9, True), (23, True)]:
        assert gains(cache, mine, other, Span(0, end)) is answer, end
    assert not gains(cache, mine, other, Span(8, 15)) and gains(cache, mine, other, Span(8, 16))
    assert not gains(cache, Request("x", joined(seq(0, 7), seq(80, 9))), other, Span(0, 23))
    run_parts(cache, Request("seed", seq(0, 17)))
    assert not gains(cache, mine, other, Span(0, 19)) and gains(cache, mine, other, Span(0, 20))
    both = small(store, 64, groups=(FULL, STATE, replace(STATE, name="inside", snapshot_inside=True)))
    assert not gains(both, mine, other, Span(0, 9)) and gains(both, mine, other, Span(0, 8)), (
        "one is kept at ends alone"
    )


def test_snapshots_that_a_request_names(store: StoreName) -> None:
    cache = build(store, "state")
    mine = Request("mine", seq(0, 20))
    assert not gains(cache, mine, Request("other", seq(0, 24)), Span(0, 12))
    assert gains(cache, mine, Request("other", seq(0, 24), resume_points=(12,)), Span(0, 12))


# -- the promise -------------------------------------------------------------------------------------------------------


def run_parts(cache: Cache, request: Request) -> Sequence:
    """From admission to release, part by part."""
    sequence = begin(cache, request)
    while sequence.computed < sequence.prompt_end:
        go_on(cache, sequence)
    cache.release(sequence)
    return sequence


def begin(cache: Cache, request: Request | Prepared) -> Sequence:
    """Its first part."""
    batch = cache.add_sequence_batch([request])
    cache.finish(batch.plan)
    cache.commit(batch.sequences)
    return batch.sequences[0]


def go_on(cache: Cache, sequence: Sequence) -> Span:
    """Its next part."""
    batch = cache.add_sequence_batch([], continuing=[sequence])
    cache.finish(batch.plan)
    cache.commit(sequence)
    return batch.spans[sequence]


def next_part(cache: Cache, prepared: Prepared, start: int) -> Span:
    """What a step without other budgets computes of a prompt."""
    end, chunk = prepared.stop_after(start, prepared.end), cache.config.max_chunk or prepared.end
    return Span(start, min(end, start + chunk))


def draw(dice: random.Random) -> Any:
    """A prompt of few words, so that many begin alike."""
    return joined(*(seq(dice.choice([0, 0, 40]), 4) for _ in range(dice.randint(0, 6))), seq(0, dice.randint(1, 6)))


def look(cache: Cache, mine: Request, other: Prepared, start: int) -> tuple[bool, int, int]:
    """Whether it would gain, where it would start, how many blocks it would find."""
    with cache.claim([mine]) as claims:
        (claim,) = claims
        return claim.gains_from(other, next_part(cache, other, start)), claim.start, promise_of(claim).hit.blocks


@pytest.mark.long
@pytest.mark.parametrize("chunk", [None, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_who_waits_gains_and_who_does_not_would_not(store: StoreName, kind: str, chunk: int | None) -> None:
    """Random prompts, step by step: a yes means that it starts later afterwards, a no that it finds no more blocks."""
    dice, yes, no = random.Random(kind), 0, 0
    for number in range(cases(25, 300)):
        cache = build(store, kind, max_chunk=chunk)
        for nth in range(dice.randint(0, 2)):
            run_parts(cache, Request(f"seed {nth}", draw(dice)))
        limit = dice.choice((None, dice.randint(0, 24)))
        other, mine = Request("other", draw(dice)), Request("mine", draw(dice), reuse_limit=limit)
        with cache.claim([other]) as claims:
            prepared, start = claims[0].prepared, claims[0].start
        sequence: Sequence | None = None
        while sequence is None or sequence.computed < sequence.prompt_end:
            answer, before, blocks = look(cache, mine, prepared, start if sequence is None else sequence.computed)
            if sequence is None:
                sequence = begin(cache, prepared)
            else:
                go_on(cache, sequence)
            _, after, found = look(cache, mine, prepared, 0)
            what = f"{kind} {number}: {mine.tokens} up to {limit} waits for {other.tokens}"
            if answer:
                assert after > before, what
            else:  # behind a window the other may go on after a gap, and others then do too
                assert found <= blocks or kind in ("window", "both"), what
            yes, no = yes + answer, no + (not answer)
        check(cache)
    assert no > cases(10, 20) and (yes > cases(2, 5) or kind == "both")


# -- leaving out -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_that_is_left_out_holds_nothing(store: StoreName, kind: str) -> None:
    """As if it had not been asked for: the others are admitted in their order."""
    cache = build(store, kind, events=True)
    for start in (0, 40, 80):
        run_parts(cache, Request(("seed", start), seq(start, 13)))
    cache.take_events()
    groups = range(len(cache.config.groups))
    free, stats = [cache.num_free(group) for group in groups], [cache.stats(group) for group in groups]
    with cache.claim([Request(start, seq(start, 13)) for start in (0, 40, 80)]) as claims:
        assert all(claim.start >= 8 for claim in claims)
        claims.leave_out(claims[1])
        check(cache)
        assert [claim.request.id for claim in claims] == [0, 80] and len(claims) == 2
        batch = cache.admit(claims)
    assert [sequence.id for sequence in batch.sequences] == [0, 80] and not batch.refused
    cache.finish(batch.plan)
    for sequence in batch.sequences:
        cache.release(sequence, store=False)
    cache.take_events()
    with cache.claim([Request(40, seq(40, 13))]) as claims:
        claims.leave_out(claims[0])
        check(cache)
        assert [cache.num_free(group) for group in groups] == free
        assert not len(claims) and not len(cache.take_events())
        assert not cache.admit(claims).sequences
    assert stats[0].offloaded == cache.stats().offloaded


def test_the_order_of_leaving_does_not_matter(store: StoreName) -> None:
    """Claims on the same pages, left out in any order: the last one gives the pages back."""
    cache = build(store)
    serve(cache, Request("seed", seq(0, 12)))
    free = cache.num_free()
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        with cache.claim([Request(name, seq(0, 12)) for name in "abc"]) as claims:
            held = list(claims)
            for place in order:
                assert cache.num_free() < free
                claims.leave_out(held[place])
                check(cache)
            assert cache.num_free() == free


def test_only_open_claims_of_the_batch_leave(store: StoreName) -> None:
    """Twice, after admission, after a drop, or from another batch: an error, and nothing has changed."""
    cache = build(store)
    requests = [Request(name, seq(0, 12)) for name in "abc"]
    with cache.claim(requests[:2]) as claims, cache.claim(requests[2:]) as others:
        one, two = claims
        claims.leave_out(one)
        for wrong in (one, others[0]):
            with pytest.raises(StateError, match="it is none of these"):
                claims.leave_out(wrong)
        assert list(claims) == [two] and len(others) == 1
        batch = cache.admit(claims)
        with pytest.raises(StateError, match="admitted or dropped"):
            claims.leave_out(two)
        gone: Claim = others[0]
        others.drop()
        with pytest.raises(StateError, match="admitted or dropped"):
            others.leave_out(gone)
    check(cache)
    cache.finish(batch.plan)
    cache.release(batch.sequences[0])
    assert cache.num_free() == 64


def test_what_was_left_out_can_be_claimed_again(store: StoreName) -> None:
    """Prepared once, claimed again and again, admitted in the end."""
    cache = build(store)
    prepared = cache.prepare(Request("a", seq(0, 12)))
    for _ in range(3):
        with cache.claim([prepared]) as claims:
            claims.leave_out(claims[0])
    batch = cache.add_sequence_batch([prepared])
    assert [sequence.id for sequence in batch.sequences] == ["a"]
    check(cache)
