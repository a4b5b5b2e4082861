"""Cross attention: the encoder's stream, shared as a whole or not at all. Rows `cross`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from quire import Cache, Encoder, InputError, LayerGroup, Request, Scope, Sequence, Span, Stored, check
from quire.core.records.request import Int32
from quire.core.state.prepared import Purpose
from quire.core.store import StoreName

from ..conftest import admit, build, compute, decode, finish, fork, got, named, release, run, tokens, try_admit

FULL, CROSS = LayerGroup("full"), LayerGroup("cross", cross=True)
DIGEST = b"0123456789abcdef"


def build_pair(store: StoreName, slots: int = 16, **options: Any) -> Cache:
    """A decoder's full group and a cross group of `slots`."""
    return build(store, (64, slots), groups=(FULL, CROSS), **options)


def heard(*parts: int | Iterable[int]) -> Encoder:
    """An encoder's input named by its tokens."""
    content = tokens(*parts)
    return Encoder(len(content), content)


def found(cache: Cache, prompt: Int32, encoder: Encoder | None, **request: Any) -> tuple[int, int, tuple[int, ...]]:
    """Start, start in the encoder's stream, slots needed; nothing is kept."""
    with cache.claim([Request("probe", prompt, encoder=encoder, **request)]) as claims:
        check(cache)
        return claims[0].start, claims[0].encoder_start, claims[0].slots_needed


def test_equal_inputs_share_every_page(store: StoreName) -> None:
    """cross-01: ten encoder tokens, three blocks: a second request with other text shares all three, also the last."""
    cache = build_pair(store)
    (first,) = admit(cache, Request("a", tokens(range(9)), encoder=heard(range(100, 110))))
    assert (first.slots(1).tolist(), cache.num_free(1), first.encoder_computed) == ([0, 1, 2], 13, 0)
    compute(cache, first)
    assert first.encoder_computed == 10
    assert found(cache, tokens(range(50, 59)), heard(range(100, 110))) == (0, 10, (3, 0))
    (second,) = admit(cache, Request("b", tokens(range(50, 59)), encoder=heard(range(100, 110))))
    assert (second.slots(1).tolist(), second.encoder_computed, cache.num_free(1)) == ([0, 1, 2], 10, 13)
    release(cache, first)
    assert cache.num_free(1) == 13
    release(cache, second)
    assert (cache.num_free(1), cache.usage(0, 1).idle) == (16, 3)


@pytest.mark.parametrize("prompt", [range(9), range(50, 59)])
def test_inputs_that_only_begin_alike_share_nothing(store: StoreName, prompt: range) -> None:
    """cross-02: nine of ten encoder tokens in common, or the first eight alone: every state depends on all: nothing."""
    cache = build_pair(store)
    run(cache, Request("a", tokens(range(9)), encoder=heard(range(100, 110))))
    for other in (heard(range(100, 109), 7), heard(range(100, 108)), heard(range(100, 111))):
        assert found(cache, tokens(prompt), other) == (0, 0, (3, -(-other.length // 4)))


def test_a_digest_names_what_has_no_tokens(store: StoreName) -> None:
    """cross-03: equal digests of equal length share; another digest, another length, or tokens instead do not."""
    cache = build_pair(store)
    run(cache, Request("a", tokens(range(9)), encoder=Encoder(10, digest=DIGEST)))
    other = tokens(range(50, 59))
    assert found(cache, other, Encoder(10, digest=DIGEST)) == (0, 10, (3, 0))
    for stranger in (Encoder(10, digest=DIGEST[::-1]), Encoder(9, digest=DIGEST), heard(range(10))):
        assert found(cache, other, stranger) == (0, 0, (3, 3))


def test_an_input_without_a_name_is_not_reused(store: StoreName) -> None:
    """cross-04: neither tokens nor digest: slots by the length alone, no reuse, nothing stored, no error."""
    cache = build_pair(store)
    for name in range(2):
        (sequence,) = admit(cache, Request(name, tokens(range(9)), encoder=Encoder(10)))
        assert (sequence.start, len(sequence.slots(1)), cache.num_free(1)) == (0, 3, 13)
        compute(cache, sequence)
        release(cache, sequence)
        assert (cache.usage(0, 0).empty, cache.usage(0, 1).empty) == (64, 16)
    assert [cache.stats(1).reused, cache.stats(1).missed] == [0, 6]


def test_without_an_encoder_there_are_no_cross_pages(store: StoreName) -> None:
    """cross-05: a request of text alone takes no cross slot and is found by text alone."""
    cache = build_pair(store)
    (sequence,) = admit(cache, Request("a", tokens(range(9))))
    assert (sequence.slots(1).tolist(), sequence.encoder_computed, cache.num_free(1)) == ([], 0, 16)
    decode(cache, sequence, 9, 10)
    forks, plan = fork(cache, sequence, "b")
    finish(cache, plan)
    release(cache, sequence, *forks)
    assert found(cache, tokens(range(9)), None) == (8, 0, (1, 0))


def test_scopes_share_no_encoder_pages(store: StoreName) -> None:
    """cross-06: the same text and the same input under another salt: nothing of either."""
    cache = build_pair(store)
    run(cache, Request("a", tokens(range(9)), encoder=heard(range(10)), scope=Scope(salt="x")))
    assert found(cache, tokens(range(9)), heard(range(10))) == (0, 0, (3, 3))
    assert found(cache, tokens(range(9)), heard(range(10)), scope=Scope(salt="x")) == (8, 10, (1, 0))


def test_the_encoder_takes_no_part_in_the_start(store: StoreName) -> None:
    """cross-07: text over this input cached: start 8; over another: 0; other text: 0 and 10; spans name both."""
    cache = build_pair(store)
    run(cache, Request("a", tokens(range(9)), encoder=heard(range(10))))
    run(cache, Request("b", tokens(range(50, 59)), encoder=heard(range(20, 30))))
    assert found(cache, tokens(range(9)), heard(range(10))) == (8, 10, (1, 0))
    assert found(cache, tokens(range(9)), heard(range(20, 30))) == (0, 10, (3, 0))
    assert found(cache, tokens(range(9)), None) == (0, 0, (3, 0))
    assert found(cache, tokens(range(70, 79)), heard(range(20, 30))) == (0, 10, (3, 0))
    with cache.claim([Request("c", tokens(range(9)), encoder=heard(range(10)))], purpose="decode") as claims:
        assert claims[0].spans == ((Span(0, 9),), (Span(0, 10),)) and claims[0].wanted_blocks == ((Span(2, 3),), ())
        assert claims[0].start == 9


def test_decoding_takes_no_cross_slots_and_beams_share_them(store: StoreName) -> None:
    """cross-08: three beams over ten encoder tokens, 20 tokens sampled: three cross slots in all, first to last."""
    cache = build_pair(store)
    (first,) = admit(cache, Request("a", tokens(range(9)), encoder=heard(range(10)), beams=3))
    compute(cache, first)
    forks, plan = fork(cache, first, "b", "c")
    assert {move.group for move in plan} == {0}
    finish(cache, plan)
    for beam in (first, *forks):
        decode(cache, beam, *range(20))
    assert ([beam.slots(1).tolist() for beam in (first, *forks)], cache.num_free(1)) == ([[0, 1, 2]] * 3, 13)
    release(cache, first, *forks)
    assert (cache.num_free(0), cache.num_free(1)) == (64, 16)


def test_cross_pages_are_evicted_and_refused_like_others(store: StoreName) -> None:
    """cross-09: 4 slots: a second input waits for the first, then takes its slots; one of 25 blocks never fits."""
    cache = build_pair(store, 4)
    (first,) = admit(cache, Request("a", tokens(range(9)), encoder=heard(range(10))))
    (refusal,) = try_admit(cache, Request("b", tokens(range(50, 59)), encoder=heard(range(20, 30)))).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.group, refusal.never) == ("slots", 3, 1, 1, False)
    compute(cache, first)
    release(cache, first)
    assert run(cache, Request("b", tokens(range(50, 59)), encoder=heard(range(20, 30)))).start == 0
    assert (found(cache, tokens(range(9)), heard(range(10))), cache.stats(1).dropped) == ((8, 4, (1, 2)), 2)
    (refusal,) = try_admit(cache, Request("c", tokens(range(3)), encoder=Encoder(100))).refused
    assert (refusal.need, refusal.have, refusal.group, refusal.never) == (25, 4, 1, True)


def test_a_suspended_sequence_comes_back_with_its_encoder(store: StoreName) -> None:
    """cross-10: suspended after two sampled tokens: resumed at 10 of 11, with all ten places of the encoder."""
    cache = build_pair(store)
    (sequence,) = admit(cache, Request("a", tokens(range(9)), encoder=heard(range(10))))
    decode(cache, sequence, 9, 10)
    resumed = cache.suspend(sequence)
    check(cache)
    (sequence,) = admit(cache, resumed)
    assert (got(sequence).start, sequence.encoder_computed, sequence.counts(1).reused) == (10, 10, 3)
    release(cache, sequence)


def test_an_encoder_nobody_reads_is_refused(store: StoreName) -> None:
    """cross-11: no cross group, or tokens that are not as many as the length: errors. Too long: refused permanently."""
    with pytest.raises(InputError, match="10 tokens are given"):
        Encoder(9, tokens(range(10)))
    cache, narrow = build(store, 8), build_pair(store, max_encoder_length=8)
    with pytest.raises(InputError, match="no layer group reads it"):
        cache.claim([Request("a", tokens(range(9)), encoder=heard(range(10)))])
    check(cache)
    (refusal,) = try_admit(narrow, Request("a", tokens(range(9)), encoder=heard(range(10)))).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.group, refusal.never) == ("tokens", 10, 8, 1, True)


def test_pages_of_both_streams_are_counted_apart(store: StoreName) -> None:
    """cross-12: two requests, one input: the text misses 6 pages, the encoder's stream misses 3 and reuses 3."""
    cache = build_pair(store, events=True)
    for name in (0, 50):
        run(cache, Request(name, tokens(range(name, name + 9)), encoder=heard(range(10))))
    text, across = cache.stats(0), cache.stats(1)
    assert (text.missed, text.reused, text.allocated) == (6, 0, 6)
    assert (across.missed, across.reused, across.allocated) == (3, 3, 3)
    stored = [(event.group, len(event.hashes)) for event in cache.take_events() if isinstance(event, Stored)]
    assert sorted(stored) == [(0, 1), (0, 1), (0, 2), (0, 2), (1, 3)]


def waiting(cache: Cache) -> Sequence:
    """A sequence to decode: its text is all there, of its encoder's places a transfer is to bring 4..10."""
    for place in (0, 50):
        run(cache, Request(place, tokens(range(place, place + 8)), encoder=heard(range(place, place + 10))))
    with cache.claim([Request("a", tokens(range(8)), encoder=heard(range(10)))], purpose="decode") as claims:
        assert (claims[0].start, claims[0].encoder_start, claims[0].wanted_blocks[1]) == (8, 4, (Span(1, 3),))
        batch = cache.admit(claims)
    finish(cache, batch.plan)
    (sequence,) = batch.sequences
    return sequence


@pytest.mark.parametrize("form", ["one", "many", "rows"])
def test_a_bare_commit_does_not_make_an_encoder_s_pages(store: StoreName, form: str) -> None:
    """cross-13: what a transfer brings of the encoder is there once the length is told; a bare commit counts none."""
    cache = build_pair(store, 4)
    sequence = waiting(cache)
    given = named(sequence, form)
    assert (cache.commit(given), sequence.encoder_computed) == (0, 4)
    check(cache)
    assert found(cache, tokens(range(70, 78)), heard(range(10)))[1] == 4
    assert (cache.commit(given, np.array([8], np.int32)), sequence.encoder_computed) == (2, 10)
    check(cache)
    assert found(cache, tokens(range(70, 78)), heard(range(10)))[1] == 10


@pytest.mark.parametrize("form", ["one", "many", "rows"])
def test_a_bare_commit_of_what_a_transfer_brings_makes_no_encoder_s_pages(store: StoreName, form: str) -> None:
    """cross-18: neither text nor encoder have come: nothing was handed out, so nothing has read the encoder."""
    cache = build_pair(store, 4)
    with cache.claim([Request("a", tokens(range(8)), encoder=heard(range(10)))], purpose="decode") as claims:
        (sequence,) = cache.admit(claims).sequences
    given = named(sequence, form)
    assert (cache.commit(given), sequence.computed, sequence.encoder_computed) == (0, 0, 0)
    check(cache)
    assert found(cache, tokens(range(70, 78)), heard(range(10)))[1] == 0
    assert (cache.commit(given, np.array([8], np.int32)), sequence.encoder_computed) == (5, 10)


@pytest.mark.parametrize("store_it", [True, False])
def test_an_encoder_that_never_came_is_not_found(store: StoreName, store_it: bool) -> None:
    """cross-14: such a sequence is released before the transfer comes: its encoder's pages are nobody's."""
    cache = build_pair(store, 4)
    sequence = waiting(cache)
    compute(cache, sequence)
    release(cache, sequence, store=store_it)
    assert found(cache, tokens(range(70, 78)), heard(range(10)))[1] == 4


def test_a_step_has_read_its_encoder(store: StoreName) -> None:
    """cross-15: such a sequence grows and runs: the commit of that step, bare, makes its encoder's pages findable."""
    cache = build_pair(store, 4)
    sequence = waiting(cache)
    finish(cache, cache.grow(sequence, tokens(8)))
    assert (sequence.encoder_computed, compute(cache, sequence), sequence.encoder_computed) == (4, 2, 10)


@pytest.mark.parametrize("form", ["rows", "sequence"])
@pytest.mark.parametrize(("purpose", "start"), [("compute", 7), ("decode", 8)])
def test_text_outlives_its_encoders_pages(store: StoreName, purpose: Purpose, start: int, form: str) -> None:
    """cross-16: 3 cross slots: the text is found, its input was evicted; a step, or a transfer, brings it back."""
    cache = build_pair(store, 3)
    for name, first in (("a", 100), ("b", 200)):
        run(cache, Request(name, tokens(range(8)), encoder=heard(range(first, first + 10))))
    again = Request("again", tokens(range(8)), encoder=heard(range(100, 110)))
    with cache.claim([again], purpose) as claims:
        assert (claims[0].start, claims[0].encoder_start) == (start, 0)
        batch = cache.admit(claims)
    finish(cache, batch.plan)
    (sequence,) = batch.sequences
    assert (sequence.computed, sequence.encoder_computed) == (start, 0)
    named = sequence if form == "sequence" else np.array([sequence.row], np.int32)
    cache.commit(named, 8 if purpose == "decode" else None)  # a transfer tells the length, a step what it was handed
    check(cache)
    assert (sequence.computed, sequence.encoder_computed) == (8, 10)
    release(cache, sequence)
    assert found(cache, tokens(range(8)), heard(range(100, 110)))[:2] == (7, 10)
    assert found(cache, tokens(range(8)), heard(range(200, 210)))[:2] == (7, 0)


def test_the_first_part_of_a_prompt_reads_the_whole_encoder(store: StoreName) -> None:
    """cross-17: 12 tokens in parts of 4: the input is there after the first; told before it has run, it is not."""
    cache = build_pair(store)
    (sequence,) = admit(cache, Request("a", tokens(range(12)), encoder=heard(range(100, 110))), max_chunk=4)
    cache.commit(sequence, 0)
    assert (sequence.computed, sequence.encoder_computed) == (0, 0)
    cache.commit(np.array([sequence.row], np.int32))
    assert (sequence.computed, sequence.encoder_computed) == (4, 10)
    assert found(cache, tokens(range(12)), heard(range(100, 110)))[:2] == (4, 10)
    release(cache, sequence)
