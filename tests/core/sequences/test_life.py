"""Grow, commit, trim, fork, suspend, hold: what a sequence can do between admission and release."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import (
    Cache,
    InputError,
    Kind,
    LayerGroup,
    Request,
    RetainRange,
    Retention,
    Sequence,
    Span,
    StateError,
    UnknownError,
    check,
)  # fmt: skip
from quire.core.store import StoreName
from tests.core.sequences.test_in_flight import edges, ints

from ..conftest import seq, serve, small


def test_a_decode_batch_grows_in_one_call_or_not_at_all(store: StoreName) -> None:
    cache = small(store, 5)
    batch = cache.add_sequence_batch([Request(n, seq(10 * n, 4)) for n in range(3)])
    rows = np.array([sequence.row for sequence in batch.sequences], np.int32)
    cache.commit(rows)
    assert cache.grow(rows, seq(90, 3)) is None, "three new pages are needed, two are free"
    assert [sequence.length for sequence in batch.sequences] == [4, 4, 4]
    check(cache)
    assert cache.grow(rows[:2].copy(), seq(90, 2)) is not None
    assert [sequence.length for sequence in batch.sequences] == [5, 5, 4]
    check(cache)


def test_commit_during_decode_makes_full_blocks_findable(store: StoreName) -> None:
    cache = small(store, 8)
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 6))]).sequences
    assert cache.commit(sequence) == 1
    for token in (6, 7):
        cache.grow(sequence, np.array([token], np.int32))
        assert cache.commit(sequence) == (token == 7)
        check(cache)
    assert cache.probe([Request("p", seq(0, 9))])[0].start == 8


def test_rejected_drafts_are_trimmed_and_never_stored(store: StoreName) -> None:
    cache = small(store, 8)
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 4), extra_tokens=4)]).sequences
    cache.commit(sequence)
    cache.grow(sequence, np.array([4, 50, 51, 52, 53], np.int32).reshape(1, 5))
    assert sequence.length == 9 and sequence.capacity() == 12
    assert cache.trim(sequence, 4) == 1
    cache.commit(sequence)
    assert (sequence.length, sequence.computed, sequence.committed) == (5, 5, 4)
    cache.release(sequence)
    check(cache)
    starts = [
        cache.probe([Request("p", tokens)])[0].start
        for tokens in (seq(0, 7), np.append(seq(0, 5), [50, 51]).astype(np.int32))
    ]
    assert starts == [5, 5]


def test_forks_share_full_pages_and_copy_the_partial_one(store: StoreName) -> None:
    cache = small(store, 8)
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 10), beams=3)]).sequences
    assert cache.num_free() == 8 - 3 - 2, "the beams' pages are set aside"
    cache.commit(sequence)
    forked = cache.fork(sequence, ["f1", "f2"])
    assert forked is not None
    forks, plan = forked
    assert plan.count(Kind.COPY) == 2 and cache.num_free() == 3, "they used what was set aside"
    pages = [s.pages().tolist() for s in (sequence, *forks)]
    assert pages[0][:2] == pages[1][:2] == pages[2][:2] and len({p[2] for p in pages}) == 3
    check(cache)
    for n, s in enumerate((sequence, *forks)):
        assert cache.grow(s, np.array([70 + n, 80], np.int32).reshape(1, 2)) is not None
        cache.commit(s)
        check(cache)
    for s in (sequence, *forks):
        cache.release(s)
        check(cache)
    starts = [
        cache.probe([Request("p", np.append(seq(0, 10), [70 + n, 80, 1]).astype(np.int32))])[0].start for n in range(3)
    ]
    assert starts == [12, 12, 12]


def test_a_beam_search_hits_its_own_last_block_too(store: StoreName) -> None:
    """The same prompt twice with two beams: the tail is matched as well, and each beam gets a copy of its own."""
    cache = small(store, 8)
    serve(cache, Request("seed", seq(0, 7)))
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 7), beams=2)]).sequences
    assert sequence.start == 6
    cache.commit(sequence)
    forked = cache.fork(sequence, ["f"])
    assert forked is not None and forked[1].count(Kind.COPY) == 1
    check(cache)


def test_no_room_to_fork_changes_nothing(store: StoreName) -> None:
    cache = small(store, 3)
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 10))]).sequences
    cache.commit(sequence)
    before = cache._setup.store.dump()
    assert cache.fork(sequence, ["f"]) is None
    assert cache._setup.store.dump() == before


def test_suspend_and_resume_recompute_only_the_last_token(store: StoreName) -> None:
    cache = small(store, 8)
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 6), max_new_tokens=10)]).sequences
    cache.commit(sequence)
    cache.grow(sequence, seq(6, 3).reshape(1, 3))
    cache.commit(sequence, 8)  # the last sampled token has no KV yet
    request = cache.suspend(sequence)
    assert request.tokens.tolist() == list(range(9)) and request.max_new_tokens == 7
    assert cache.num_free() == 8
    check(cache)
    (resumed,) = cache.add_sequence_batch([request]).sequences
    assert resumed.start == 8 and resumed.id == "r"


def test_suspended_pages_survive_on_the_host(store: StoreName) -> None:
    """Preempted, pushed out of the device by others, resumed: nothing is computed again."""
    cache = small(store, 4, 8)
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 16))]).sequences
    cache.commit(sequence)
    request = cache.suspend(sequence)
    serve(cache, Request("other", seq(100, 16)))
    batch = cache.add_sequence_batch([request])
    assert batch.sequences[0].start == 15 and batch.sequences[0].counts().onboarded == 4
    check(cache)


def test_a_hold_outlives_its_sequence(store: StoreName) -> None:
    cache = small(store, 4)
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 8))]).sequences
    cache.commit(sequence)
    held = cache.hold(sequence, Span(0, 5))
    assert held is not None
    assert held.slots[0].tolist() == sequence.slots().tolist()
    cache.release(sequence)
    check(cache)
    assert cache.num_free() == 2, "two held pages cannot be taken"
    assert cache.probe([Request("p", seq(0, 9))])[0].held_blocks == 2
    cache.drop(held)
    assert cache.num_free() == 4
    check(cache)


def test_a_private_twin_takes_the_place_that_has_become_free(store: StoreName) -> None:
    """Two equal prompts at once: the second's pages are twins; when the first's are gone it stores its own."""
    cache = small(store, 4)
    first, second = cache.add_sequence_batch([Request("a", seq(0, 8)), Request("b", seq(0, 8))]).sequences
    assert cache.commit(first) == 2 and cache.commit(second) == 0
    cache.release(first)
    cache.add_sequence_batch([Request("c", seq(100, 8))])  # evicts the first one's pages
    assert cache.probe([Request("p", seq(0, 8))])[0].start == 0
    cache.release(second)
    check(cache)
    assert cache.probe([Request("p", seq(0, 9))])[0].start == 8


def test_a_fresh_page_replaces_its_cold_duplicate(store: StoreName) -> None:
    """The tree's page is on the host, the sequence computed the same block on the device: the device page stays."""
    cache = small(store, 4, 4, events=True)
    (early,) = cache.add_sequence_batch([Request("early", seq(0, 8))]).sequences  # computes while nothing is cached
    serve(cache, Request("other", seq(0, 8)))
    serve(cache, Request("filler", seq(100, 8)))  # pushes the other one's pages to the host
    assert cache.usage(1).idle == 2
    cache.take_events()
    cache.commit(early)
    check(cache)
    assert cache.usage(1).idle == 0 and cache.usage(1).shadows == 2
    assert sorted(type(event).__name__ for event in cache.take_events()) == ["Moved", "Moved"]
    cache.release(early)
    check(cache)


def test_truncate_cuts_one_scope_at_a_block_edge(store: StoreName) -> None:
    cache = small(store, 8)
    serve(cache, Request("a", seq(0, 12)))
    assert cache.truncate(Request("t", seq(0, 12)), keep=8) == 1
    assert cache.probe([Request("p", seq(0, 13))])[0].start == 8
    assert cache.truncate(Request("t", seq(0, 12)), keep=3) == 1
    assert cache.probe([Request("p", seq(0, 13))])[0].start == 4
    check(cache)


def test_clear_forgets_everything_but_what_is_held(store: StoreName) -> None:
    cache = small(store, 8, events=True)
    serve(cache, Request("a", seq(0, 8)))
    (sequence,) = cache.add_sequence_batch([Request("b", seq(50, 8))]).sequences
    cache.commit(sequence)
    cache.take_events()
    assert cache.clear() == 4
    check(cache)
    assert [type(event).__name__ for event in cache.take_events()] == ["Cleared"]
    cache.grow(sequence, np.array([1], np.int32))
    cache.commit(sequence)
    cache.release(sequence)
    check(cache)
    assert cache.usage().empty == 8


@pytest.mark.parametrize("group", [LayerGroup(), LayerGroup("ssm", snapshot_every=4)], ids=["full", "state"])
def test_the_first_token_is_not_trimmed_away(store: StoreName, group: LayerGroup) -> None:
    """Without it there were no request to claim again, when its pages are lost or it is suspended."""
    cache = small(store, 8, groups=[group])
    first, other = cache.add_sequence_batch([Request(name, seq(at, 3)) for name, at in (("a", 0), ("b", 9))]).sequences
    with pytest.raises(InputError, match=r"2 tokens .* can be taken back; leave it its first token"):
        cache.trim(first, 3)
    cache.trim(first, 2)
    setbacks = cache.lose(0, range(8)).setbacks
    assert {setback.holder for setback in setbacks} == {first, other}
    check(cache)


def test_what_a_hold_keeps_is_not_trimmed_away(store: StoreName) -> None:
    """Drafts behind the held tokens may go; the held ones may not, or the next tokens would be written over them."""
    cache = small(store, 8)
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 6))]).sequences
    cache.commit(sequence)
    held = cache.hold(sequence, Span(0, 6))
    assert held is not None
    cache.grow(sequence, np.array([50], np.int32))
    cache.commit(sequence)
    assert cache.trim(sequence, 1) == 0
    with pytest.raises(StateError, match="drop the hold first"):
        cache.trim(sequence, 1)
    cache.drop(held)
    cache.trim(sequence, 1)
    check(cache)


def test_resumed_requests_keep_their_numbers(store: StoreName) -> None:
    """Open retention ranges end with the original prompt, beams were forked already, generated tokens count."""
    cache = small(store, 16)
    retention = Retention((RetainRange(0, None, 90),), decode_priority=10)
    request = Request("r", seq(0, 6), beams=2, max_new_tokens=8, retention=retention)
    assert cache.probe([request])[0].slots_to_completion[0] == 2 + 1 + 2 * 2
    (sequence,) = cache.add_sequence_batch([request]).sequences
    assert cache.slots_to_completion(sequence)[0] == 4
    cache.commit(sequence)
    cache.grow(sequence, seq(6, 4).reshape(1, 4))
    cache.commit(sequence)
    resumed = cache.suspend(sequence)
    assert (resumed.beams, resumed.max_new_tokens) == (1, 4)
    assert resumed.retention is not None and resumed.retention.ranges[0].end == 6


def test_a_suspended_request_takes_the_token_that_found_no_room(store: StoreName) -> None:
    cache = small(store, 3)
    requests = [Request("r", seq(0, 7), max_new_tokens=5), Request("other", seq(90, 4))]
    sequence, _ = cache.add_sequence_batch(requests).sequences
    cache.commit(sequence)
    assert cache.grow(sequence, seq(50, 1)) is not None
    cache.commit(sequence)
    assert cache.grow(sequence, seq(51, 1)) is None
    with pytest.raises(InputError, match="suspend"):
        cache.suspend(sequence, [51])  # type: ignore[arg-type]
    resumed = cache.suspend(sequence, seq(51, 1))
    check(cache)
    assert (resumed.tokens.tolist(), resumed.max_new_tokens) == ([*range(7), 50, 51], 3)
    (claim,) = cache.claim([resumed])
    assert claim.start == 8


def test_a_page_that_was_claimed_and_used_goes_in_its_turn(store: StoreName) -> None:
    """It was passed over while it was claimed. Another is used many times since: that one is younger."""
    cache = small(store, 4, eviction="lru", partial_reuse=False)
    for number in (1, 2, 3):
        serve(cache, Request(number, seq(10 * number, 5)))
    with cache.claim([Request("claimed", seq(10, 5))]) as claims:
        serve(cache, Request(4, seq(40, 5)))  # in the place of the second
        batch = cache.admit(claims)
    cache.commit(batch.sequences)
    cache.release(batch.sequences[0])
    for _ in range(30):
        serve(cache, Request("again", seq(40, 5)))
    serve(cache, Request(5, seq(50, 12)))  # an empty slot, the third, and the first
    check(cache)
    assert [cache.probe([Request("p", seq(start, 5))])[0].start for start in (10, 30, 40)] == [0, 0, 4]


def decoding(cache: Cache, *lengths: int) -> list[Sequence]:
    """Sequences whose prompts are computed."""
    requests = [Request(nth, seq(100 * nth, length)) for nth, length in enumerate(lengths)]
    sequences = cache.add_sequence_batch(requests).sequences
    cache.commit(sequences)
    return sequences


def test_each_sequence_of_a_batch_grows_by_its_own_number_of_drafts(store: StoreName) -> None:
    cache = small(store, 8)
    batch = decoding(cache, 4, 6, 3)
    counts = np.array([5, 1, 0], np.int32)
    assert cache.grow(batch, np.array([4, 51, 52, 53, 54, 71], np.int32), num_tokens=counts) is not None
    assert [sequence.length for sequence in batch] == [9, 7, 3]
    assert [sequence.capacity() for sequence in batch] == [12, 8, 4]
    assert cache.tokens(batch[0])[4:].tolist() == [4, 51, 52, 53, 54] and cache.tokens(batch[1])[-1] == 71
    check(cache)
    assert cache.grow(batch, num_tokens=np.array([4, 10, 6], np.int32)) is None, "1 + 3 + 2 pages, and 2 are free"
    assert [sequence.capacity() for sequence in batch] == [12, 8, 4]
    assert cache.grow(batch, num_tokens=np.array([0, 2, 2], np.int32)) is not None
    assert [sequence.capacity() for sequence in batch] == [12, 12, 8] and cache.num_free() == 0
    assert [sequence.length for sequence in batch] == [9, 7, 3], "slots only"
    check(cache)


def test_each_sequence_gets_its_own_tokens(store: StoreName) -> None:
    cache = small(store, 16)
    batch = decoding(cache, 4, 6, 3)
    cache.grow(batch, seq(50, 6), num_tokens=np.array([1, 3, 2], np.int32))
    ends = [cache.tokens(one)[length:].tolist() for one, length in zip(batch, (4, 6, 3), strict=True)]
    assert ends == [[50], [51, 52, 53], [54, 55]]


def test_drafts_that_no_sequence_can_have_are_refused(store: StoreName) -> None:
    cache = small(store, 80)
    batch = decoding(cache, 4, 6)
    three = seq(0, 3)
    wrong: list[tuple[object, object]] = [
        (three, np.array([2, 2], np.int32)), (three, np.array([3], np.int32)), (three, np.array([4, -1], np.int32)),
        (three, np.array([1, 2], np.int64)), (three.reshape(1, 3), np.array([1, 2], np.int32)),
        (None, np.array([1, 999], np.int32)), (three.tolist(), np.array([1, 2], np.int32)),
    ]  # fmt: skip
    for tokens, counts in wrong:
        with pytest.raises(InputError):
            cache.grow(batch, tokens, num_tokens=counts)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="3 tokens are given, and num_tokens are 4 together"):
        cache.grow(batch, three, num_tokens=np.array([2, 2], np.int32))
    with pytest.raises(InputError, match="grow of sequence 1 by 251 tokens: it has 6"):
        cache.grow(batch, num_tokens=np.array([251, 251], np.int32))
    assert [(one.length, one.capacity()) for one in batch] == [(4, 4), (6, 8)]


@pytest.mark.parametrize("rows", [False, True])
def test_a_batch_is_trimmed_whole_or_not_at_all(store: StoreName, rows: bool) -> None:
    cache = small(store, 12)
    batch = decoding(cache, 4, 6, 3)
    cache.grow(batch, seq(50, 15))
    named = np.array([one.row for one in batch], np.int32) if rows else batch
    before = cache.num_free()
    with pytest.raises(InputError, match="5 tokens of sequence 0 can be taken back"):
        cache.trim(named, np.array([6, 1, 1], np.int32))
    with pytest.raises(InputError, match="7 tokens of sequence 1 can be taken back"):
        cache.trim(named, np.array([5, 8, 0], np.int32))
    assert [one.length for one in batch] == [9, 11, 8] and cache.num_free() == before
    assert cache.trim(named, np.array([4, 0, 5], np.int32)) == 2
    assert [one.length for one in batch] == [5, 11, 3] and cache.num_free() == before + 2
    cache.commit(batch)
    assert [one.committed for one in batch] == [4, 8, 0]
    check(cache)


def test_a_trim_of_what_is_no_batch_is_refused(store: StoreName) -> None:
    cache = small(store, 12)
    batch = decoding(cache, 4, 6)
    cache.grow(batch, seq(50, 4))
    row = batch[0].row
    with pytest.raises(UnknownError, match="sequence 0 is given twice"):
        cache.trim([batch[0], batch[0]], 1)
    with pytest.raises(UnknownError, match="given twice"):
        cache.trim(np.array([row, row], np.int32), 1)
    with pytest.raises(UnknownError, match="row 7 is of no live sequence"):
        cache.trim(np.array([row, 7], np.int32), 1)
    wrong: list[Any] = [np.array([1], np.int32), np.array([1, 1], np.int64)]
    for counts in wrong:
        with pytest.raises(InputError, match="one number per sequence"):
            cache.trim(batch, counts)
    assert [one.length for one in batch] == [6, 8]
    assert cache.trim(iter(batch), 2) == 1, "anything that can be gone through"


def test_a_token_that_has_no_slot_yet_is_no_part_of_a_lost_prompt(store: StoreName) -> None:
    """The prompt that is computed again ends where its pages end; growing brings a slot for the token behind them."""
    cache = small(store, 16)
    (one,) = cache.add_sequence_batch([Request("a", seq(0, 8))]).sequences
    cache.commit(cache.launch(), tokens=ints(8))
    assert edges(one) == (8, 9, 8, 8)
    cache.lose(0, [int(one.slots()[1])])
    assert edges(one)[:2] == (4, 9)
    assert cache.add_sequence_batch([], continuing=[one]).spans == {one: Span(4, 8)}
    cache.commit(cache.launch())
    assert cache.grow(one) is not None
    assert edges(one) == (8, 9, 9, 12)
    cache.commit(cache.launch(), tokens=ints(9))
    check(cache)
    assert cache.tokens(one).tolist() == [*range(10)]
