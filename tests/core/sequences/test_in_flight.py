"""Steps in flight: the next is handed out while the last one computes; commits, failures, ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quire import (
    Cache,
    CacheConfig,
    InputError,
    LayerGroup,
    Request,
    Sequence,
    Span,
    StateError,
    Stored,
    TierConfig,
    UnknownError,
    check,
)
from quire.core.records.request import Int32
from quire.core.store import StoreName
from tests.core.conftest import seq, small


def hybrid(store: StoreName, groups: tuple[LayerGroup, ...], slots: tuple[int, ...], **options: Any) -> Cache:
    tiers, limits = (TierConfig("device", slots),), {"max_sequences": 8, "max_length": 256}
    return Cache(CacheConfig(tiers, block_size=4, groups=groups, **{**limits, **options}), store=store)


def ints(*numbers: int) -> Int32:
    return np.array(numbers, np.int32)


def start(cache: Cache, *requests: Request, **limits: Any) -> list[Sequence]:
    batch = cache.add_sequence_batch(list(requests), **limits)
    assert not batch.refused and not batch.plan
    return batch.sequences


def edges(one: Sequence) -> tuple[int, int, int, int]:
    return one.computed, one.length, one.ran, one.capacity()


def decoding(cache: Cache, length: int, name: str = "a", first: int = 0) -> Sequence:
    """A sequence with a computed prompt, and the token that it made."""
    (one,) = start(cache, Request(name, seq(first, length)))
    cache.commit(cache.launch(), tokens=ints(first + length))
    return one


def found(cache: Cache, tokens: Int32) -> int:
    """What of some text can be reused, one more token behind it."""
    (probe,) = cache.probe([Request("probe", np.append(tokens, np.int32(-7)))])
    return probe.start


def test_places_come_before_their_tokens(store: StoreName) -> None:
    """Committed <= computed <= known; handed out <= capacity. A block is findable when its tokens are known."""
    cache = small(store, 16)
    (one,) = start(cache, Request("a", seq(0, 6)))
    first = cache.launch()
    assert (first.rows.tolist(), first.starts.tolist(), first.ends.tolist()) == ([one.row], [0], [6])
    assert edges(one) == (0, 6, 6, 8)
    assert cache.grow(one) is not None  # token 6 is not known
    second = cache.launch()
    assert cache.grow(one) is not None
    third = cache.launch()
    assert edges(one) == (0, 6, 8, 8)
    assert cache.open_steps() == [first, second, third]
    assert cache.commit(first, tokens=ints(6)) == 1
    assert edges(one) == (6, 7, 8, 8) and found(cache, seq(0, 8)) == 4
    check(cache)
    assert cache.commit(second, tokens=ints(7)) == 0
    assert edges(one) == (7, 8, 8, 8) and found(cache, seq(0, 8)) == 4
    assert cache.commit(third, tokens=ints(8)) == 1
    assert edges(one) == (8, 9, 8, 8) and found(cache, seq(0, 8)) == 8
    assert cache.open_steps() == [] and cache.tokens(one).tolist() == [*range(9)]
    check(cache)


def test_known_tokens_are_handed_out_without_naming_them(store: StoreName) -> None:
    """An engine that always grows without tokens and commits with them, one step after the other."""
    cache = small(store, 16)
    (one,) = start(cache, Request("a", seq(0, 6)))
    for token in range(6, 12):
        cache.commit(one, tokens=ints(token))
        assert edges(one)[:3] == (token, token + 1, token)
        assert cache.grow(one) is not None
    assert edges(one) == (11, 12, 12, 12) and found(cache, seq(0, 12)) == 8
    check(cache)


def test_several_tokens_of_one_step(store: StoreName) -> None:
    """Drafts are accepted on the device: each row brings as many tokens as it made, and says how far it is computed."""
    cache = small(store, 16)
    one, two = start(cache, Request("a", seq(0, 6)), Request("b", seq(50, 6)))
    assert cache.commit(cache.launch(), tokens=ints(6, 56)) == 2
    assert cache.grow([one, two], num_tokens=4) is not None
    step = cache.launch()
    tokens = np.array([[7, 8, -1, 5, -1], [57, 58, 59, 60, -1]], np.int32)
    assert cache.commit(step, ints(8, 10), tokens=tokens) == 2
    assert edges(one)[:3] == (8, 9, 8) and edges(two)[:3] == (10, 11, 10)
    assert cache.grow([one, two]) is not None
    assert one.ran == 9 and two.ran == 11
    check(cache)


def test_chunks_of_a_prompt_are_pipelined(store: StoreName) -> None:
    """Chunk 2 and 3 are handed out before chunk 1 is committed, and the first place before that."""
    cache = small(store, 16)
    (one,) = start(cache, Request("a", seq(0, 22)), max_chunk=8)
    steps = [cache.launch()]
    for span in (Span(8, 16), Span(16, 22)):
        batch = cache.add_sequence_batch([], max_chunk=8, continuing=[one])
        assert batch.spans == {one: span}
        steps.append(cache.launch())
    with pytest.raises(StateError, match="its prompt is computed, or steps in flight compute it"):
        cache.add_sequence_batch([], max_chunk=8, continuing=[one])
    assert cache.grow(one) is not None
    steps.append(cache.launch())
    made = []
    for step, tokens in zip(steps, ([-1], [-1], [22], [23]), strict=True):
        made.append(cache.commit(step, tokens=ints(*tokens)))
        check(cache)
    assert made == [2, 2, 1, 0] and edges(one)[:3] == (23, 24, 23)


def test_the_windows_of_chunks_in_flight_wait_for_room(store: StoreName) -> None:
    """Its promise has room for one chunk at a time: the next waits where the pool has no more, and nothing is lost."""
    groups = (LayerGroup("full"), LayerGroup("window", window=8))
    cache = hybrid(store, groups, (64, 5), max_chunk=8)
    (one,) = start(cache, Request("a", seq(0, 40)), max_chunk=8)
    steps, at = [cache.launch()], [8]
    while one.computed < 40:
        if at[-1] < 40:
            batch = cache.add_sequence_batch([], max_chunk=8, continuing=[one])
            for span in batch.spans.values():
                at.append(span.end)
                steps.append(cache.launch())
                continue
            assert batch.spans or batch.waiting == [one]
        if len(steps) > 1 or at[-1] == 40 or batch.waiting:
            cache.commit(steps.pop(0))
        check(cache)
    assert at == [8, 16, 24, 32, 40]
    cache.release(one)
    assert cache.num_free(1) == 5
    check(cache)


def test_a_step_that_fails_takes_back_those_behind_it(store: StoreName) -> None:
    """The step before it counts; what the others were to compute is handed out again, and was never findable."""
    cache = small(store, 16)
    one, two = decoding(cache, 6), decoding(cache, 5, "b", 50)
    cache.grow([one, two])
    first = cache.launch()
    (late,) = start(cache, Request("c", seq(90, 9)))
    cache.grow(one)
    second = cache.launch()
    cache.grow([one, late])
    cache.launch()
    setbacks = cache.fail(second)
    assert [(back.holder, back.old_start, back.start, back.lost) for back in setbacks] == [
        (one, 9, 7, False), (late, 10, 0, False),
    ]  # fmt: skip
    assert cache.open_steps() == [first]
    assert cache.commit(first, tokens=ints(7, 56)) == 0
    assert edges(one)[:3] == (7, 8, 7) and edges(two)[:3] == (6, 7, 6) and found(cache, seq(90, 9)) == 0
    batch = cache.add_sequence_batch([], continuing=[late])
    assert batch.spans == {late: Span(0, 9)}
    cache.grow([one, two])
    again = cache.launch()
    assert again.ends.tolist() == [8, 7, 9]
    cache.commit(again, tokens=ints(8, 57, 99))
    assert found(cache, seq(0, 8)) == found(cache, seq(90, 8)) == 8
    check(cache)


def test_the_first_of_all_steps_fails(store: StoreName) -> None:
    """Nothing is in flight then, and a prompt begins anew where it was found to start."""
    cache = small(store, 16)
    (one,) = start(cache, Request("a", seq(0, 22)), max_chunk=8)
    first = cache.launch()
    cache.add_sequence_batch([], max_chunk=8, continuing=[one])
    second = cache.launch()
    (setback,) = cache.fail(first)
    assert (setback.old_start, setback.start) == (16, 0) and cache.open_steps() == []
    with pytest.raises(StateError, match=f"step {second.number}: it is not in flight here"):
        cache.commit(second)
    assert cache.add_sequence_batch([], continuing=[one]).spans == {one: Span(0, 22)}
    cache.commit(one)
    assert one.computed == 22
    check(cache)


def test_a_failure_behind_rejected_drafts_goes_back_to_what_is_computed(store: StoreName) -> None:
    cache = small(store, 16)
    one = decoding(cache, 6)
    cache.grow(one, num_tokens=4)
    first = cache.launch()
    cache.grow(one)
    second = cache.launch()
    cache.commit(first, 8, tokens=np.array([[7, 8]], np.int32))
    assert edges(one)[:3] == (8, 9, 11)
    (setback,) = cache.fail(second)
    assert (setback.old_start, setback.start) == (11, 8) and edges(one)[:3] == (8, 9, 8)
    check(cache)


@pytest.mark.parametrize("as_rows", [False, True])
def test_a_bare_commit_counts_no_place_without_token(store: StoreName, as_rows: bool) -> None:
    cache = small(store, 16)
    one = decoding(cache, 6)
    cache.grow(one, num_tokens=3)
    cache.commit(ints(one.row) if as_rows else one)
    assert edges(one)[:3] == (7, 7, 9)
    forked = cache.fork(one, ["b"])
    assert forked is not None and edges(forked[0][0])[:3] == (7, 7, 7)
    check(cache)


def test_steps_are_committed_in_their_order(store: StoreName) -> None:
    cache = small(store, 16)
    one = decoding(cache, 6)
    cache.grow(one)
    first = cache.launch()
    cache.grow(one)
    second = cache.launch()
    with pytest.raises(StateError, match="commit the steps in the order of their launch"):
        cache.commit(second, tokens=ints(8))
    cache.commit(first, tokens=ints(7))
    with pytest.raises(StateError, match="close each launched step once"):
        cache.commit(first, tokens=ints(7))
    other = small(store, 4)
    with pytest.raises(StateError, match="another cache's"):
        other.fail(second)
    cache.commit(second, tokens=ints(8))


def test_a_refused_commit_changes_nothing(store: StoreName) -> None:
    """Too much, too few tokens, or tokens of another shape: the step is still in flight, and can be committed."""
    cache = small(store, 16)
    one = decoding(cache, 6)
    cache.grow(one)
    first = cache.launch()
    cache.grow(one)
    second = cache.launch()
    with pytest.raises(InputError, match="it was handed out up to 7, and 8 are known"):
        cache.commit(first, 8, tokens=ints(7))
    with pytest.raises(InputError, match="of 1 sequences"):
        cache.commit(first, tokens=ints(7, 8))
    with pytest.raises(InputError, match="commit of -1 tokens"):
        cache.commit(first, -5, tokens=ints(7))
    assert edges(one)[:3] == (6, 7, 8)
    cache.commit(first)
    with pytest.raises(InputError, match="up to 8, and 7 are known"):
        cache.commit(second)
    assert edges(one)[:3] == (7, 7, 8)
    cache.commit(second, tokens=ints(7))
    assert edges(one)[:3] == (8, 8, 8)
    check(cache)


def test_what_a_step_in_flight_computes_is_its_own_matter(store: StoreName) -> None:
    """No trim and no commit by rows; the same works when the step is closed."""
    cache = small(store, 16)
    one = decoding(cache, 6)
    cache.grow(one)
    step = cache.launch()
    calls: list[Callable[[], object]] = [
        lambda: cache.trim(one, 1), lambda: cache.commit(one), lambda: cache.commit(ints(one.row), 7),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StateError, match="a step in flight computes it; commit that step, or fail it, before"):
            call()
    cache.commit(step, tokens=ints(7))
    assert cache.trim(one, 1) == 0 and one.length == 7


def test_a_launch_needs_something_to_compute(store: StoreName) -> None:
    cache = small(store, 16)
    one = decoding(cache, 6)
    with pytest.raises(StateError, match="handed out nothing since its last step"):
        cache.launch(one)
    with pytest.raises(UnknownError, match="row 5 is of no live sequence"):
        cache.launch(ints(5))
    cache.grow(one)
    with pytest.raises(UnknownError, match="given twice"):
        cache.launch([one, one])
    assert len(cache.launch(one).rows) == 1
    empty = cache.launch()  # an engine may have nothing to do in a step
    assert len(empty.rows) == 0
    with pytest.raises(StateError, match="handed out nothing"):
        cache.launch(one)
    cache.commit(cache.open_steps()[0], tokens=ints(7))
    assert cache.commit(empty, tokens=ints()) == 0
    assert cache.fail(cache.launch()) == ()


def test_only_what_was_launched_is_in_flight(store: StoreName) -> None:
    """A span that was handed out and not launched is handed out again, as it always was."""
    cache = small(store, 16)
    one, two = start(cache, Request("a", seq(0, 22)), Request("b", seq(50, 9)), max_chunk=8)
    step = cache.launch(one)
    batch = cache.add_sequence_batch([], max_chunk=4, continuing=[one, two])
    assert batch.spans == {one: Span(8, 12), two: Span(0, 4)}
    cache.commit(step)
    assert edges(one)[:3] == (8, 22, 12) and edges(two)[:3] == (0, 9, 4)


def test_a_release_waits_for_the_step_in_flight(store: StoreName) -> None:
    """Its slots and its row stay as long; then what it has computed is stored, with the token that came last."""
    cache = small(store, 4, max_sequences=2)
    one = decoding(cache, 6)
    cache.grow(one)
    step = cache.launch()
    slots = set(one.slots().tolist())
    cache.release(one)
    assert not one.live and cache.num_sequences == 0 and cache.num_free() == 2
    check(cache)
    (other,) = start(cache, Request("a", seq(50, 8)))  # the name is free at once
    assert not slots & set(other.slots().tolist())
    (refusal,) = cache.add_sequence_batch([Request("c", seq(80, 2))]).refused
    assert refusal.reason == "sequences"
    with pytest.raises(UnknownError, match="no live sequence"):
        cache.grow(ints(step.rows[0]))
    assert found(cache, seq(0, 7)) == 4
    cache.commit(step, tokens=ints(7))
    assert cache.num_free() == 2 and found(cache, seq(0, 8)) == 7
    assert len(cache.add_sequence_batch([Request("c", seq(80, 2))]).sequences) == 1
    check(cache)


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancelled_sequence_leaves_nothing_of_its_step(store: StoreName, fails: bool) -> None:
    """Released without being stored, or its step fails: no block of the step becomes findable, no event says so."""
    cache = small(store, 8, events=True)
    one = decoding(cache, 7)
    cache.grow(one)
    step = cache.launch()
    cache.take_events()
    cache.release(one, store=fails)
    assert cache.fail(step) == () if fails else cache.commit(step, tokens=ints(8)) in (0, 1)
    stored = [event for event in cache.take_events() if isinstance(event, Stored)]
    assert (
        sum(len(event.hashes) for event in stored) == 1
    )  # seven tokens, or the eighth's block: all of it was committed
    assert cache.num_free() == 8 and cache.num_sequences == 0
    check(cache)


def test_a_release_takes_back_what_was_not_launched(store: StoreName) -> None:
    cache = small(store, 8)
    one = decoding(cache, 6)
    cache.grow(one)
    first = cache.launch()
    cache.grow(one, num_tokens=3)
    cache.release(one)
    assert len(cache.launch().rows) == 0
    cache.commit(first, tokens=ints(7))
    assert cache.num_free() == 8 and found(cache, seq(0, 9)) == 7
    check(cache)


def test_a_suspended_sequence_goes_on_with_what_is_known(store: StoreName) -> None:
    cache = small(store, 8)
    one = decoding(cache, 6)
    cache.grow(one)
    first = cache.launch()
    cache.grow(one)
    second = cache.launch()
    cache.commit(first, tokens=ints(7))
    request = cache.suspend(one)
    assert request.tokens.tolist() == [*range(8)]
    cache.commit(second, tokens=ints(8))
    assert cache.num_free() == 8
    (again,) = start(cache, request)
    assert again.start == 7
    check(cache)


def test_a_fork_beside_a_step_in_flight_computes_for_itself(store: StoreName) -> None:
    """It shares what is computed; the token that the step computes is the source's alone."""
    cache = small(store, 16)
    one = decoding(cache, 6)
    cache.grow(one)
    step = cache.launch()
    forked = cache.fork(one, ["b"])
    assert forked is not None
    ((two,), plan) = forked
    cache.finish(plan)
    assert edges(two)[:3] == (6, 7, 6)
    cache.commit(step, tokens=ints(7))
    cache.grow([one, two])
    assert (one.ran, two.ran) == (8, 7)
    cache.commit(cache.launch(), tokens=ints(8, 70))
    assert cache.tokens(two).tolist() == [*range(7), 70] and cache.tokens(one).tolist() == [*range(9)]
    check(cache)


def test_pages_that_are_lost_under_a_step_void_it(store: StoreName) -> None:
    """What the step makes of such a row counts nothing; its other rows are committed as usual."""
    cache = small(store, 16)
    one, two = decoding(cache, 9), decoding(cache, 9, "b", 50)
    cache.grow([one, two])
    step = cache.launch()
    (setback,) = cache.lose(0, [int(one.slots()[1])]).setbacks
    assert (setback.holder, setback.start) == (one, 4)
    assert cache.add_sequence_batch([], continuing=[one]).spans == {one: Span(4, 10)}
    again = cache.launch()
    assert (again.starts.tolist(), again.ends.tolist()) == ([4], [10])
    cache.commit(step, tokens=ints(10, 60))
    assert edges(one)[:3] == (4, 10, 10) and edges(two)[:3] == (10, 11, 10)
    check(cache)
    cache.commit(again, tokens=ints(10))
    assert edges(one)[:3] == (10, 11, 10) and found(cache, seq(0, 11)) == 8
    check(cache)


def test_pages_that_are_lost_after_a_release_are_not_stored(store: StoreName) -> None:
    cache = small(store, 16)
    one = decoding(cache, 7)
    cache.grow(one)
    step = cache.launch()
    slot = int(one.slots()[0])
    cache.release(one)
    assert cache.lose(0, [slot]).setbacks == ()
    cache.commit(step, tokens=ints(8))
    assert cache.num_free() == 16 and found(cache, seq(0, 9)) == 0 and cache.usage().idle == 0
    check(cache)


STATES = (LayerGroup("full"), LayerGroup("state", snapshot_every=8, snapshot_at_end=False))


def moved(cache: Cache, plan: Any) -> list[tuple[str, int, int]]:
    """The copies of states in a plan, which has run then."""
    cache.finish(plan)
    return [(move.kind.name, move.src[1], move.dst[1]) for move in plan if move.group == 1]


@pytest.mark.parametrize("late", [1, 2, 3])
def test_a_snapshot_is_taken_between_two_steps(store: StoreName, late: int) -> None:
    """However late commits come, the state at 16 tokens is copied before the step that moves it on."""
    cache = hybrid(store, STATES, (64, 8))
    (one,) = start(cache, Request("a", seq(0, 7)))
    cache.commit(cache.launch(), tokens=ints(7))
    steps, copies = [], {}
    for place in range(7, 25):
        plan = cache.grow(one)
        if plan:
            copies[place] = moved(cache, plan)
        steps.append(cache.launch())
        if len(steps) > late:
            cache.commit(steps.pop(0), tokens=ints(one.length))
        check(cache)
    assert {place for place, some in copies.items() if some} == {8, 16, 24}
    assert all(source == one.state_slot(1) for some in copies.values() for _, source, _ in some)
    while steps:
        cache.commit(steps.pop(0), tokens=ints(one.length))
    assert found(cache, seq(0, 30)) == 24 and cache.stats(1).skipped == 0
    check(cache)


def test_a_snapshot_of_a_chunk_in_flight(store: StoreName) -> None:
    """Steps end at snapshots; the next chunk's plan takes the one before it."""
    cache = hybrid(store, STATES, (64, 8))
    (one,) = start(cache, Request("a", seq(0, 20)))
    first = cache.launch()
    assert first.ends.tolist() == [8]
    batch = cache.add_sequence_batch([], continuing=[one])
    assert batch.spans == {one: Span(8, 16)} and len(moved(cache, batch.plan)) == 1
    second = cache.launch()
    cache.commit(first)
    assert found(cache, seq(0, 30)) == 8
    cache.commit(second)  # nothing was handed out behind it: the copy is in the next plan
    assert found(cache, seq(0, 30)) == 16 and cache.stats(1).skipped == 0
    check(cache)


def test_what_a_step_writes_itself_is_not_copied(store: StoreName) -> None:
    """Snapshots inside a chunk in flight are the kernel's, that at its end too."""
    inside = LayerGroup("state", snapshot_every=4, snapshot_at_end=False, snapshot_inside=True)
    cache = hybrid(store, (LayerGroup("full"), inside), (64, 8), max_chunk=8)
    batch = cache.add_sequence_batch([Request("a", seq(0, 20))], max_chunk=8)
    (one,) = batch.sequences
    assert [snapshot.position for snapshot in batch.snapshots[one]] == [4, 8]
    first = cache.launch()
    batch = cache.add_sequence_batch([], max_chunk=8, continuing=[one])
    assert batch.spans == {one: Span(8, 16)} and not batch.plan
    cache.commit(first)
    assert found(cache, seq(0, 5)) == 4 and found(cache, seq(0, 30)) == 8
    check(cache)


def test_a_sequence_that_ends_in_flight_keeps_its_state(store: StoreName) -> None:
    """With the last token known its state stands behind it; without, it is the state of no known text."""
    for token, start_at, skipped in ((8, 8, 0), (-1, 0, 1)):
        cache = hybrid(store, STATES, (64, 8))
        (one,) = start(cache, Request("a", seq(0, 7)))
        cache.commit(cache.launch(), tokens=ints(7 if token == 8 else -1))
        cache.grow(one)
        step = cache.launch()
        cache.release(one)
        cache.commit(step, tokens=ints(token))
        assert (found(cache, seq(0, 9)), cache.stats(1).skipped) == (start_at, skipped)
        check(cache)


def test_a_state_that_has_failed_is_lost(store: StoreName) -> None:
    """It may have moved on: the sequence comes back as a request, and starts at its last snapshot."""
    cache = hybrid(store, STATES, (64, 8))
    (one,) = start(cache, Request("a", seq(0, 7)))
    cache.commit(cache.launch(), tokens=ints(7))
    steps = []
    for _ in range(3):
        plan = cache.grow(one)
        assert plan is not None
        cache.finish(plan)
        steps.append(cache.launch())
    cache.commit(steps[0], tokens=ints(8))  # 8 tokens: taken before the second step
    (setback,) = cache.fail(steps[1])
    assert setback.lost and not one.live and setback.request is not None
    assert setback.request.tokens.tolist() == [*range(9)]
    assert (cache.num_free(0), cache.num_free(1)) == (64, 8)
    (again,) = cache.add_sequence_batch([setback.request]).sequences
    assert again.start == 8
    check(cache)


def test_a_state_goes_on_from_all_of_its_step(store: StoreName) -> None:
    """No commit of a part while a later step goes on, and no fork of a state that moves."""
    cache = hybrid(store, STATES, (64, 8))
    (one,) = start(cache, Request("a", seq(0, 5)))
    cache.commit(cache.launch(), tokens=ints(5))
    cache.grow(one, num_tokens=2)
    first = cache.launch()
    cache.grow(one)
    second = cache.launch()
    with pytest.raises(StateError, match="a later step goes on from the state there"):
        cache.commit(first, 6, tokens=ints(6))
    with pytest.raises(StateError, match="a step in flight moves its state on"):
        cache.fork(one, ["b"])
    cache.commit(first, tokens=np.array([[6, 7]], np.int32))
    cache.commit(second, 7)  # all but its last token: the state is not that of 7
    assert edges(one)[:3] == (7, 8, 7)
    cache.release(one)
    assert found(cache, seq(0, 9)) == 0 and cache.stats(1).skipped == 1
    check(cache)


def test_a_snapshot_behind_rejected_drafts_is_void(store: StoreName) -> None:
    """The state at 8 was copied for the next step; then drafts before it were rejected, and it is another text's."""
    groups = (LayerGroup("full"), LayerGroup("state", snapshot_every=4, snapshot_at_end=False))
    cache = hybrid(store, groups, (64, 8))
    (one,) = start(cache, Request("a", seq(0, 5)))  # to 4, then to 5
    cache.commit(cache.launch())
    cache.finish(cache.add_sequence_batch([], continuing=[one]).plan)
    cache.commit(cache.launch(), tokens=ints(5))
    cache.grow(one, num_tokens=3)
    step = cache.launch()
    plan = cache.grow(one)
    assert len(moved(cache, plan)) == 1
    cache.commit(step, 6, tokens=ints(70))
    assert edges(one)[:3] == (6, 7, 6)
    for token in (71, 72):
        cache.grow(one)
        cache.commit(cache.launch(), tokens=ints(token))
    assert edges(one)[:3] == (8, 9, 8)
    assert found(cache, cache.tokens(one)[:8]) == 4 and cache.stats(1).skipped == 1
    check(cache)


def test_snapshots_that_steps_jump_over_are_given_up(store: StoreName) -> None:
    """Drafts go past an edge: the page there was never written, and is not offered with the next that was."""
    groups = (LayerGroup("full"), LayerGroup("state", snapshot_every=4, snapshot_at_end=False))
    cache = hybrid(store, groups, (64, 8))
    (one,) = start(cache, Request("a", seq(0, 2)))
    cache.commit(cache.launch(), tokens=ints(2))
    cache.grow(one, num_tokens=4)  # past 4, to 6
    first = cache.launch()
    cache.grow(one, num_tokens=2)  # to 8
    second = cache.launch()
    plan = cache.grow(one)
    assert len(moved(cache, plan)) == 1
    third = cache.launch()
    cache.commit(first, tokens=np.array([[3, 4, 5, 6]], np.int32))
    assert found(cache, seq(0, 10)) == 0
    cache.commit(second, tokens=np.array([[7, 8]], np.int32))
    assert found(cache, seq(0, 5)) == 0 and found(cache, seq(0, 10)) == 8
    cache.commit(third, tokens=ints(9))
    check(cache)
