"""One batch: prompts that share whole blocks which an earlier one of the same batch is to compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import Cache, LayerGroup, Request, Sequence, StateError, Stored, check
from quire.core.store import StoreName
from tests.core.conftest import seq
from tests.core.sequences.test_in_flight import edges, found, hybrid, ints, start
from tests.core.sequences.test_pending import WINDOW, flying, goes_on, sharer, sharing


def begins(name: str, length: int = 11, more: int = 0, first: int = 500, **options: Any) -> Request:
    """A prompt that begins as the others do, with so many tokens of its own."""
    return Request(name, np.append(seq(0, length), seq(first, more)).astype(np.int32), **options)


def twins(cache: Cache, length: int = 11) -> tuple[Sequence, Sequence]:
    one, two = start(cache, begins("a", length), begins("b", length))
    check(cache)
    return one, two


def test_two_equal_prompts_of_a_batch_compute_the_common_blocks_once(store: StoreName) -> None:
    cache = sharing(store, events=True, receipts=True)
    batch = cache.add_sequence_batch([begins("a", 101), begins("b", 101)], token_budget=102)
    one, two = batch.sequences
    assert [(span.start, span.end) for span in batch.spans.values()] == [(0, 101), (100, 101)]
    assert batch.num_tokens == 102 and batch.receipts[1].reused == 100
    check(cache)
    assert two.pages()[:25].tolist() == one.pages()[:25].tolist() and two.pages()[25] != one.pages()[25]
    assert (cache.num_free(), two.counts().reused_pending, edges(two)) == (32 - 27, 25, (0, 101, 101, 104))
    step = cache.launch()
    check(cache)
    assert dict(zip(step.rows.tolist(), step.starts.tolist(), strict=True)) == {one.row: 0, two.row: 100}
    assert not [event for event in cache.take_events() if isinstance(event, Stored)], "nothing before the commit"
    assert cache.commit(step, tokens=ints(7, 7)) == 25, "each block is stored once"
    check(cache)
    assert edges(one)[0] == edges(two)[0] == 101
    assert sum(len(event.hashes) for event in cache.take_events() if isinstance(event, Stored)) == 25
    cache.release([one, two])
    check(cache)
    assert cache.num_free() == 32 and found(cache, seq(0, 101)) == 101


def test_claims_in_hand_may_start_later_than_they_said(store: StoreName) -> None:
    cache = sharing(store, receipts=True)
    with cache.claim([begins("a"), begins("b")]) as claims:
        assert [claim.start for claim in claims] == [0, 0]
        kept = list(claims)
        batch = cache.admit(claims)
    assert [one.start for one in batch.sequences] == [0, 8] == [claim.start for claim in kept]
    check(cache)


def test_off_or_all_or_nothing_or_decoding_nothing_is_shared(store: StoreName) -> None:
    for options, limits in (({"share_pending": False}, {}), ({}, {"all_or_nothing": True})):
        cache = sharing(store) if not options else hybrid(store, (LayerGroup("all"),), (32,))
        assert [one.start for one in start(cache, begins("a"), begins("b"), **limits)] == [0, 0]
    cache = sharing(store)
    with cache.claim([begins("a"), begins("b")], purpose="decode") as claims:
        assert [one.counts().reused_pending for one in cache.admit(claims).sequences] == [0, 0]
    pair = start(cache, begins("c", 9, reuse=False), begins("d", 9, reuse=False))
    assert [one.start for one in pair] == [0, 0]
    check(cache)


def test_who_shares_counts_on_what_the_step_really_computes(store: StoreName) -> None:
    cache = sharing(store)
    batch = cache.add_sequence_batch([begins("a", 30), begins("b", 30), begins("c", 30)], max_chunk=10, token_budget=15)
    assert [(span.start, span.end) for span in batch.spans.values()] == [(0, 10), (8, 13)]
    assert [(refusal.request.id, refusal.reason) for refusal in batch.refused] == [("c", "tokens")]
    check(cache)
    cache.commit(cache.launch())
    check(cache)
    assert [one.computed for one in batch.sequences] == [10, 13]


def test_sharers_share_with_one_another(store: StoreName) -> None:
    cache = sharing(store)
    three = start(cache, begins("a", 12), begins("b", 12, 9), begins("c", 12, 9), begins("x", 6, 6, 900))
    check(cache)
    assert [one.start for one in three] == [0, 12, 20, 4]
    assert three[2].pages()[:5].tolist() == three[1].pages()[:5].tolist()
    step = cache.launch()
    check(cache)
    cache.commit(step)
    check(cache)
    assert [one.computed for one in three] == [12, 21, 21, 12]
    cache.release(three)
    check(cache)
    assert (cache.num_free(), found(cache, seq(0, 12))) == (32, 12)


def test_a_batch_shares_behind_what_a_step_in_flight_computes(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache, length=12)
    two, three = start(cache, begins("b", 12, 9), begins("c", 12, 9))
    check(cache)
    assert (two.start, three.start) == (12, 20)
    second = cache.launch()
    check(cache)
    cache.commit(first)
    check(cache)
    assert (one.computed, two.computed, three.computed) == (12, 12, 12)
    cache.commit(second)
    check(cache)
    assert (two.computed, three.computed) == (21, 21)


def test_the_sharer_may_be_launched_later_and_not_before(store: StoreName) -> None:
    cache = sharing(store)
    one, two = twins(cache)
    with pytest.raises(StateError, match="it shares what sequence 'a' is to compute up to 8; launch 'a' with it"):
        cache.launch(two)
    first = cache.launch(one)
    check(cache)
    second = cache.launch(two)
    cache.commit(first)
    check(cache)
    assert (one.computed, two.computed) == (11, 8)
    cache.commit(second)
    check(cache)
    assert two.computed == 11


def test_until_it_is_launched_a_shared_part_stays_as_it_is(store: StoreName) -> None:
    cache = sharing(store)
    one, two = twins(cache)
    for wrong in (
        lambda: cache.commit(one),
        lambda: cache.commit([one, two]),
        lambda: cache.commit(two),
        lambda: cache.trim(one, 5),
        lambda: cache.add_sequence_batch([], continuing=[two]),
        lambda: cache.add_sequence_batch([], continuing=[one], max_chunk=4),
    ):
        with pytest.raises(StateError, match="it shares pages with its batch that are yet to be computed; launch"):
            wrong()
    for ends in (lambda: cache.release(one), lambda: cache.release([one]), lambda: cache.suspend(one)):
        with pytest.raises(StateError, match="sequence 'b' shares what it is to compute up to 8; launch both first"):
            ends()
    check(cache)
    cache.commit(cache.launch())
    check(cache)
    assert (one.computed, two.computed) == (11, 11)


def test_cancelled_before_the_launch_sharers_go_first(store: StoreName) -> None:
    cache = sharing(store)
    one, two = twins(cache)
    cache.release(two)
    check(cache)
    cache.commit(one)
    assert one.computed == 11, "nobody shares with it any more"
    cache.release(one)
    chain = start(cache, begins("p", 0, 12), begins("q", 0, 12), begins("r", 0, 12), begins("s", 0, 8))
    assert [one.start for one in chain] == [0, 8, 8, 4]
    cache.release(chain)
    check(cache)
    assert cache.num_free() == 32 and cache.num_sequences == 0


def test_sharers_of_a_step_that_fails_go_back_in_its_own_batch(store: StoreName) -> None:
    cache = sharing(store)
    one, two = twins(cache)
    told = cache.fail(cache.launch())
    check(cache)
    assert [(back.holder, back.old_start, back.start, back.lost) for back in told] == [
        (one, 11, 0, False), (two, 11, 0, False),
    ]  # fmt: skip
    assert (two.start, two.ran, cache.num_free()) == (0, 0, 32 - 6)
    goes_on(cache, two, one)
    cache.release([one, two])
    check(cache)
    assert (cache.num_free(), found(cache, seq(0, 11))) == (32, 11)


def test_a_sharer_that_computes_less_keeps_what_the_other_computed(store: StoreName) -> None:
    cache = sharing(store)
    one, two = twins(cache)
    step = cache.launch()
    place = step.rows.tolist().index(one.row)
    with pytest.raises(StateError, match="others share what it was to compute up to 8"):
        cache.commit(step, ints(*(7 if nth == place else 11 for nth in range(2))))
    cache.commit(step, ints(*(9 if nth == place else 0 for nth in range(2))))
    check(cache)
    assert (one.computed, one.ran, two.computed, two.ran) == (9, 9, 8, 8)


def test_sharers_of_an_owner_whose_page_is_lost_before_the_launch_go_back(store: StoreName) -> None:
    cache = sharing(store)
    one, two = twins(cache)
    told = cache.lose(0, [int(one.slots()[0])]).setbacks
    assert [(back.holder, back.start, back.lost) for back in told] == [(one, 0, False), (two, 0, False)]
    check(cache)
    goes_on(cache, one)
    goes_on(cache, two)


def test_a_failed_step_before_sets_the_whole_chain_back(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache, length=12)
    two, three = start(cache, begins("b", 12, 9), begins("c", 12, 9))
    told = [(back.holder, back.start, back.lost) for back in cache.fail(first)]
    assert told == [(one, 0, False), (two, 0, False), (three, 0, False)]
    check(cache)
    assert not cache.open_steps() and cache.num_free() == 32 - 3 - 6 - 6
    goes_on(cache, one, two, three)


def test_a_sharer_without_room_for_pages_of_its_own_is_lost(store: StoreName) -> None:
    """Two prompts of 3 pages fit 5 slots only as long as they share two."""
    cache = sharing(store, slots=5)
    one, two = twins(cache)
    told = cache.fail(cache.launch())
    check(cache)
    assert [(back.holder, back.start, back.lost) for back in told] == [(one, 0, False), (two, 0, True)]
    assert told[1].request is not None and cache.num_free() == 2
    goes_on(cache, one)


def test_the_last_that_shares_with_one_that_has_ended_keeps_its_pages(store: StoreName) -> None:
    """The owner has ended, and its pages are nobody else's: no other are taken."""
    cache = sharing(store, slots=5)
    one, two = twins(cache)
    step, pages = cache.launch(), two.pages().tolist()
    cache.release(one)
    told = cache.fail(step)
    check(cache)
    assert [(back.holder, back.start, back.lost) for back in told] == [(two, 0, False)]
    assert two.pages().tolist() == pages and cache.num_free() == 2
    goes_on(cache, two)


def test_a_sharer_of_one_that_shares_what_fails(store: StoreName) -> None:
    """The failed step computes nothing of it: it shares what is to come behind that, of one that goes back."""
    cache = sharing(store, slots=64)
    (one,), (same,) = start(cache, begins("a", 17)), start(cache, begins("x", 17))
    before, first = cache.launch([same]), cache.launch([one])
    with cache.claim([begins("b", 16, 9), begins("c", 16, 9)]) as claims:
        assert [claim.start for claim in claims] == [16, 16]
        cache.commit(before)
        two, three = cache.admit(claims).sequences
    check(cache)
    assert (two.computed, two.ran, three.computed, three.start) == (0, 25, 16, 24)
    told = [(back.holder, back.start, back.lost) for back in cache.fail(first)]
    assert told == [(one, 0, False), (two, 0, False), (three, 16, False)]
    check(cache)
    goes_on(cache, one, two, three)
    cache.release([one, two, three, same])
    check(cache)
    assert cache.num_free() == 64


def test_a_window_of_a_batch_is_shared_too(store: StoreName) -> None:
    cache = hybrid(store, WINDOW, (32, 32), share_pending=True, max_chunk=12)
    batch = cache.add_sequence_batch([begins("a", 41), begins("b", 41)], max_chunk=12)
    one, two = batch.sequences
    check(cache)
    assert (two.start, two.counts(1).reused_pending) == (12, 2)
    step = cache.launch()
    cache.commit(step)
    check(cache)
    assert (one.computed, two.computed) == (12, 24)


def test_slots_are_counted_with_what_is_shared(store: StoreName) -> None:
    """Each alone takes 6 pages of 8; together they take 7, which only their sharing makes possible."""
    cache = sharing(store, slots=8)
    batch = cache.add_sequence_batch([begins("a", 21), begins("b", 21), begins("c", 9, 9)])
    assert [one.start for one in batch.sequences] == [0, 20]
    assert [(refusal.request.id, refusal.reason) for refusal in batch.refused] == [("c", "slots")]
    check(cache)


def test_what_is_cleared_before_the_launch_is_not_stored(store: StoreName) -> None:
    for again in (False, True):
        cache = sharing(store)
        _, two = twins(cache)
        cache.clear(store_again=again)
        check(cache)
        cache.commit(cache.launch())
        check(cache)
        assert (two.computed, found(cache, seq(0, 11))) == (11, 8 if again else 0)


def test_a_sharer_ends_in_flight_and_its_row_is_used_again(store: StoreName) -> None:
    cache = sharing(store)
    one, two = twins(cache)
    step = cache.launch()
    cache.release(two)
    check(cache)
    three = sharer(cache, "c")
    assert three.start == 8
    cache.commit(step)
    check(cache)
    cache.release(one)
    four, five = cache.add_sequence_batch([begins("d", 11, 9), begins("e", 11, 9)]).sequences
    check(cache)
    assert (four.start, five.start) == (11, 16)
    assert cache.fork(five, ["f"]) is not None
    check(cache)


def test_a_chunk_shorter_than_a_block_has_nothing_to_share(store: StoreName) -> None:
    cache = sharing(store)
    assert [one.start for one in start(cache, begins("a"), begins("b"), begins("c"), max_chunk=2)] == [0, 0, 0]
    check(cache)


def test_who_waits_for_a_refused_one_is_refused(store: StoreName) -> None:
    cache = sharing(store)
    batch = cache.add_sequence_batch([begins("a"), begins("x", 0, 30), begins("b")], token_budget=15)
    assert [one.id for one in batch.sequences] == ["a"]
    assert [(refusal.request.id, refusal.reason) for refusal in batch.refused] == [("x", "tokens"), ("b", "order")]
    check(cache)


def test_who_waits_holds_nothing_that_those_before_need(store: StoreName) -> None:
    """Of 8 pages 4 are idle, and claimed for the last of the batch; the second takes more than is left."""
    cache = sharing(store, slots=8)
    (old,) = start(cache, begins("old", 0, 16))
    cache.commit(old)
    cache.release(old)
    asked = [begins("a", 21), begins("b", 21, 9), begins("d", 21, 9), begins("c", 0, 25)]
    with cache.claim(asked) as claims:
        assert [claim.start for claim in claims] == [0, 0, 0, 16]
        batch = cache.admit(claims)
    assert [one.id for one in batch.sequences] == ["a"]
    told = [(refusal.request.id, refusal.reason) for refusal in batch.refused]
    assert told == [("b", "slots"), ("d", "order"), ("c", "order")]
    check(cache)
    assert cache.num_free() == 2, "nothing is held for who was refused"


def test_others_may_be_launched_before_what_is_shared(store: StoreName) -> None:
    cache = sharing(store)
    one, two, other = start(cache, begins("a"), begins("b"), begins("x", 0, 5))
    first = cache.launch(other)
    check(cache)
    second = cache.launch([two, one])
    check(cache)
    cache.commit(first)
    cache.commit(second)
    check(cache)
    assert (one.computed, two.computed) == (11, 11)


def test_all_are_checked_before_the_first_of_several_ends(store: StoreName) -> None:
    cache = sharing(store)
    one, _, other = start(cache, begins("a"), begins("b"), begins("x", 0, 5))
    with pytest.raises(StateError, match="sequence 'b' shares what it is to compute"):
        cache.release([other, one])
    assert other.live
    check(cache)


def test_a_window_that_lost_what_only_its_owner_had(store: StoreName) -> None:
    """The sharer has no page of the first blocks; without its owner's it goes all the same."""
    cache = hybrid(store, (LayerGroup("window", window=4),), (24,), share_pending=True)
    one, two = start(cache, begins("a", 20), begins("b", 20))
    assert two.start == 16 and two.pages()[0] < 0
    told = cache.lose(0, [int(one.slots()[0])]).setbacks
    assert [(back.holder, back.lost) for back in told] == [(one, True), (two, True)]
    check(cache)
    assert cache.num_free() == 24


def test_a_sharer_that_has_ended_is_gone_when_its_batch_is_launched(store: StoreName) -> None:
    cache = sharing(store)
    _, first = flying(cache, length=12)
    two, three = start(cache, begins("b", 12, 9), begins("c", 12, 9))
    cache.release(three)
    check(cache)
    cache.commit(first)
    check(cache)
    cache.commit(cache.launch())
    check(cache)
    assert two.computed == 21 and cache.num_sequences == 2


def under_way(cache: Cache, length: int, done: int, **options: Any) -> Sequence:
    """A prompt of which a part is computed."""
    (one,) = start(cache, begins("a", length, **options), max_chunk=done)
    cache.commit(one)
    return one


def test_a_part_of_a_prompt_under_way_is_shared(store: StoreName) -> None:
    cache = sharing(store, receipts=True)
    one = under_way(cache, 101, 48)
    batch = cache.add_sequence_batch([begins("b", 101)], continuing=[one], token_budget=54)
    (two,) = batch.sequences
    assert [(span.start, span.end) for span in batch.spans.values()] == [(48, 101), (100, 101)]
    check(cache)
    assert (two.counts().reused_pending, batch.receipts[0].reused) == (13, 100)
    assert two.pages()[:25].tolist() == one.pages()[:25].tolist() and edges(two) == (48, 101, 101, 104)
    with pytest.raises(StateError, match="launch what was handed out first"):
        cache.commit(one)
    step = cache.launch()
    check(cache)
    assert cache.commit(step) == 13
    check(cache)
    assert one.computed == two.computed == 101
    cache.release([one, two])
    assert found(cache, seq(0, 101)) == 101


def test_the_same_while_its_first_part_is_in_flight(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache, length=30, max_chunk=10)
    batch = cache.add_sequence_batch([begins("b", 30), begins("c", 30)], continuing=[one], max_chunk=15)
    two, three = batch.sequences
    assert [(span.start, span.end) for span in batch.spans.values()] == [(10, 25), (24, 30), (28, 30)]
    check(cache)
    assert edges(two) == (0, 30, 30, 32) and three.pages()[:7].tolist() == two.pages()[:7].tolist()
    second = cache.launch()
    cache.commit(first)
    check(cache)
    assert [one.computed, two.computed, three.computed] == [10, 8, 8]
    cache.commit(second)
    check(cache)
    assert [one.computed, two.computed, three.computed] == [25, 30, 30]


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_part_that_fails_sets_its_sharers_back(store: StoreName, in_flight: bool) -> None:
    cache = sharing(store)
    one, first = flying(cache, length=30, max_chunk=10)
    if not in_flight:
        cache.commit(first)
    (two,) = start(cache, begins("b", 30), continuing=[one])
    second = cache.launch()
    told = cache.fail(first if in_flight else second)
    check(cache)
    assert two.start == (0 if in_flight else 8)
    assert [(back.holder, back.start, back.lost) for back in told] == [
        (one, 0 if in_flight else 10, False), (two, two.start, False),
    ]  # fmt: skip
    goes_on(cache, two, one)


def test_a_part_offers_what_is_handed_out_of_it_and_the_same_text_alone(store: StoreName) -> None:
    """Up to 12 of 30: a claim of the whole text goes on there; another text at that place, none of its own pages, a
    limit before it and a request that reuses nothing find no more than they had."""
    others = (
        (begins("b", 30), 12), (begins("b", 8, 9), 8), (begins("b", 30, reuse_limit=8), 8),
        (begins("b", 30, reuse_limit=11), 8), (begins("b", 30, reuse=False), 0), (begins("b", 30, redo_blocks=1), 8),
    )  # fmt: skip
    for request, begin in others:
        cache = sharing(store)
        one = under_way(cache, 30, 8)
        batch = cache.add_sequence_batch([request, begins("c", 0, 9)], continuing=[one], max_chunk=5)
        assert [span.start for span in batch.spans.values()] == [8, begin, 0]
        check(cache)
        cache.commit(cache.launch())
        check(cache)


def test_a_part_of_less_than_a_block_is_not_waited_for(store: StoreName) -> None:
    cache = sharing(store)
    one = under_way(cache, 30, 8)
    with cache.claim([begins("b", 30)]) as claims:
        kept = list(claims)
        batch = cache.admit(claims, continuing=[one], max_chunk=3)
    assert [span.start for span in batch.spans.values()] == [8, 8] and kept[0].start == 8
    check(cache)


def test_a_claim_behind_a_part_is_refused_as_any_other(store: StoreName) -> None:
    """Its tokens and its slots are counted with what it shares."""
    cases: tuple[tuple[dict[str, Any], str], ...] = (({"token_budget": 53}, "tokens"), ({}, "slots"))
    for options, reason in cases:
        cache = sharing(store, slots=32 if options else 26)
        one = under_way(cache, 101, 48)
        batch = cache.add_sequence_batch([begins("b", 101), begins("c", 101)], continuing=[one], **options)
        check(cache)
        assert [sequence.id for sequence in batch.sequences] == []
        assert [(refusal.request.id, refusal.reason) for refusal in batch.refused] == [("b", reason), ("c", "order")]
        cache.commit(one)
        check(cache)
        assert one.computed == 101


def test_a_part_of_a_window_is_shared_too(store: StoreName) -> None:
    cache = hybrid(store, WINDOW, (32, 32), share_pending=True, max_chunk=12)
    (one,) = start(cache, begins("a", 41))
    cache.commit(one)
    batch = cache.add_sequence_batch([begins("b", 41)], continuing=[one])
    (two,) = batch.sequences
    check(cache)
    assert (two.start, two.counts(1).reused_pending, two.counts(0).reused_pending) == (24, 2, 3)
    cache.commit(cache.launch())
    check(cache)
    assert (one.computed, two.computed) == (24, 36)


def test_a_claim_before_the_launch_finds_nothing_of_what_a_batch_shares(store: StoreName) -> None:
    cache = sharing(store, receipts=True)
    one, two = twins(cache)
    assert edges(two)[1] > 8, "what it shares counts as handed out"
    assert cache.explain(begins("c")).reused == 0
    assert [probe.start for probe in cache.probe([begins("c")])] == [0]
    with cache.claim([begins("c")]) as claims:
        assert [claim.start for claim in claims] == [0], "no step has begun to compute it"
        cache.release([one, two])
        (three,) = cache.admit(claims).sequences
    assert three.start == 0
    check(cache)


def test_a_claim_before_the_launch_finds_what_steps_in_flight_compute_of_a_sharer(store: StoreName) -> None:
    cache = sharing(store)
    one, step = flying(cache, length=30, max_chunk=8)
    batch = cache.add_sequence_batch([begins("b", 30)], continuing=[one], max_chunk=8)
    (two,) = batch.sequences
    assert (one.computed, two.start) == (0, 16), "half of that is in flight, half is yet to be launched"
    with cache.claim([begins("c", 30)]) as claims:
        assert [claim.start for claim in claims] == [8]
        check(cache)
        later = cache.launch()
        starts = dict(zip(later.rows.tolist(), later.starts.tolist(), strict=True))
        assert starts == {one.row: 8, two.row: 16}, "what it shares is not computed twice because others looked"
        cache.commit(step)
        cache.commit(later)
        check(cache)
        (three,) = cache.admit(claims).sequences
    assert (two.computed, three.start) == (24, 8)
    check(cache)
