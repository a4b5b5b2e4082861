"""States that a step writes inside its span: the prompt is not cut for them. Rows `inside`."""

from __future__ import annotations

from typing import Any

import pytest

from quire import Batch, Cache, LayerGroup, Request, Span
from quire.core.store import StoreName

from ..conftest import admit, build, compute, decode, finish, keep, release, start_of, tokens, try_admit
from .test_states import FULL, moved
from .test_windows import prefill, starts


def state(every: int = 8, **more: Any) -> LayerGroup:
    return LayerGroup("state", snapshot_every=every, **{"snapshot_inside": True} | more)


def build_inside(store: StoreName, slots: int = 8, group: LayerGroup | None = None, **options: Any) -> Cache:
    """A full group with room enough, and a state group of `slots`."""
    return build(store, (64, slots), groups=(FULL, group or state()), **options)


def places(batch: Batch, group: int = 1) -> list[int]:
    """Positions whose states the step writes, of all its sequences."""
    return [one.position for told in batch.snapshots.values() for one in told if one.group == group]


def test_a_long_prompt_is_one_step(store: StoreName) -> None:
    """inside-01: 1,024 tokens, a snapshot every 16: one step with 64 states to write; elsewhere 64 steps."""
    prompt = Request("a", tokens(range(1024)))
    for inside, steps in ((True, 1), (False, 64)):
        cache = build(store, (128, 128), groups=(FULL, state(16, snapshot_inside=inside)), block_size=16)
        batch = cache.add_sequence_batch([prompt])
        (sequence,) = batch.sequences
        edges = list(range(16, 1025, 16))
        assert (batch.spans[sequence], places(batch)) == ((Span(0, 1024), edges) if inside else (Span(0, 16), []))
        slots = [one.slot for one in batch.snapshots.get(sequence, ())]
        assert slots == [slot for slot in sequence.slots(1).tolist() if inside]
        assert len({*slots, sequence.state_slot(1)}) == len(slots) + 1, "each has a slot of its own"
        for _ in range(steps - 1):
            finish(cache, batch.plan)
            cache.commit(sequence)
            batch = cache.add_sequence_batch([], continuing=[sequence])
        finish(cache, batch.plan)
        assert sequence.computed == (0 if inside else 1008), "nothing is findable before it is computed"
        compute(cache, sequence)
        assert sequence.computed == 1024 and cache.stats(1).copied == (0 if inside else 64), "nothing is copied"
        assert starts(cache, 1024, 15, 16, 17, 500, 1023, 1024) == [0, 16, 16, 496, 1008, 1024]
        assert (cache.usage(0, 1).idle, (sequence.slots(1) == -1).all()) == (64, True)
        release(cache, sequence)


@pytest.mark.parametrize(("told", "found"), [(7, 0), (8, 8), (15, 8), (16, 16), (22, 20), (30, 24)])
def test_only_what_was_computed_is_found(store: StoreName, told: int, found: int) -> None:
    """inside-02: 30 tokens handed out, told to 7, 8, 15, 16, 22, 30, ended there: states up to there, none behind."""
    cache = build_inside(store, 16, state(4))
    (sequence,) = admit(cache, Request("a", tokens(range(30))))
    compute(cache, sequence, told)
    assert starts(cache, 30, 30) == [told // 4 * 4]
    assert [cache.usage(0, 1).idle, cache.num_free(1)] == [told // 4, 16 - 1 - (7 - told // 4)]
    cache = build_inside(store, 16)
    (sequence,) = admit(cache, Request("a", tokens(range(30)), resume_points=(20,)))
    compute(cache, sequence, told)
    release(cache, sequence)
    assert starts(cache, 30, 30) == [30 if told == 30 else found], "a tail only where all was told"


@pytest.mark.parametrize(("slots", "there"), [(2, [32]), (3, [24, 32]), (4, [16, 24, 32]), (8, [8, 16, 24, 32])])
def test_without_room_the_last_ones_are_kept(store: StoreName, slots: int, there: list[int]) -> None:
    """inside-03: 34 tokens, 2, 3, 4, 8 state slots: the last 1, 2, 3 of four snapshots, or all; nobody is refused."""
    cache = build_inside(store, slots)
    batch = try_admit(cache, Request("a", tokens(range(34))))
    assert (places(batch), cache.num_free(1)) == (there, max(0, slots - 5))
    compute(cache, batch.sequences[0])
    assert starts(cache, 34, 8, 16, 24, 32) == [at if at in there else 0 for at in (8, 16, 24, 32)]
    assert cache.num_free(1) == slots - 1, "they can be had again at once"
    release(cache, batch.sequences[0])


def test_promises_come_before_snapshots(store: StoreName) -> None:
    """inside-04: 5 state slots, two prompts of four snapshots: 2 + 2 slots are promised, the first has the fifth."""
    cache = build_inside(store, 5)
    batch = try_admit(cache, *(Request(at, tokens(range(at, at + 34))) for at in (0, 100)))
    first, second = batch.sequences
    assert [[one.position for one in batch.snapshots[s]] for s in (first, second)] == [[24, 32], [32]]
    with cache.claim([Request("c", tokens(200))]) as claims:
        (refusal,) = cache.admit(claims).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.group) == ("slots", 1, 0, 1)
    for sequence in batch.sequences:
        compute(cache, sequence)
    assert cache.num_free(1) == 3
    (third,) = admit(cache, Request("c", tokens(200)))
    release(cache, first, second, third)


def test_a_snapshot_that_is_reserved_stays_reserved(store: StoreName) -> None:
    """inside-05: 3 state slots, 34 tokens in steps of 16, a stranger beside: each step leaves its last."""
    cache = build_inside(store, 3, max_chunk=16)
    batch = try_admit(cache, Request("a", tokens(range(34))), max_chunk=16)
    (sequence,) = batch.sequences
    told = [places(batch)]
    compute(cache, sequence)
    (other,) = admit(cache, Request("b", tokens(99)))
    assert cache.num_free(1) == 0
    while sequence.computed < 34:
        batch = cache.add_sequence_batch([], continuing=[sequence], max_chunk=16)
        finish(cache, batch.plan)
        told.append(places(batch))
        compute(cache, sequence)
    assert (told, cache.num_free(1)) == ([[8, 16], [32], []], 1)
    assert starts(cache, 34, 16, 32) == [0, 32]
    release(cache, sequence, other)


def test_a_group_that_cannot_still_cuts(store: StoreName) -> None:
    """inside-06: beside it a state every 16, kept where a step ends: steps end at 16, 32, 34."""
    groups = (FULL, state(), LayerGroup("other", snapshot_every=16, snapshot_at_end=False))
    cache = build(store, (64, 16, 16), groups=groups)
    batch = try_admit(cache, Request("a", tokens(range(34))))
    (sequence,) = batch.sequences
    told, ends = [places(batch)], [batch.spans[sequence].end]
    compute(cache, sequence)
    while sequence.computed < 34:
        batch = cache.add_sequence_batch([], continuing=[sequence])
        finish(cache, batch.plan)
        ends.append(batch.spans[sequence].end)
        told.append(places(batch))
        assert not places(batch, 2)
        compute(cache, sequence)
    assert (ends, told) == ([16, 32, 34], [[8, 16], [24, 32], []])
    assert starts(cache, 34, 8, 16, 24, 32) == [0, 16, 16, 32], "a start needs both"
    assert (cache.stats(1).copied, cache.stats(2).copied) == (0, 2)
    release(cache, sequence)


def test_a_step_that_goes_on_takes_nothing_away(store: StoreName) -> None:
    """inside-07: 16 tokens handed out, a 17th grown before they are told: start 16, none skipped."""
    for inside, found in ((True, 16), (False, 8)):
        cache = build_inside(store, group=state(snapshot_inside=inside, snapshot_at_end=False))
        (sequence,) = admit(cache, Request("a", tokens(range(16))))
        if not inside:
            compute(cache, sequence)
            batch = cache.add_sequence_batch([], continuing=[sequence])
            finish(cache, batch.plan)
        finish(cache, cache.grow(sequence, tokens(16)))
        compute(cache, sequence, 16)
        assert (start_of(cache, tokens(range(20))), cache.stats(1).skipped) == (found, int(not inside))
        compute(cache, sequence)
        release(cache, sequence)


def test_what_is_trimmed_is_not_written(store: StoreName) -> None:
    """inside-08: 22 tokens handed out, trimmed to 14, others grown in their place, told: 8 is found, of the rest 16."""
    cache = build_inside(store, group=state(4, snapshot_at_end=False), max_length=64)
    (sequence,) = admit(cache, Request("a", tokens(range(22))))
    assert sequence.slots(1).tolist() == [1, 2, 3, 4, 5]
    assert cache.trim(sequence, 8) == 2 + 2, "two blocks, and two snapshots"
    finish(cache, cache.grow(sequence, tokens(range(50, 58))))
    compute(cache, sequence)
    assert starts(cache, 22, 12, 22) == [12, 12]
    changed = tokens(range(14), range(50, 58), 99)
    assert start_of(cache, changed) == 12, "pages that grow opened wait for the state to stand there"
    decode(cache, sequence, 58, 59)
    compute(cache, sequence)
    assert start_of(cache, tokens(range(14), range(50, 60), 99)) == 24
    release(cache, sequence)


def test_a_part_that_is_handed_out_again_has_its_slots(store: StoreName) -> None:
    """inside-09: 30 tokens, steps of 20: the first handed out twice, then 10 of it, then the rest: the same slots."""
    cache = build_inside(store, max_chunk=20)
    batch = try_admit(cache, Request("a", tokens(range(30))), max_chunk=20)
    (sequence,) = batch.sequences
    first = batch.snapshots[sequence]
    assert [one.position for one in first] == [8, 16]
    for limit, told in ((20, first), (10, first[:1])):
        batch = cache.add_sequence_batch([], continuing=[sequence], max_chunk=limit)
        finish(cache, batch.plan)
        assert batch.snapshots[sequence] == told
    compute(cache, sequence)
    assert (sequence.computed, starts(cache, 30, 30)) == (10, [8])
    batch = cache.add_sequence_batch([], continuing=[sequence], max_chunk=20)
    finish(cache, batch.plan)
    assert [one.position for one in batch.snapshots[sequence]] == [16, 24, 28] and first[1] in batch.snapshots[sequence]
    compute(cache, sequence)
    assert starts(cache, 30, 16, 24, 28, 30) == [16, 24, 28, 28]
    release(cache, sequence)


@pytest.mark.parametrize(("group", "more", "told"), [
    (state(0), {}, [20]),
    (state(400, snapshot_at_end=False), {}, []),
    (state(0), {"resume_points": (4, 16)}, [4, 16, 20]),
    (state(12), {"resume_points": (4,)}, [4, 12, 20]),
    (state(), {"uncut": [Span(6, 17)]}, [20]),
    (state(), {"uncut": [Span(15, 22)]}, [8, 12]),
    (state(), {"reuse": False}, []),
])  # fmt: skip
def test_where_states_are_written(store: StoreName, group: LayerGroup, more: dict[str, Any], told: list[int]) -> None:
    """inside-10: 22 tokens: the end alone; none; named 4, 16; every 12, named 4; uncut 6..17, 15..22; reuse off."""
    cache = build_inside(store, group=group)
    batch = try_admit(cache, Request("a", tokens(range(22)), **more))
    assert (batch.spans[batch.sequences[0]], places(batch)) == (Span(0, 22), told)
    compute(cache, batch.sequences[0])
    assert starts(cache, 22, 22) == [max(told, default=0)]
    release(cache, batch.sequences[0])


def test_a_junction_inside_a_span(store: StoreName) -> None:
    """inside-11: a text of 30; one that parts from it at 18: one step that writes 16 too; the third starts there."""
    cache = build_inside(store, group=state(0))
    first, _ = prefill(cache, Request("a", tokens(range(30))))
    release(cache, first, store=False)
    batch = try_admit(cache, Request("b", tokens(range(18), range(50, 60))))
    (second,) = batch.sequences
    assert (second.start, batch.spans[second], places(batch)) == (0, Span(0, 28), [16, 24, 28])
    compute(cache, second)
    assert start_of(cache, tokens(range(18), 99, 98, 97, 96, 95)) == 16
    release(cache, second)


def test_while_decoding_it_is_as_ever(store: StoreName) -> None:
    """inside-12: 14 tokens, 11 sampled: 8 and 12 are written by the step, 16 and 24 copied when they are told."""
    cache = build_inside(store)
    sequence, spans = prefill(cache, Request("a", tokens(range(14))))
    assert spans == [Span(0, 14)] and cache.stats(1).copied == 0
    copies = []
    for token in range(14, 25):
        compute(cache, sequence)
        plan = cache.grow(sequence, tokens(token))
        assert plan is not None
        copies += [(sequence.length, move[0]) for move in moved(plan)]
        finish(cache, plan)
    assert copies == [(17, "copy"), (25, "copy")]
    assert starts(cache, 25, 8, 12, 16, 24) == [8, 12, 16, 24]
    release(cache, sequence)


def test_a_state_that_is_there_already(store: StoreName) -> None:
    """inside-13: 22 tokens twice in one batch: the second's pages go, the first's are found; no slot is lost."""
    cache = build_inside(store, 16)
    batch = try_admit(cache, *(Request(name, tokens(range(22))) for name in "ab"))
    for sequence in batch.sequences:
        compute(cache, sequence)
    assert (cache.usage(0, 1).idle, cache.usage(0, 1).empty) == (3, 16 - 3 - 2)
    assert starts(cache, 22, 8, 16, 20) == [8, 16, 20]
    release(cache, *batch.sequences, store=False)
    assert (cache.num_free(1), cache.usage(0, 1).idle) == (16, 3)


def test_what_was_grown_before_the_prompt_ran(store: StoreName) -> None:
    """inside-14: 16 tokens with priorities handed out, 8 grown, handed out again: 8 12 16 are written, 24 copied."""
    cache = build_inside(store)
    batch = try_admit(cache, Request("a", tokens(range(16)), retention=keep(50, 50, 50, 50)))
    (sequence,), first = batch.sequences, places(batch)
    finish(cache, cache.grow(sequence, tokens(range(16, 24))))
    batch = cache.add_sequence_batch([], continuing=[sequence])
    finish(cache, batch.plan)
    assert (batch.spans[sequence], first, places(batch)) == (Span(0, 24), [8, 12, 16], [8, 12, 16, 24])
    compute(cache, sequence)
    assert (starts(cache, 24, 8, 12, 16, 24), cache.stats(1).copied) == ([8, 12, 16, 24], 1)
    release(cache, sequence)
