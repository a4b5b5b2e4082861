"""Prompts computed in parts: budgets, chunk edges, what a part leaves behind. Rows `chunk`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import Cache, InputError, LayerGroup, Request, Sequence, Span, StateError, check
from quire.core.store import StoreName

from .conftest import admit, build, compute, finish, fork, named, release, run, start_of, tokens, try_admit
from .groups.test_windows import prefill


def long_prompts(count: int, length: int) -> list[Request]:
    return [Request(n, tokens(range(10_000 * n, 10_000 * n + length))) for n in range(1, count + 1)]


def test_a_stopped_prefill_leaves_its_whole_blocks(store: StoreName) -> None:
    """chunk-01: 5 of 12 tokens computed, then cancelled: the next one starts at 4."""
    cache = build(store, 8)
    (sequence,) = admit(cache, Request("a", tokens(range(12))))
    assert compute(cache, sequence, 5) == 1
    release(cache, sequence, store=False)
    assert start_of(cache, tokens(range(12))) == 4


def test_a_released_prefill_leaves_everything_computed(store: StoreName) -> None:
    """chunk-02: 5 of 12 tokens computed, then released: the next one starts at 5."""
    cache = build(store, 8)
    (sequence,) = admit(cache, Request("a", tokens(range(12))))
    compute(cache, sequence, 5)
    release(cache, sequence)
    assert start_of(cache, tokens(range(12))) == 5


def test_a_middle_chunk_stores_all_its_whole_blocks(store: StoreName) -> None:
    """chunk-03: after 8 of 16 tokens another request finds both blocks, while the first still runs."""
    cache = build(store, 8)
    (sequence,) = admit(cache, Request("a", tokens(range(16))))
    assert compute(cache, sequence, 8) == 2
    assert start_of(cache, tokens(range(16))) == 8
    assert compute(cache, sequence, 15) == 1
    assert compute(cache, sequence) == 1
    release(cache, sequence)


def test_nothing_computed_nothing_stored(store: StoreName) -> None:
    """chunk-04: a request released before its first step leaves only what it had found."""
    cache = build(store, 8)
    run(cache, Request("seed", tokens(range(6))))
    (sequence,) = admit(cache, Request("a", tokens(range(4), range(50, 58))))
    assert sequence.start == 4
    release(cache, sequence)
    assert start_of(cache, tokens(range(4), range(50, 58))) == 4
    assert start_of(cache, tokens(range(7))) == 6


@pytest.mark.parametrize(
    ("cached", "length", "max_chunk", "span"),
    [
        (30, 100, 25, (30, 55)),
        (60, 100, 100, (60, 100)),
        (10, 10, 10, (9, 10)),
        (0, 100, 25, (0, 25)),
        (32, 100, 25, (32, 57)),
    ],
)
def test_a_reused_prefix_moves_the_chunk_and_only_the_last_one_gets_shorter(
    store: StoreName, cached: int, length: int, max_chunk: int, span: tuple[int, ...]
) -> None:
    """chunk-05: a chunk costs its exact length, wherever it begins and ends; the last is what is left."""
    cache = build(store, 32, block_size=5)
    if cached:
        run(cache, Request("seed", tokens(range(cached))))
    (sequence,), spans = admit_spans(cache, Request("a", tokens(range(length))), max_chunk=max_chunk)
    assert spans == [Span(*span)]
    assert sequence.capacity() == length  # slots for the whole prompt at once


def admit_spans(cache: Cache, *requests: Request, **limits: Any) -> tuple[list[Sequence], list[Span]]:
    batch = try_admit(cache, *requests, **limits)
    return batch.sequences, list(batch.spans.values())


def test_later_chunks_take_no_slots(store: StoreName) -> None:
    """chunk-06: 12 tokens in chunks of 5 on blocks of 4: 5, 5 and 2 tokens; the free count moves once."""
    cache = build(store, 8)
    batch = try_admit(cache, Request("a", tokens(range(12))), max_chunk=5)
    (sequence,) = batch.sequences
    spans = list(batch.spans.values())
    while sequence.computed < sequence.prompt_end:
        compute(cache, sequence, spans[-1].end)
        assert cache.num_free() == 5
        if sequence.computed < sequence.prompt_end:
            with cache.claim([]) as none:
                batch = cache.admit(none, max_chunk=5, continuing=[sequence])
            check(cache)
            assert len(batch.plan) == 0
            spans.append(batch.spans[sequence])
    assert spans == [Span(0, 5), Span(5, 10), Span(10, 12)]
    release(cache, sequence)


@pytest.mark.parametrize("decoding", [100, 112, 113, 127])
def test_a_chunk_shrinks_to_what_is_left(store: StoreName, decoding: int) -> None:
    """chunk-07: 128 tokens a step, some of them for decoding; the prompt gets the rest, to the token."""
    cache = build(store, 8, block_size=16)
    batch = try_admit(cache, Request("a", tokens(range(64))), token_budget=128 - decoding, max_chunk=64)
    assert (list(batch.spans.values()), batch.refused) == ([Span(0, 128 - decoding)], [])


def test_sequences_under_way_come_first(store: StoreName) -> None:
    """chunk-08: a budget of 128: the prompt under way takes its 96, the new one 32 of its 64."""
    cache = build(store, 32, block_size=16)
    (under_way,), spans = admit_spans(cache, Request("a", tokens(range(256))), max_chunk=96)
    compute(cache, under_way, spans[0].end)
    batch = cache.add_sequence_batch(
        [Request("b", tokens(range(1000, 1064)))], token_budget=128, max_chunk=96, continuing=[under_way]
    )
    finish(cache, batch.plan)
    assert list(batch.spans.values()) == [Span(96, 192), Span(0, 32)]
    assert next(iter(batch.spans)) is under_way and batch.num_tokens == 128


@pytest.mark.parametrize(
    ("budget", "spans"), [(128, [32] * 4), (127, [32, 32, 32, 31]), (32, [32]), (31, [31]), (16, [16])]
)
def test_first_chunks_are_admitted_until_the_budget_is_full(store: StoreName, budget: int, spans: list[int]) -> None:
    """chunk-09: eight prompts of 4096, chunks of 32: as many as fit and a part of one more, never a token more."""
    cache = build(store, 1024, block_size=32, max_length=4096)
    batch = try_admit(cache, *long_prompts(8, 4096), token_budget=budget, max_chunk=32)
    assert [len(span) for span in batch.spans.values()] == spans
    assert [refusal.reason for refusal in batch.refused] == ["tokens"] + ["order"] * (7 - len(spans))


@pytest.mark.parametrize(("budget", "admitted"), [(8192, 2), (8191, 1), (4095, 0), (None, 8)])
def test_without_chunks_a_prompt_is_computed_whole_or_waits(
    store: StoreName, budget: int | None, admitted: int
) -> None:
    """chunk-10: eight prompts of 4096 without chunks: two of them in a budget of 8192."""
    cache = build(store, 1024, block_size=32, max_length=4096)
    batch = try_admit(cache, *long_prompts(8, 4096), token_budget=budget)
    assert list(batch.spans.values()) == [Span(0, 4096)] * admitted
    assert len(batch.refused) == 8 - admitted


def test_a_chunk_that_starts_inside_a_block_may_end_inside_one(store: StoreName) -> None:
    """chunk-11: start 6, chunks of 4, blocks of 4: the first chunk is [6, 10), with a budget of 1 it is [6, 7)."""
    cache = build(store, 8)
    run(cache, Request("seed", tokens(range(6))))
    request = Request("a", tokens(range(6), range(50, 60)))
    (sequence,), spans = admit_spans(cache, request, max_chunk=4, token_budget=1)
    assert spans == [Span(6, 7)]
    release(cache, sequence)
    assert admit_spans(cache, request, max_chunk=4)[1] == [Span(6, 10)]


@pytest.mark.parametrize("form", ["rows", "sequences", "sequence"])
def test_a_part_counts_as_far_as_it_was_handed_out(store: StoreName, form: str) -> None:
    """chunk-12: a prompt of 64 cut to [0,16), told without a number: 16 in every form, alone or beside a decode."""
    cache = build(store, 64)
    (decoding,) = admit(cache, Request("d", tokens(range(900, 907))))
    compute(cache, decoding)
    finish(cache, cache.grow(decoding, tokens(907)))
    (sequence,) = admit(cache, Request("a", tokens(range(64))), max_chunk=16)
    both = [sequence, decoding]
    for part in (16, 32):
        if form == "rows":
            cache.commit(np.array([one.row for one in both], np.int32))
        elif form == "sequences":
            cache.commit(both)
        else:
            for one in both:
                cache.commit(one)
        check(cache)
        assert (sequence.computed, sequence.ran, decoding.computed) == (part, part, 8)
        assert start_of(cache, tokens(range(100))) == part
        batch = try_admit(cache, continuing=[sequence], max_chunk=16)
        assert batch.spans == {sequence: Span(part, part + 16)}
    release(cache, *both)


def test_a_prompt_under_way_does_not_grow(store: StoreName) -> None:
    """chunk-13: a token for a prompt of which a part is not handed out; then the rest, and the token."""
    cache = build(store, 64)
    (sequence,) = admit(cache, Request("a", tokens(range(10))), max_chunk=4)
    for rows in (sequence, np.array([sequence.row], np.int32)):
        with pytest.raises(StateError, match="were handed out to be computed"):
            cache.grow(rows, tokens(10))
    compute(cache, sequence)
    try_admit(cache, continuing=[sequence])
    finish(cache, cache.grow(sequence, tokens(10)))
    assert (sequence.computed, sequence.ran, sequence.length) == (4, 11, 11)
    release(cache, sequence)


def test_a_step_that_is_run_again_covers_what_was_generated_meanwhile(store: StoreName) -> None:
    """chunk-14: 8 tokens handed out, a ninth grown, the step lost; handed out again in parts: [0,4), then [4,9)."""
    cache = build(store, 64)
    (sequence,) = admit(cache, Request("a", tokens(range(8))))
    finish(cache, cache.grow(sequence, tokens(8)))
    batch = try_admit(cache, continuing=[sequence], max_chunk=4)
    assert (batch.spans, sequence.ran) == ({sequence: Span(0, 4)}, 4)
    compute(cache, sequence)
    assert (sequence.computed, start_of(cache, tokens(range(20)))) == (4, 4)
    assert try_admit(cache, continuing=[sequence]).spans == {sequence: Span(4, 9)}
    compute(cache, sequence)
    assert sequence.computed == 9
    release(cache, sequence)


@pytest.mark.parametrize("form", ["rows", "many", "one"])
def test_what_a_transfer_brings_is_told_by_its_number(store: StoreName, form: str) -> None:
    """chunk-15: nothing was handed out to a sequence that waits for its prompt: a bare commit counts nothing."""
    cache = build(store, 64)
    run(cache, Request("first", tokens(range(4))))
    with cache.claim([Request("a", tokens(range(12)))], purpose="decode") as claims:
        (sequence,) = cache.admit(claims).sequences
    assert (sequence.start, sequence.ran, sequence.length) == (4, 4, 12)
    cache.commit(named(sequence, form))
    check(cache)
    assert (sequence.computed, start_of(cache, tokens(range(20)))) == (4, 4)
    with pytest.raises(StateError, match="were handed out to be computed"):
        cache.grow(sequence, tokens(12))
    assert cache.commit(sequence, 12) == 2
    assert (sequence.ran, start_of(cache, tokens(range(20)))) == (12, 12)
    finish(cache, cache.grow(sequence, tokens(12)))
    release(cache, sequence)


def test_a_prompt_s_step_computes_the_source_and_not_its_fork(store: StoreName) -> None:
    """chunk-16: forked while the prompt is computed: nothing was handed out to the fork, and it counts nothing."""
    cache = build(store, 64)
    (sequence,) = admit(cache, Request("a", tokens(range(12))))
    (twin,), plan = fork(cache, sequence, "b")
    finish(cache, plan)
    assert (sequence.ran, twin.ran, twin.length) == (12, 0, 12)
    cache.commit(np.array([twin.row], np.int32))
    check(cache)
    assert (twin.computed, start_of(cache, tokens(range(20)))) == (0, 0)
    cache.commit([sequence, twin])
    assert (sequence.computed, twin.computed, start_of(cache, tokens(range(20)))) == (12, 0, 12)
    assert try_admit(cache, continuing=[twin]).spans == {twin: Span(0, 12)}
    compute(cache, twin)
    assert twin.computed == 12
    release(cache, sequence, twin)


@pytest.mark.parametrize("budget", [1000, 255, 1])
def test_a_budget_is_used_to_the_token(store: StoreName, budget: int) -> None:
    """chunk-17: blocks of 256; every step but the last computes its whole budget, whatever groups there are."""
    full, near = LayerGroup("full"), LayerGroup("near", window=300)
    state = LayerGroup("state", snapshot_every=3584, snapshot_at_end=False)
    mixes = ((full,), (full, near), (full, state), (full, near, state))
    for groups in mixes if budget > 1 else mixes[-1:]:
        cache = build(store, 16, groups=groups, block_size=256, max_chunk=1000, max_length=4096)
        sequence, spans = prefill(cache, Request("a", tokens(range(min(3500, 260 * budget)))), token_budget=budget)
        assert [len(span) for span in spans[:-1]] == [budget] * (len(spans) - 1) and len(spans[-1]) <= budget
        release(cache, sequence)


def test_a_part_that_begins_inside_a_block_ends_at_the_next_snapshot(store: StoreName) -> None:
    """chunk-18: blocks of 4, snapshots every 8, steps of 5: [0,5), [5,8), [8,13), ...: all snapshots are taken."""
    cache = build(store, (16, 8), groups=(LayerGroup("full"), LayerGroup("state", snapshot_every=8)), max_chunk=5)
    sequence, spans = prefill(cache, Request("a", tokens(range(22))))
    assert [span.end for span in spans] == [5, 8, 13, 16, 20, 22]
    release(cache, sequence)
    assert [start_of(cache, tokens(range(n), 99)) for n in (8, 16, 20)] == [8, 16, 20]


@pytest.mark.parametrize(
    ("budget", "ends"), [(64, [40]), (32, [30, 40]), (20, [10, 30, 40]), (26, [10, 36, 40]), (22, [10, 30, 40])]
)
def test_no_step_ends_inside_an_uncut_span(store: StoreName, budget: int, ends: list[int]) -> None:
    """chunk-19: 40 tokens, [10,30) and [30,33) are uncut: a step ends before them, between them or behind them."""
    cache = build(store, 16)
    request = Request("a", tokens(range(40)), uncut=[Span(30, 33), Span(10, 30)])
    sequence, spans = prefill(cache, request, max_chunk=budget)
    assert [span.end for span in spans] == ends
    release(cache, sequence)


def test_an_uncut_span_waits_for_a_budget_that_has_room(store: StoreName) -> None:
    """chunk-20: uncut [4,12) in budgets of 6: [0,4), then it waits, and so does who comes behind; with 8: [4,12)."""
    cache = build(store, 16)
    (sequence,) = admit(cache, Request("a", tokens(range(16)), uncut=[Span(4, 12)]), max_chunk=6)
    assert sequence.ran == 4
    compute(cache, sequence)
    behind = Request("b", tokens(range(100, 104)))
    batch = try_admit(cache, behind, continuing=[sequence], token_budget=6, max_chunk=16)
    assert (batch.spans, batch.waiting, batch.refused[0].reason) == ({}, [sequence], "tokens")
    batch = try_admit(cache, behind, continuing=[sequence], token_budget=8, max_chunk=16)
    assert (list(batch.spans.values()), batch.refused[0].have) == ([Span(4, 12)], 0)
    release(cache, sequence)
    first = Request("c", tokens(range(200, 216)), uncut=[Span(0, 8)])
    (refusal,) = try_admit(cache, first, token_budget=6, max_chunk=16).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.never) == ("tokens", 8, 6, False)


def test_an_uncut_span_longer_than_any_step_is_refused_for_good(store: StoreName) -> None:
    """chunk-21: a span of 9 where no step computes more than 8; of 8 it is admitted."""
    cache = build(store, 16, max_chunk=8)
    (refusal,) = try_admit(cache, Request("a", tokens(range(16)), uncut=[Span(4, 13)])).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.never) == ("tokens", 9, 8, True)
    sequence, spans = prefill(cache, Request("a", tokens(range(16)), uncut=[Span(4, 12)]))
    assert [span.end for span in spans] == [4, 12, 16]
    release(cache, sequence)


def test_a_hit_may_end_inside_an_uncut_span(store: StoreName) -> None:
    """chunk-22: 6 tokens are cached, [4,12) is uncut: the rest of it is computed in one step."""
    cache = build(store, 16)
    run(cache, Request("seed", tokens(range(6))))
    request = Request("a", tokens(range(16)), uncut=[Span(4, 12)])
    sequence, spans = prefill(cache, request, max_chunk=6)
    assert spans == [Span(6, 12), Span(12, 16)]
    release(cache, sequence)


def test_no_snapshot_is_taken_inside_an_uncut_span(store: StoreName) -> None:
    """chunk-23: snapshots every 8 and at the last edge, 20; uncut [6,10) and [18,21): one at 16, the last edge left."""
    for prompt, ends, found in ((22, [16, 22], [0, 16, 16]), (17, [16, 17], [0, 16, 17])):
        cache = build(store, (32, 8), groups=(LayerGroup("full"), LayerGroup("state", snapshot_every=8)))
        uncut = [span for span in (Span(6, 10), Span(18, 21)) if span.end <= prompt]
        sequence, spans = prefill(cache, Request("a", tokens(range(prompt)), uncut=uncut))
        assert [span.end for span in spans] == ends
        release(cache, sequence)
        assert [start_of(cache, tokens(range(n), 99)) for n in (8, 16, 20)] == found
    for uncut, last in (([Span(18, 21)], 16), ([Span(18, 21), Span(13, 18)], 12), ([Span(2, 22)], 0)):
        cache = build(store, (32, 8), groups=(LayerGroup("full"), LayerGroup("state", snapshot_every=0)))
        sequence, _ = prefill(cache, Request("a", tokens(range(22)), uncut=uncut))
        release(cache, sequence)
        assert start_of(cache, tokens(range(22))) == last


def test_uncut_spans_that_cannot_be(store: StoreName) -> None:
    """chunk-24: outside the prompt, overlapping, empty, no spans, parted by the length, with a resume point inside."""
    cache, text = build(store, 16), tokens(range(16))
    wrong: list[tuple[str, Any]] = [
        ("it has 16 tokens", [Span(12, 17)]),
        ("they overlap", [Span(8, 12), Span(4, 9)]),
        ("its uncut spans are", [Span(4, 4)]),
        ("its uncut spans are", [(4, 8)]),
        ("its uncut spans are", 4),
    ]
    for fact, uncut in wrong:
        with pytest.raises(InputError, match=fact):
            Request("a", text, uncut=uncut)
    with pytest.raises(InputError, match="no step ends inside the uncut span that begins at 6"):
        Request("a", text, uncut=[Span(6, 10)], resume_points=[8])
    with pytest.raises(InputError, match="room is made for 8 of its 16 tokens"):
        cache.claim([Request("a", text, uncut=[Span(6, 10)], length=8)])
    check(cache)


def test_uncut_spans_of_a_request_that_goes_on(store: StoreName) -> None:
    """chunk-25: suspended inside its prompt's uncut [4,12), behind 16 tokens, and cut to 6: [4,12), [4,12), [4,6)."""
    first = Request("a", tokens(range(16)), uncut=[Span(4, 12)])
    cache = build(store, 16, max_chunk=8)
    (sequence,) = admit(cache, first)
    compute(cache, sequence)
    assert (sequence.computed, cache.suspend(sequence).uncut) == (4, (Span(4, 12),))
    assert first.continued(tokens(range(18)), 16).uncut == (Span(4, 12),)
    assert first.continued(tokens(range(6)), 6).uncut == (Span(4, 6),)
    assert first.continued(tokens(range(4)), 4).uncut == ()


def test_a_prompt_with_a_state_is_suspended_inside_a_block(store: StoreName) -> None:
    """chunk-26: 6 of 22 tokens computed, in blocks of 4: it resumes at 6, its state included."""
    cache = build(store, (16, 8), groups=(LayerGroup("full"), LayerGroup("state", snapshot_every=16)))
    (sequence,) = admit(cache, Request("a", tokens(range(22))), max_chunk=6)
    compute(cache, sequence)
    request = cache.suspend(sequence)
    check(cache)
    (sequence,) = admit(cache, request, max_chunk=6)
    assert (sequence.start, sequence.ran) == (6, 12)
    release(cache, sequence)
