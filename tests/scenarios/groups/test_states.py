"""Recurrent state: one current state per sequence, snapshots where a step ends. Rows `state`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import Cache, InputError, LayerGroup, Plan, Request, Span, check
from quire.core.store import StoreName

from ..conftest import admit, build, compute, decode, finish, fork, release, start_of, tokens, try_admit
from .test_windows import prefill, starts

FULL = LayerGroup("full")


def state(every: int = 8, **more: Any) -> LayerGroup:
    return LayerGroup("state", snapshot_every=every, **more)


def build_hybrid(
    store: StoreName, slots: int = 8, every: int = 8, group: LayerGroup | None = None, **options: Any
) -> Cache:
    """A full group with room enough, and a state group of `slots`."""
    return build(store, (64, slots), groups=(FULL, group or state(every)), **options)


def moved(plan: Plan) -> list[tuple[str, int, tuple[int, int], tuple[int, int]]]:
    return [(move.kind.name.lower(), move.group, move.src, move.dst) for move in plan]


@pytest.mark.parametrize(("beams", "length", "each", "most"), [(4, 10, 4, 6), (8, 96, 8, 3), (1, 97, 1, 24)])
def test_without_reuse_a_sequence_is_its_states(
    store: StoreName, beams: int, length: int, each: int, most: int
) -> None:
    """state-01: 24 slots, reuse off: one slot per beam whatever the length, so 6, 3 and 24 sequences."""
    cache = build(store, (256, 24), groups=(FULL, state(64)), block_size=32, reuse=False, max_sequences=64)
    free = []
    for name in range(most):
        (sequence,) = admit(cache, Request(name, tokens(range(length)), beams=beams))
        free.append(cache.num_free(1))
        assert (sequence.slots(1) == -1).all() and sequence.state_slot(1) == name * each
    assert free == [24 - each * (n + 1) for n in range(most)]
    (refusal,) = try_admit(cache, Request("more", tokens(range(length)), beams=beams)).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.group) == ("slots", each, 0, 1)
    release(cache, *(cache.sequence(name) for name in range(most)))
    assert (cache.num_free(1), cache.usage(0, 1).empty) == (24, 24)


def test_snapshots_of_a_prompt_and_of_what_it_decodes(store: StoreName) -> None:
    """state-02: 100 tokens and 100 sampled, snapshots every 64: at 64, at 96 (the last edge), then at 128 and 192."""
    cache = build(store, (32, 8), groups=(FULL, state(64)), block_size=32)
    sequence, spans = prefill(cache, Request("a", tokens(range(100))))
    assert spans == [Span(0, 64), Span(64, 96), Span(96, 100)]
    assert (sequence.slots(1).tolist(), sequence.state_slot(1), cache.num_free(1)) == ([-1, -1, -1], 0, 7)
    copies = []
    for token in range(100, 200):
        compute(cache, sequence)
        plan = cache.grow(sequence, tokens(token))
        assert plan is not None
        copies += [(sequence.length, *move) for move in moved(plan)]
        finish(cache, plan)
    assert copies == [(129, "copy", 1, (0, 0), (0, 3)), (193, "copy", 1, (0, 0), (0, 4))]
    assert (sequence.state_slot(1), cache.num_free(1), cache.usage(0, 1).idle) == (0, 7, 4)
    assert starts(cache, 199, 63, 64, 95, 96, 127, 128, 191, 192, 199) == [0, 64, 64, 96, 96, 128, 128, 192, 192]
    release(cache, sequence)


def test_without_reuse_there_are_no_snapshots(store: StoreName) -> None:
    """state-03: the same with reuse off: one slot from the first token to the last, one span."""
    cache = build(store, (32, 8), groups=(FULL, state(64)), block_size=32, reuse=False)
    sequence, spans = prefill(cache, Request("a", tokens(range(100))))
    assert spans == [Span(0, 100)]
    decode(cache, sequence, *range(100, 200))
    assert (sequence.slots(1).tolist(), sequence.state_slot(1), cache.num_free(1)) == ([-1] * 6, 0, 7)
    release(cache, sequence)
    assert cache.usage(0, 1).empty == 8


def test_the_copy_rides_in_the_next_plan(store: StoreName) -> None:
    """state-04: each snapshot is copied from the state's slot, which never changes; forks at an edge copy it too."""
    cache = build_hybrid(store)
    (sequence,) = admit(cache, Request("a", tokens(range(17))))
    assert (sequence.state_slot(1), sequence.slots(1).tolist()) == (0, [-1, 1])
    for slot, then in ((1, [-1, -1, -1, 2]), (2, [-1, -1, -1, -1])):
        compute(cache, sequence)
        assert all(hole == -1 for hole in sequence.slots(1))
        with cache.claim([]) as none:
            batch = cache.admit(none, continuing=[sequence])
        assert moved(batch.plan) == [("copy", 1, (0, 0), (0, slot))] and sequence.slots(1).tolist() == then
        finish(cache, batch.plan)
    compute(cache, sequence)
    forks, plan = fork(cache, sequence, "b", "c", "d")
    copies = [move for move in moved(plan) if move[1] == 1]
    assert copies == [("copy", 1, (0, 0), (0, slot)) for slot in (3, 4, 5)]
    assert [fork.state_slot(1) for fork in forks] == [3, 4, 5]
    finish(cache, plan)
    decode(cache, sequence, *range(50, 60))
    assert sequence.state_slot(1) == 0
    release(cache, sequence, *forks)


def test_a_pool_of_states_is_a_number_of_sequences(store: StoreName) -> None:
    """state-05: reuse off, 20 slots: exactly 20 sequences, however long they get."""
    cache = build(store, (256, 20), groups=(FULL, state(64)), reuse=False, max_sequences=32)
    batch = try_admit(cache, *(Request(n, tokens(range(5 + n))) for n in range(21)))
    assert (len(batch.sequences), cache.num_free(1)) == (20, 0)
    assert [(refusal.reason, refusal.group) for refusal in batch.refused] == [("slots", 1)]
    cache.commit(batch.sequences)
    finish(cache, cache.grow(batch.sequences, np.zeros((20, 12), np.int32)))
    assert cache.num_free(1) == 0


def test_tables_show_holes_and_states(store: StoreName) -> None:
    """state-06: the block table has -1 where there is no page; the state has a table of its own, by row."""
    cache = build_hybrid(store)
    first, second = admit(cache, Request("a", tokens(range(10))), Request("b", tokens(range(50, 53))))
    assert cache.table(1)[first.row, :3].tolist() == [-1, 1, -1]
    assert cache.state_table(1)[[first.row, second.row]].tolist() == [0, 2]
    assert cache.state_table(1).tolist().count(-1) == 14 and (cache.state_table(0) == -1).all()
    assert (first.state_slot(1), first.state_slot(0)) == (0, -1)
    with pytest.raises(ValueError, match="read-only"):
        cache.state_table(1)[0] = 5
    release(cache, first, second)
    assert (cache.state_table(1) == -1).all()


@pytest.mark.parametrize(
    ("every", "at_end", "named", "ends"),
    [
        (8, True, (), [8, 16, 20, 22]),
        (8, False, (), [8, 16, 22]),
        (0, True, (), [20, 22]),
        (12, False, (4, 16), [4, 12, 16, 22]),
        (8, True, (6, 20, 22), [4, 8, 16, 20, 22]),
    ],
)
def test_where_snapshots_are(
    store: StoreName, every: int, at_end: bool, named: tuple[int, ...], ends: list[int]
) -> None:
    """state-07: 22 tokens: steps end at regular, last and named positions, and exactly there a prompt can resume."""
    cache = build_hybrid(store, group=state(every, snapshot_at_end=at_end))
    sequence, spans = prefill(cache, Request("a", tokens(range(22)), resume_points=named))
    assert [span.end for span in spans] == ends
    release(cache, sequence)
    kept = [0, *ends]  # the last of them as a tail
    assert starts(cache, 22, *range(1, 23)) == [max(at for at in kept if at <= n) for n in range(1, 23)]


def test_no_position_between_snapshots(store: StoreName) -> None:
    """state-08: full attention has 20 tokens, snapshots stand at 8 and 16: prompts start at 0, 8 or 16 only."""
    cache = build_hybrid(store, group=state(8, snapshot_at_end=False))
    sequence, _ = prefill(cache, Request("a", tokens(range(20))))
    release(cache, sequence, store=False)
    with cache.claim([Request("b", tokens(range(16), 50, 51))]) as claims:
        assert (claims[0].start, claims[0].spans) == (16, ((Span(0, 16),), (Span(12, 16),)))
    with cache.claim([Request("b", tokens(range(16)))], purpose="decode") as claims:
        assert (claims[0].start, claims[0].wanted_blocks) == (16, ((), ()))
        assert claims[0].spans == ((Span(0, 16),), (Span(12, 16),))
    assert starts(cache, 20, 7, 8, 15, 16, 19, 20) == [0, 8, 8, 16, 16, 16]


@pytest.mark.parametrize("length", [20, 25])
def test_a_state_is_only_known_at_the_end_of_its_tokens(store: StoreName, length: int) -> None:
    """state-09: a length other than the prompt's is refused before anything is claimed."""
    cache = build_hybrid(store)
    good = Request("a", tokens(range(22)))
    with pytest.raises(InputError, match="leave length at None"):
        cache.claim([good, Request("b", tokens(range(22)), length=length)])
    check(cache)
    cache.clear()  # no claim is open
    assert (cache.num_free(0), cache.num_free(1)) == (64, 8)


def test_a_suspended_sequence_resumes_from_its_last_snapshot(store: StoreName) -> None:
    """state-10: 14 tokens and 8 sampled, computed to 21: resumed at 16, the last snapshot: six to recompute."""
    cache = build_hybrid(store)
    sequence, _ = prefill(cache, Request("a", tokens(range(14)), max_new_tokens=20))
    decode(cache, sequence, *range(14, 22))
    resumed = cache.suspend(sequence)
    check(cache)
    assert (len(resumed.tokens), resumed.max_new_tokens, start_of(cache, resumed.tokens)) == (22, 12, 16)
    sequence, spans = prefill(cache, resumed)
    assert spans == [Span(16, 20), Span(20, 22)]
    release(cache, sequence)


@pytest.mark.parametrize(("sampled", "keep", "found"), [(3, True, 24), (2, True, 23), (3, False, 20)])
def test_release_on_a_block_edge_leaves_a_snapshot_without_a_copy(
    store: StoreName, sampled: int, keep: bool, found: int
) -> None:
    """state-11: 22 tokens, computed to 24, released: the state is the snapshot, at 23 a tail's; not cancelled."""
    cache = build_hybrid(store, every=0)
    sequence, _ = prefill(cache, Request("a", tokens(range(22))))
    decode(cache, sequence, *range(22, 21 + sampled))
    compute(cache, sequence)
    slot, copied = sequence.state_slot(1), cache.stats(1).copied
    release(cache, sequence, store=keep)
    assert (cache.stats(1).copied, len(cache.offload(0))) == (copied, 0)
    assert (starts(cache, 25, 25), cache.usage(0, 1).idle) == ([found], 2 if keep else 1)
    (after,) = admit(cache, Request("b", tokens(range(25), 99)))
    assert (after.start, after.counts(1).copied, after.state_slot(1) != slot) == (found, int(found != 23), found != 23)
    release(cache, after)


def test_a_state_cannot_be_taken_back(store: StoreName) -> None:
    """state-12: 10 tokens computed, 3 more grown: those three can be trimmed, the computed ones cannot."""
    cache = build_hybrid(store)
    sequence, _ = prefill(cache, Request("a", tokens(range(10))))
    finish(cache, cache.grow(sequence, tokens(50, 51, 52)))
    with pytest.raises(InputError, match="a recurrent state cannot be taken back"):
        cache.trim(sequence, 4)
    assert (cache.trim(sequence, 3), sequence.length) == (1, 10)
    check(cache)
    compute(cache, sequence)
    with pytest.raises(InputError, match="0 tokens of sequence 'a' can be taken back"):
        cache.trim(sequence, 1)
    release(cache, sequence)


def test_snapshots_do_not_stay_with_their_sequence(store: StoreName) -> None:
    """state-13: a snapshot is idle as soon as it is taken: with 2 slots each takes the place of the one before."""
    cache = build_hybrid(store, 3)
    sequence, spans = prefill(cache, Request("a", tokens(range(34))))
    assert ([span.end for span in spans], cache.num_free(1)) == ([8, 16, 24, 32, 34], 2)
    assert (starts(cache, 34, 8, 16, 24, 32), cache.stats(1).dropped) == ([0, 0, 24, 32], 2)
    (other,) = admit(cache, Request("b", tokens(range(50, 52))))
    assert (cache.num_free(1), starts(cache, 34, 24, 32)) == (1, [0, 32])
    release(cache, sequence, other)


def test_a_snapshot_serves_several(store: StoreName) -> None:
    """state-14: two prompts go on from one snapshot: each has its own copy, the snapshot stays idle and found."""
    cache = build_hybrid(store)
    seed, _ = prefill(cache, Request("seed", tokens(range(9))))
    release(cache, seed, store=False)
    with cache.claim([Request(n, tokens(range(9), range(n, n + 4))) for n in (50, 60)]) as claims:
        assert [(claim.start, claim.slots_needed) for claim in claims] == [(8, (2, 2)), (8, (2, 2))]
        batch = cache.admit(claims)
    check(cache)
    assert moved(batch.plan) == [("copy", 1, (0, 1), (0, slot)) for slot in (2, 4)]
    finish(cache, batch.plan)
    assert ([s.state_slot(1) for s in batch.sequences], cache.num_free(1), cache.usage(0, 1).idle) == ([2, 4], 4, 1)
    release(cache, *batch.sequences)


def test_a_snapshot_on_the_host_is_copied_from_there(store: StoreName) -> None:
    """state-15: 3 + 4 slots: the snapshot was pushed down; a hit reads it straight into the state, one onboard."""
    cache = build(store, (64, 3), (64, 4), groups=(FULL, state(8)))
    seed, _ = prefill(cache, Request("seed", tokens(range(9))))
    release(cache, seed, store=False)
    second, _ = prefill(cache, Request("b", tokens(range(50, 59))))
    (third,) = admit(cache, Request("c", tokens(range(60, 63))))
    assert (cache.usage(1, 1).idle, cache.num_free(1)) == (1, 1)
    release(cache, second, third, store=False)
    batch = try_admit(cache, Request("a", tokens(range(10))))
    (sequence,) = batch.sequences
    assert sequence.start == 8
    assert [move for move in moved(batch.plan) if move[1]] == [("copy", 1, (1, 0), (0, sequence.state_slot(1)))]
    counts = sequence.counts(1)
    assert (counts.onboarded, counts.reused_from, cache.num_free(1)) == (1, (0, 1), 2)
    release(cache, sequence)


def test_every_group_has_its_own_numbers(store: StoreName) -> None:
    """state-16: full, window and state over one prompt and its repetition: reused 4, 2 and 1 pages, missed 1, 1, 0."""
    cache = build(store, (16, 16, 4), groups=(FULL, LayerGroup("near", window=8), state(8)))
    first, _ = prefill(cache, Request("a", tokens(range(18))))
    release(cache, first)
    (second,) = admit(cache, Request("b", tokens(range(18))))
    counts = [second.counts(group) for group in range(3)]
    assert [(c.reused, c.missed, c.copied) for c in counts] == [(4, 1, 0), (2, 1, 0), (1, 0, 1)]
    assert [cache.stats(group).allocated for group in range(3)] == [6, 6, 4]
    assert [cache.num_free(group) for group in range(3)] == [11, 13, 3]
    release(cache, second)


def test_a_hold_has_the_state_when_it_ends_with_it(store: StoreName) -> None:
    """state-17: 10 tokens computed: a hold to 10 keeps the current state beyond release, one to 8 does not."""
    cache = build_hybrid(store)
    sequence, _ = prefill(cache, Request("a", tokens(range(10))))
    whole, part = cache.hold(sequence, Span(0, 10)), cache.hold(sequence, Span(0, 8))
    assert whole is not None and part is not None
    assert (whole.slots[1].tolist(), whole.blocks[1].tolist(), part.slots[1].tolist()) == ([0], [2], [])
    release(cache, sequence)
    assert cache.num_free(1) == 7
    cache.drop(whole)
    cache.drop(part)
    check(cache)
    assert cache.num_free(1) == 8


def test_no_slot_is_asked_for_a_snapshot_that_cannot_be(store: StoreName) -> None:
    """state-18: 3 tokens have no block edge, 2 tokens behind a hit of 8 neither: one state slot each, not two."""
    cache = build_hybrid(store)
    seed, _ = prefill(cache, Request("seed", tokens(range(9))))
    release(cache, seed)
    with cache.claim([Request("a", tokens(50, 51, 52)), Request("b", tokens(range(10)))]) as claims:
        assert [claim.slots_needed for claim in claims] == [(1, 1), (1, 1)]


@pytest.mark.parametrize(("late", "found", "skipped"), [(False, 16, 0), (True, 12, 1)])
def test_a_step_under_way_leaves_no_snapshot(store: StoreName, late: bool, found: int, skipped: int) -> None:
    """state-19: 16 tokens computed, told before or after the next one was handed out: only then the state is known."""
    cache = build_hybrid(store)
    sequence, _ = prefill(cache, Request("a", tokens(range(14))))
    decode(cache, sequence, 14, 15)
    if not late:
        compute(cache, sequence)
    finish(cache, cache.grow(sequence, tokens(16)))
    cache.commit(np.array([sequence.row], np.int32), np.array([16], np.int32))
    check(cache)
    assert (start_of(cache, tokens(range(20))), cache.stats(1).skipped) == (found, skipped)
    assert (sequence.computed, sequence.ran, sequence.committed) == (16, 17, 16)
    compute(cache, sequence)
    release(cache, sequence)
    assert start_of(cache, tokens(range(20))) == 17


@pytest.mark.parametrize("taken_back", [False, True])
@pytest.mark.parametrize("end", ["release", "suspend"])
def test_a_state_that_may_have_gone_on_is_not_kept(store: StoreName, end: str, taken_back: bool) -> None:
    """state-20: computed to 24, one more token handed out, and perhaps taken back: the state is nobody's snapshot."""
    cache = build_hybrid(store, every=0)
    sequence, _ = prefill(cache, Request("a", tokens(range(22))))
    decode(cache, sequence, 22, 23, 24)
    held = cache.hold(sequence, Span(0, 24))
    assert held is not None and [len(pages) for pages in held.pages] == [6, 0]
    assert [len(blocks) for blocks in held.blocks] == [6, 0]
    cache.drop(held)
    if taken_back:
        cache.trim(sequence, 1)
    getattr(cache, end)(sequence)
    check(cache)
    assert (start_of(cache, tokens(range(30))), cache.stats(1).skipped, cache.usage(0, 1).idle) == (20, 1, 1)


def test_a_snapshot_after_tokens_were_taken_back(store: StoreName) -> None:
    """state-21: 15 computed, a token handed out, taken back, another one: known again once that one is computed."""
    cache = build_hybrid(store)
    sequence, _ = prefill(cache, Request("a", tokens(range(14))))
    decode(cache, sequence, 14, 77)
    cache.trim(sequence, 1)
    finish(cache, cache.grow(sequence, tokens(15)))
    compute(cache, sequence)
    assert (start_of(cache, tokens(range(20))), cache.stats(1).skipped) == (16, 0)
    release(cache, sequence)


@pytest.mark.parametrize(("ahead", "found", "skipped"), [(False, 16, 0), (True, 12, 1)])
def test_a_step_into_slots_without_tokens_leaves_no_snapshot(
    store: StoreName, ahead: bool, found: int, skipped: int
) -> None:
    """state-22: 16 computed; before they are told a 17th, which nobody knows yet, gets its slot and may be computed."""
    cache = build_hybrid(store)
    sequence, _ = prefill(cache, Request("a", tokens(range(14))))
    decode(cache, sequence, 14, 15)
    if ahead:
        finish(cache, cache.grow(sequence, num_tokens=1))
    compute(cache, sequence)
    assert (start_of(cache, tokens(range(20))), cache.stats(1).skipped) == (found, skipped)
    finish(cache, cache.grow(sequence, tokens(16)))
    decode(cache, sequence, *range(17, 24))
    compute(cache, sequence)
    assert (sequence.computed, start_of(cache, tokens(range(30)))) == (24, 24)
    release(cache, sequence)


@pytest.mark.parametrize("taken_back", [False, True])
def test_a_fork_of_a_state_that_may_have_gone_on(store: StoreName, taken_back: bool) -> None:
    """state-23: state-20, and a fork: it has handed out what its source has, and its state is no snapshot either."""
    cache = build_hybrid(store, every=0)
    sequence, _ = prefill(cache, Request("a", tokens(range(22))))
    decode(cache, sequence, 22, 23, 24)
    if taken_back:
        cache.trim(sequence, 1)
    (twin,), plan = fork(cache, sequence, "b")
    finish(cache, plan)
    assert (twin.computed, twin.ran) == (24, 24 if taken_back else 25)
    release(cache, sequence, store=False)
    release(cache, twin)
    assert (start_of(cache, tokens(range(30))), cache.stats(1).skipped) == (20, 1)


def test_no_state_is_held_before_it_has_come(store: StoreName) -> None:
    """state-24: a transfer is to bring a prompt whose first 4 tokens are found: no state is that of 4."""
    cache = build_hybrid(store)
    first, _ = prefill(cache, Request("first", tokens(range(5))))
    release(cache, first)
    with cache.claim([Request("a", tokens(range(12)))], purpose="decode") as claims:
        (sequence,) = cache.admit(claims).sequences
    held = cache.hold(sequence, Span(0, 4))
    assert held is not None and (sequence.computed, len(held.pages[1])) == (4, 0)
    cache.drop(held)
    release(cache, sequence)


@pytest.mark.parametrize(("decoding", "copies"), [(None, [64, 128]), (32, [64, 96, 128]), (0, []), (128, [128])])
def test_a_cadence_for_decoding_alone(store: StoreName, decoding: int | None, copies: list[int]) -> None:
    """state-25: every 64 in prompts, while decoding as well, every 32, never, every 128: 36 tokens, 100 sampled."""
    cache = build(store, (32, 8), groups=(FULL, state(64, snapshot_decoding=decoding)), block_size=32)
    sequence, spans = prefill(cache, Request("a", tokens(range(36))))
    assert spans == [Span(0, 32), Span(32, 36)], "a prompt has its own places"
    found = []
    for token in range(36, 136):
        compute(cache, sequence)
        plan = cache.grow(sequence, tokens(token))
        assert plan is not None
        found += [sequence.length - 1 for _ in moved(plan)]
        finish(cache, plan)
    assert found == copies
    edges = (64, 96, 128)
    assert starts(cache, 136, *edges) == [max([32, *(at for at in copies if at <= edge)]) for edge in edges]
    release(cache, sequence)
