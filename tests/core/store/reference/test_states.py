"""Groups that forget, in the reference store: recurrent states and their snapshots."""

from __future__ import annotations

import numpy as np

from .rig import (
    COPIED,
    COPIED_TOKENS,
    COPY,
    FULL,
    MISSED,
    ONBOARDED,
    STORED,
    TOTAL,
    T,
    block,
    columns,
    full,
    rig,
    stake,
    state,
)


def test_a_state_row_has_a_current_page_and_snapshots_in_chosen_columns() -> None:
    r = rig(groups=[state(2, 9)])
    r.admit(1, block(0, 4), asks=[(1, 2)])
    r.store.hand_out(1, 2 * T)
    assert columns(r, 1) == [1]
    assert (r.store.currents[0][1], r.store.current_slots[0][1]) == (0, 0) and stake(r, 1)["current"] == 0
    assert r.store.row_counters[0][1, TOTAL] == 2 and r.store.row_counters[0][1, MISSED] == 1
    page = int(r.store.pages[0][1, 1])
    r.events()
    assert r.store.commit_row(1, 2 * T) == 1
    assert [m[:8] for m in r.moves()] == [[COPY, 0, 0, 0, 0, 1, T, page]] and r.counter(COPIED_TOKENS) == T
    assert [(e[0], e[2], e[10]) for e in r.events()] == [(STORED, 1, 0)]
    assert columns(r, 1) == [] and r.order()[73] == [1]
    assert stake(r, 1) == {"front": 2, "shown": 2, "base": 0, "own": 0, "peak": 0, "current": 0}
    assert r.store.walk(r.chain(block(0, 4)), r.root, 15, 0).present(0).tolist() == [False, True]
    assert r.store.walk(r.chain(block(0, 4)), r.root, 15, 2).blocks == 2


def test_a_snapshot_that_the_row_has_passed_is_given_up() -> None:
    r = rig(groups=[state(1, 9)])
    r.admit(1, block(0, 3), asks=[(0, 3)])
    assert r.store.commit_row(1, 2 * T + 1) == 0
    assert columns(r, 1) == [2] and r.moves() == [] and r.store.num_empty(0, 0) == 7
    assert r.commit(1) == 1 and len(r.moves()) == 1
    r.admit(2, block(0, 3), usable=0, asks=[(2, 3)])
    assert r.commit(2) == 0 and r.moves() == []  # there is one already


def test_a_hit_resumes_from_a_copy_of_the_snapshot() -> None:
    r = rig(groups=[state(0, 3, 2)])
    r.admit(1, block(0, 2), asks=[(1, 2)])
    r.commit(1)
    snapshot = r.store.walk(r.chain(block(0, 2)), r.root, 8, 0)
    r.store.release(1, True, 0)  # a snapshot is there: the current page is freed
    assert r.store.num_empty(0, 0) == 2 and snapshot.blocks == 2
    r.moves(), r.events()
    hit = r.claim([*block(0, 2), 99], usable=8)
    assert hit.held(0).tolist() == [1] and hit.tiers(0).tolist() == [-1, 0]
    r.settle(2, hit, [*block(0, 2), 99], asks=[(2, 2)])
    assert columns(r, 2) == [] and [m[:7] for m in r.moves()] == [[COPY, 0, 0, 1, 0, 2, T]]
    assert [int(r.store.row_counters[0][2, c]) for c in (FULL, COPIED, COPIED_TOKENS, 12)] == [1, 1, T, 1]
    assert r.store.available(0) == 2 and r.events() == []


def test_a_cold_snapshot_is_copied_from_where_it_is() -> None:
    r = rig(groups=[state(0, 2, 1)])
    r.admit(1, block(0), asks=[(0, 1)])
    r.commit(1)
    r.store.release(1, True, 0)
    r.admit(1, block(50), asks=[(0, 1)])  # takes both device slots
    r.store.release(1, False, 0)
    r.moves()
    hit = r.claim([*block(0), 9])
    assert hit.num_cold(0) == 0 and hit.tiers(0).tolist() == [1]
    r.settle(1, hit, [*block(0), 9], asks=[(1, 1)])
    assert [m[:7] for m in r.moves()] == [[COPY, 0, 1, 0, 0, int(r.store.current_slots[0][1]), T]]
    assert r.store.row_counters[0][1, ONBOARDED] == 1 and r.store.num_idle(0, 1) == 1


def test_a_growing_row_takes_snapshots_every_so_often() -> None:
    r = rig(groups=[full(12), state(2, 12)])
    for row, keep in ((1, True), (2, False)):
        r.admit(row, block(0), keep=keep, asks=[(0, 1), (0, 0)], usable=0)
    assert r.store.grow(np.array([1, 2], np.int32), np.arange(2 * 13, dtype=np.int32), 13) == 4 + 2 + 4
    assert columns(r, 1, 1) == [1, 3] and columns(r, 2, 1) == []
    assert r.store.capacity[1].tolist()[1:3] == [4, 4] and stake(r, 1, 1)["own"] == 2
    assert r.store.trim(1, 2) == 1 + 1  # column 4 of group 0, the snapshot of block 3
    assert r.commit(1) == 3 and columns(r, 1, 1) == []


def test_a_released_rows_state_becomes_a_snapshot_at_a_blocks_edge() -> None:
    r = rig(groups=[full(8), state(0, 8)])
    r.cache(block(0, 2), asks=[(0, 2), (2, 2)])
    assert r.store.walk(r.chain(block(0, 2)), r.root, 8, 0).blocks == 2
    assert r.moves() == [] and r.store.num_idle(1, 0) == 1
    r.cache([*block(50), 1], usable=0, asks=[(0, 2), (1, 1)])
    assert r.store.num_idle(1, 0) == 2 and r.store.num_nodes == 4  # a tail is a partial block of both
    r.admit(1, block(80), asks=[(0, 1), (1, 1)])
    r.commit(1)
    r.store.release(1, False, 0)
    assert r.store.num_idle(1, 0) == 2


def test_a_partial_block_takes_the_state_and_no_empty_snapshot_page() -> None:
    r = rig(groups=[full(8), state(0, 8)])
    r.admit(1, [*block(0), 9], asks=[(0, 2), (1, 2)])
    r.store.release(1, True, 0)
    assert r.store.num_empty(1, 0) == 8
    r.admit(1, [*block(0), 9], asks=[(0, 2), (1, 2)])
    r.commit(1)
    state_page = int(r.store.currents[1][1])
    r.store.release(1, True, 0)
    assert r.store.num_empty(1, 0) == 7 and r.store.num_nodes == 2
    hit = r.store.walk(r.chain([*block(0), 9, 10]), r.root, T + 1, 2)
    assert (hit.blocks, hit.matched, r.store.claim(hit), hit.sources()[1]) == (1, 1, (0, 0), state_page)
    r.store.unclaim(hit)
    for tokens, usable, policy in (
        ([*block(0), 9, 10], T + 1, 0),
        ([*block(0), 9], T, 2),
        ([*block(0), 8, 9], T + 2, 2),
    ):
        assert r.store.walk(r.chain(tokens), r.root, usable, policy).start == 0  # only as a whole


def test_a_fork_goes_on_from_a_copy_of_the_state() -> None:
    r = rig(groups=[full(8), state(0, 8)])
    r.admit(1, block(0, 2), asks=[(0, 2), (1, 2)])
    r.store.commit_row(1, T + 1)
    assert r.store.fork_needs(1) == (1, 2) and r.store.fork(1, 2) == 3
    assert [m[:2] + m[3:4] + m[5:7] for m in r.moves()] == [[COPY, 0, 1, 2, 1], [COPY, 1, 0, 3, T]]
    assert columns(r, 2, 1) == [1] and r.store.current_slots[1].tolist()[1:3] == [0, 3]
    assert r.store.row_counters[1][2, COPIED_TOKENS] == T and stake(r, 2, 1)["own"] == 1
    r.commit(1, 2)
    assert columns(r, 1, 1) == columns(r, 2, 1) == [] and r.store.num_idle(1, 0) == 1
    held = r.store.hold(1, 2, 1, 2)
    assert held is not None and held.tolist() == [r.store.currents[1][2]]
    for span in ((0, 1), (2, 9)):
        nothing = r.store.hold(1, 2, *span)
        assert nothing is not None and nothing.tolist() == []
    r.store.release(2, True, 0)
    r.store.unhold(1, held, 0)
    assert r.store.available(1) == 7


def test_spares_of_a_state_group_go_to_the_columns_then_to_the_state() -> None:
    r = rig(groups=[state(0, 4)])
    r.admit(1, block(0, 2), asks=[(1, 2)], spare=2)
    spares = r.store.dump().rows[1].spares[0]
    assert r.store.available(0) == 0 and r.store.fork(1, 2) == 0
    assert [r.store.pages[0][2, 1], r.store.currents[0][2]] == spares[::-1]
    assert r.store.fork(1, 3) == -1
