"""Tails with a state: what somebody computed last, kept whole for whoever goes on right behind it. Rows `tail`."""

from __future__ import annotations

from typing import Any

import pytest

from quire import Cache, CacheConfig, LayerGroup, Request, Sequence, Span, TierConfig, check
from quire.core.store import StoreName

from ..conftest import Clock, admit, build, compute, decode, finish, release, start_of, tokens, try_admit
from .test_states import FULL, moved, state
from .test_windows import prefill


def build_talk(store: StoreName, slots: int = 8, host: int = 0, **options: Any) -> Cache:
    """Blocks of 16, a full group and a state that is kept at the ends of prompts."""
    cold = (64, host) if host else 0
    return build(store, (64, slots), cold, groups=(FULL, state(0)), block_size=16, **options)


def say(cache: Cache, prompt: int, answer: int, first: int = 0, **request: Any) -> Sequence:
    """A prompt of first.. and its answer, all of it computed but for the last token; it lives still."""
    sequence, _ = prefill(cache, Request(("talk", first, prompt), tokens(range(first, first + prompt)), **request))
    decode(cache, sequence, *range(first + prompt, first + prompt + answer - 1))
    compute(cache, sequence)
    return sequence


def test_the_next_turn_goes_on_where_the_answer_ended(store: StoreName) -> None:
    """tail-01: 40 tokens and 30 sampled: the next turn starts at 69, in the very state; no page is copied."""
    cache = build_talk(store)
    first = say(cache, 40, 30)
    assert (first.computed, slot := first.state_slot(1), pages := first.slots().tolist()) == (69, 0, [0, 1, 2, 3, 4])
    release(cache, first)
    assert (cache.usage(0, 1).idle, cache.stats(1).copied) == (2, 1)
    with cache.claim([Request("next", tokens(range(70), range(500, 520)))]) as claims:
        assert (claims[0].start, claims[0].num_tokens, claims[0].slots_needed) == (69, 21, (2, 2))
        assert [[(span.start, span.end) for span in spans] for spans in claims[0].spans] == [[(0, 69)], [(64, 69)]]
        batch = cache.admit(claims)
    check(cache)
    (turn,) = batch.sequences
    assert (moved(batch.plan), turn.state_slot(1), turn.slots().tolist()[:5]) == ([], slot, pages)
    assert (turn.counts(1).reused_partial, turn.counts(1).copied, batch.spans[turn].end) == (1, 0, 80)
    finish(cache, batch.plan)
    assert start_of(cache, tokens(range(70), 900)) == 32  # it is taken
    release(cache, turn, store=False)


@pytest.mark.parametrize(("shared", "start"), [(31, 0), (66, 32), (68, 32), (69, 69), (70, 69)])
def test_a_tail_is_hit_as_a_whole_or_not_at_all(store: StoreName, shared: int, start: int) -> None:
    """tail-02: of 69 computed tokens a prompt shares 31, 66, 68, 69, 70; a prompt that ends with them starts at 32."""
    cache = build_talk(store)
    release(cache, say(cache, 40, 30))
    assert start_of(cache, tokens(range(shared), 900, 901)) == start
    assert start_of(cache, tokens(range(69))) == 32  # its last token is computed
    assert start_of(cache, tokens(range(70), 900), reuse_limit=68) == 32
    assert start_of(cache, tokens(range(70), 900), reuse_limit=69) == 69


def test_without_partial_hits_there_are_no_tails(store: StoreName) -> None:
    """tail-12: the same without partial hits: start 32, and no more pages are kept than full blocks have."""
    cache = build_talk(store, partial_reuse=False)
    release(cache, say(cache, 40, 30))
    assert (start_of(cache, tokens(range(70), 900)), cache.usage(0, 0).idle, cache.usage(0, 1).idle) == (32, 4, 1)


def test_several_go_on_from_one_tail(store: StoreName) -> None:
    """tail-03: three in one batch: two have copies of all its pages, the last one has the pages themselves."""
    cache = build_talk(store)
    release(cache, say(cache, 40, 30))
    batch = try_admit(cache, *(Request(n, tokens(range(70), n, n)) for n in (500, 600, 700)))
    assert [sequence.start for sequence in batch.sequences] == [69, 69, 69]
    copies = [(kind, group, src) for kind, group, src, _ in moved(batch.plan)]
    assert copies == [("copy", 0, (0, 4)), ("copy", 1, (0, 0))] * 2
    assert [s.counts(1).copied for s in batch.sequences] == [1, 1, 0] and batch.sequences[2].state_slot(1) == 0
    assert len({s.state_slot(1) for s in batch.sequences}) == 3
    for sequence in batch.sequences:
        compute(cache, sequence)
    release(cache, *batch.sequences)
    assert [start_of(cache, tokens(range(70), n, n, 9)) for n in (500, 600, 700, 800)] == [72, 72, 72, 32]


def test_the_longest_tail_of_several(store: StoreName) -> None:
    """tail-04: answers of 27 and 30 to one prompt: tails at 66 and 69; each serves what goes on behind it."""
    cache = build_talk(store)
    release(cache, say(cache, 40, 27))
    release(cache, say(cache, 40, 30))
    ends = {n: start_of(cache, tokens(range(n), 900)) for n in (65, 66, 68, 69, 70)}
    assert ends == {65: 32, 66: 66, 68: 66, 69: 69, 70: 69}


def test_a_tail_without_one_of_its_pages_is_none(store: StoreName) -> None:
    """tail-05: 3 state slots: strangers push out the snapshot at 32, then the tail's state: start 69, 69, 0."""
    cache = build_talk(store, slots=3)
    release(cache, say(cache, 40, 30))
    found = []
    for first in (1000, 2000, 3000):
        found.append(start_of(cache, tokens(range(70), 900)))
        release(cache, say(cache, 20, 2, first=first), store=False)
    assert (found, start_of(cache, tokens(range(70), 900)), cache.usage(0, 0).idle) == ([69, 69, 0], 0, 8)


def test_windows_read_behind_a_tail(store: StoreName) -> None:
    """tail-06: full, window 24 and state; 40 + 30 and 4 turns of 31 more: every one starts where the last ended."""
    groups = (FULL, LayerGroup("near", window=24), state(0))
    cache = build(store, (64, 9, 6), groups=groups, block_size=16, max_chunk=32)
    release(cache, say(cache, 40, 30))
    found = []
    for end in (100, 131, 162, 193):
        (turn,) = admit(cache, Request(end, tokens(range(end))))
        found.append(turn.start)
        compute(cache, turn)
        while turn.computed < turn.prompt_end:
            try_admit(cache, continuing=[turn])
            compute(cache, turn)
        release(cache, turn)
    assert found == [69, 100, 131, 162]


@pytest.mark.parametrize(("length", "starts"), [(48, [0, 32, 32, 48]), (47, [0, 32, 32, 32]), (16, [0, 16, 16, 16])])
def test_a_prompt_that_ends_on_a_block_edge_is_kept_there_too(store: StoreName, length: int, starts: list[int]) -> None:
    """tail-07: 48 tokens keep a state at 32 and at 48, 47 at 32, 16 at 16; prompts share 15, 32, 47, 48."""
    cache = build_talk(store)
    sequence, spans = prefill(cache, Request("a", tokens(range(length))))
    assert spans[-1].end == length and cache.usage(0, 1).idle == len({start for start in starts if start})
    release(cache, sequence, store=False)
    assert [start_of(cache, tokens(range(min(n, length)), 900)) for n in (15, 32, 47, 48)] == starts


def test_a_step_under_way_leaves_no_tail(store: StoreName) -> None:
    """tail-08: 69 computed, a 70th handed out: the state may have gone on, so there is no tail, 1 skipped."""
    cache = build_talk(store)
    sequence = say(cache, 40, 30)
    finish(cache, cache.grow(sequence, tokens(69)))
    release(cache, sequence)
    assert (start_of(cache, tokens(range(80))), cache.stats(1).skipped, cache.usage(0, 0).idle) == (32, 1, 4)


def test_a_held_state_is_no_tail(store: StoreName) -> None:
    """tail-09: a hold on its last pages while it ends: nothing of the tail is stored; start 32."""
    cache = build_talk(store)
    sequence = say(cache, 40, 30)
    held = cache.hold(sequence, Span(0, 69))
    assert held is not None
    release(cache, sequence)
    assert start_of(cache, tokens(range(80))) == 32
    cache.drop(held)
    check(cache)


def test_a_tail_on_the_host_comes_up_whole(store: StoreName) -> None:
    """tail-10: 3 + 4 state slots: the tail's state was pushed down; it is taken over from there, one onboard."""
    cache = build_talk(store, slots=3, host=8)
    release(cache, say(cache, 40, 30))
    others = [say(cache, 3, 2, first=1000 * n) for n in (1, 2, 3)]
    release(cache, *others, store=False)
    batch = try_admit(cache, Request("next", tokens(range(70), 900)))
    (turn,) = batch.sequences
    assert (turn.start, turn.counts(1).onboarded, turn.counts(1).partial_from) == (69, 1, (0, 1))
    assert [(kind, group) for kind, group, _, _ in moved(batch.plan) if group] == [("onboard", 1)]
    release(cache, turn)


def test_a_receipt_counts_what_a_tail_stands_for(store: StoreName) -> None:
    """tail-11: 90 tokens behind a tail of 69: 69 reused, by the state as well; 69..79 short, new, the last token."""
    config = CacheConfig((TierConfig("device", (64, 8)),), groups=(FULL, state(0)), block_size=16, max_sequences=8,
                         max_length=2048, receipts=True)  # fmt: skip
    cache = Cache(config, clock=Clock(), store=store)
    release(cache, say(cache, 40, 30))
    with cache.claim([Request("next", tokens(range(69), range(500, 521)))]) as claims:
        check(cache)
        receipt = claims[0].receipt
    assert (receipt.reused, receipt.hits) == (69, {(0, 0): 69, (0, 1): 69})
    causes = [(miss.cause, miss.start, miss.stop) for miss in receipt.misses]
    assert causes == [("new", 69, 80), ("short", 80, 89), ("last_token", 89, 90)]
