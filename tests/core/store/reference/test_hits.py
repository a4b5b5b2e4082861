"""Hits of the reference store: partial ones, and claims on more than one boundary."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.store.reference import Store

from .rig import (
    COPIED,
    COPIED_TOKENS,
    COPY,
    MOVED,
    ONBOARD,
    PARTIAL,
    REMOVED,
    Rig,
    T,
    block,
    columns,
    full,
    offloaded,
    rig,
    stake,
    state,
    whole,
    window,
)

# Partial hits


def test_an_idle_leaf_is_taken_over_by_its_only_claimant() -> None:
    r = rig(4, 2)
    page = r.cache([1, 2, 3, 4, 5, 6])[1]
    r.events()
    hit = r.admit(1, [1, 2, 3, 4, 5, 9, 9])
    assert (hit.blocks, hit.matched, hit.start) == (1, 1, 5)
    assert r.store.pages[0][1, 1] == page and r.moves() == []
    assert r.store.page_info(0, page)[:2] == (-1, 1)
    assert r.kinds() == [REMOVED] and r.store.num_nodes == 1
    assert r.counter(PARTIAL) == 1 and r.counter(COPIED) == 0


def test_a_cold_leaf_is_onboarded_and_loses_its_colder_copies_when_taken_over() -> None:
    r = rig(1, 1)
    page = offloaded(r, [1, 2, 3])
    r.admit(1, [1, 2, 9])
    assert r.store.pages[0][1, 0] == page and r.place(page) == (0, -1)
    assert [m[0] for m in r.moves()] == [ONBOARD] and r.kinds() == [MOVED, REMOVED]
    assert r.order(1) == {0: [0]}


def test_two_claimants_copy_first_and_the_last_one_takes_over() -> None:
    r = rig(4)
    page = r.cache([1, 2, 3])[0]
    one, two = r.claim([1, 2, 8, 8]), r.claim([1, 2, 9, 9])
    assert r.store.source_state(two) == (1, (0,), (2,), (0,))
    r.settle(1, one, [1, 2, 8, 8])
    assert [m[:7] for m in r.moves()] == [[COPY, 0, 0, 0, 0, 1, 2]]
    assert r.counter(COPIED_TOKENS) == 2 and r.store.pages[0][1, 0] != page
    r.settle(2, two, [1, 2, 9, 9])
    assert r.moves() == [] and r.store.pages[0][2, 0] == page


def test_a_held_page_is_copied_and_policy_1_does_not_find_it() -> None:
    r = rig(4)
    r.admit(1, block(0))
    r.commit(1)
    assert r.store.walk(r.chain([0, 1, 9]), r.root, 3, 1).source == -1
    assert r.store.walk(r.chain([0, 1, 9]), r.root, 3, 0).source == -1
    r.admit(2, [0, 1, 9])
    assert [m[:7] for m in r.moves()] == [[COPY, 0, 0, 0, 0, 1, 2]]


def test_ties_go_to_a_page_that_can_be_taken_in_place_then_to_the_hotter_then_to_the_lower_id() -> None:
    r = rig(4, 4)
    cold = [r.cache([5, 6, n], policy=0)[0] for n in (9, 8)]
    r.admit(1, block(50, 4))
    r.store.release(1, False, 0)
    assert [r.place(page)[0] for page in cold] == [-1, -1]

    def chosen() -> int:
        source = r.store.walk(r.chain([5, 6, 2]), r.root, 3, 2).source
        return next(page for page in range(8) if r.store.page_info(0, page).node == source)

    assert chosen() == min(cold)
    r.admit(1, [5, 6, 1, 1], policy=0)
    r.commit(1)
    assert chosen() == r.store.pages[0][1, 0]  # held, but hotter
    idle = [r.cache([5, 6, n], policy=0)[0] for n in (4, 3)]
    assert chosen() == min(idle)


def test_thousands_of_children_are_searched_from_the_query_outward() -> None:
    store = Store(T, [full(3_100)], 4, 8, 0, True, 35, False, 1)
    r = Rig(store, store.new_root(1))
    for n in range(3_000):
        r.cache([n - 1500, 1, 2], policy=0)
    hit = store.walk(r.chain([17, 1, 9]), r.root, 3, 2)
    assert hit.matched == 2 and store.num_nodes == 3_000
    assert store.walk(r.chain([-1500, 1, 2, 7]), r.root, 3, 2).matched == 3
    assert store.walk(r.chain([20_000]), r.root, 1, 2).source == -1


def test_at_most_64_children_are_examined() -> None:
    store = Store(T, [full(80)], 80, 8, 0, True, 35, False, 1)
    r = Rig(store, store.new_root(1))
    for n in range(64):  # all held: policy 1 does not want them
        r.admit(n, [1, n, 1, 1], policy=0)
        r.commit(n)
    r.admit(70, [1, 200, 1, 1], policy=0)
    r.commit(70)
    store.release(70, True, 0)
    assert store.walk(r.chain([1, 1000]), r.root, 2, 1).matched == 1  # the predecessor of the query
    assert store.walk(r.chain([1, -1]), r.root, 2, 1).source == -1  # 64 held ones come first


def test_extra_ids_make_tokens_differ() -> None:
    r = rig(4)
    r.cache(block(0))
    words = np.zeros((4, 3), np.uint64)
    words[2, 0] = 5
    chain = r.chain(block(0), words)
    hit = r.store.walk(chain, r.root, 4, 2)
    assert (hit.blocks, hit.matched) == (0, 2)
    assert chain.key(0) != r.chain(block(0)).key(0) and chain.clone().key(0) == chain.key(0)


def test_a_window_group_needs_its_tail_and_sinks_only() -> None:
    r = rig(groups=[full(8), window(1, 8, sink=1)])
    r.cache(block(0, 4))
    hit = r.admit(1, [*block(0, 4), 99])
    assert hit.blocks == 4
    assert [page >= 0 for page in r.store.pages[1][1, :5].tolist()] == [True, False, False, True, True]
    assert hit.tiers(1).tolist() == [0, -1, -1, 0]


# Claims on more than one boundary


def test_needs_hold_per_group_what_was_found() -> None:
    r = rig(groups=[full(8), window(1, 8), state(0, 8)])
    tokens = block(0, 4)
    r.admit(1, tokens, asks=[(0, 4), (0, 4), (1, 2)])
    r.store.hand_out(1, 2 * T)
    r.store.commit_row(1, 2 * T)
    r.store.commit_row(1, 4 * T)
    r.store.release(1, False, 0)
    hit = r.store.walk(r.chain(tokens), r.root, 16, 0)
    assert hit.blocks == 2 and hit.num_nodes == 4
    assert [hit.held(g).tolist() for g in range(3)] == [[0, 1], [1], [1]]
    before = r.store.dump()
    r.store.claim(hit, [(0, 0, 4), (0, 3, 4), (0, 3, 4)])
    assert [hit.held(g).tolist() for g in range(3)] == [[0, 1, 2, 3], [3], []]
    assert hit.tiers(1).tolist() == [-1, -1, -1, 0]
    r.store.unclaim(hit)
    assert r.store.dump() == before and hit.tiers(1).tolist() == [-1, 0]
    r.store.claim(hit, [(0, 0, 4), (0, 3, 4), (0, 0, 4)])
    r.settle(1, hit, tokens, asks=[(2, 2), (2, 2), (0, 0)])
    assert [columns(r, 1, g) for g in range(3)] == [[0, 1, 2, 3], [3], []]
    assert [int(capacity[1]) for capacity in r.store.capacity] == [4, 4, 0]
    assert [stake(r, 1, g)["front"] for g in range(3)] == [0, 3, 2] and stake(r, 1, 1)["base"] == 2
    assert (r.store.computed[1], r.store.committed[1]) == (8, 2) and r.store.dump().rows[1].ahead is True
    assert r.store.row_counters[2][1, COPIED] == 1
    r.store.release(1, True, 0)
    assert [r.store.available(g) for g in range(3)] == [8, 8, 8]


def test_a_row_ahead_of_what_it_computed_stores_no_state() -> None:
    r = rig(groups=[state(0, 8)])
    r.cache(block(0), asks=[(0, 1)])
    for commits in (False, True):
        hit = r.store.walk(r.chain(block(0, 2)), r.root, 8, 0)
        r.store.claim(hit, [(0, 1, 2)])
        r.settle(1, hit, block(0, 2), asks=[(2, 2)])
        idle = r.store.num_idle(0, 0)
        if commits:
            r.commit(1)
        assert r.store.dump().rows[1].ahead is not commits
        r.store.release(1, True, 0)
        assert r.store.num_idle(0, 0) == idle + commits


def test_needs_are_refused_with_a_partial_block_or_for_other_groups_or_stale() -> None:
    r = rig(groups=[window(1, 3)])
    r.cache([*block(0), 5, 6])
    partial = r.store.walk(r.chain([*block(0), 5, 9]), r.root, 6, 2)
    stale = r.store.walk(r.chain(block(0)), r.root, 4, 0)
    for hit, needs in ((partial, [(0, 0, 1)]), (stale, []), (stale, [(0, 0, 1), (0, 0, 1)])):
        with pytest.raises(ValueError):
            r.store.claim(hit, needs)
    r.cache(block(50, 3))
    assert stale.present(0).tolist() == [True]
    with pytest.raises(ValueError):
        r.store.claim(stale, [(0, 0, 1)])


def test_a_full_group_is_held_up_to_its_first_hole_only() -> None:
    r = rig(groups=[full(8), window(1, 8)])
    r.cache(block(0, 3))
    page = next(p for p in range(8) if r.store.page_info(0, p).node >= 0 and r.place(p) == (1,))
    assert r.store.lose(0, page, 1)
    hit = r.store.walk(r.chain(block(0, 3)), r.root, 12, 0)
    assert hit.present(0).tolist() == [True, False, True] and hit.blocks == 1
    r.store.claim(hit, [(0, 0, 3), (0, 0, 3)])
    assert hit.held(0).tolist() == [0] and hit.held(1).tolist() == [0, 1, 2]
    r.store.unclaim(hit)


def test_the_walk_ends_where_every_full_group_has_met_a_hole() -> None:
    r = rig(groups=[full(8), full(8)])
    r.cache(block(0, 4))
    for group, place in ((0, 1), (1, 2)):
        page = next(p for p in range(8) if r.store.page_slots(group, p) == (place,))
        assert r.store.lose(group, page, 1)
    hit = r.store.walk(r.chain(block(0, 4)), r.root, 16, 0)
    assert (hit.blocks, hit.num_nodes) == (1, 3)
    r.store.claim(hit, [(0, 0, 4), (0, 0, 4)])
    assert [hit.held(g).tolist() for g in (0, 1)] == [[0], [0, 1]]


def test_a_seat_makes_the_tip_again_that_its_claim_did_not_hold() -> None:
    r = rig(groups=[state(0, 2)])
    r.cache(block(0), asks=[(0, 1)])
    hit = r.store.walk(r.chain(block(0, 2)), r.root, 8, 0)
    r.store.claim(hit, [(0, 1, 2)])
    r.admit(2, block(50), asks=[(0, 1)])
    assert r.store.num_nodes == 0
    r.store.release(2, False, 0)
    r.settle(1, hit, block(0, 2), asks=[(2, 2)])
    assert r.store.num_nodes == 1 and r.store.committed[1] == 1
    r.store.release(1, False, 0)
    assert r.store.num_nodes == 0


def test_asks_and_groups_are_checked_before_anything_changes() -> None:
    r = rig(groups=[full(4), state(0, 4)])
    r.cache(block(0, 2), asks=[(0, 2), (1, 2)])
    hit = r.claim([*block(0, 2), 9])
    r.store.seat(hit, 1, r.chain([*block(0, 2), 9]), r.root, True)
    before = r.store.dump()
    for asks in ([(0, 1), (0, 0)], [(2, 3)], [(3, 2), (0, 0)], [(2, 33), (0, 0)], [(-1, 3), (0, 0)]):
        with pytest.raises(ValueError):
            r.store.settle(1, hit, whole(asks), None, None, 35, -1)
    with pytest.raises(ValueError):
        r.store.settle(1, hit, whole([(2, 3), (0, 0)]), np.zeros(2, np.int16), None, 35, -1)
    assert r.store.dump() == before
    r.store.settle(1, hit, whole([(2, 3), (0, 0)]), None, None, 35, -1)
    for group in ((-1, 0, 1, 1, 0, 0, [4]), (2, 0, 0, 1, 0, 1, [4]), (1, 0, 0, 1, 0, 2, [4]), (1, 0, -2, 1, 0, 0, [4])):
        with pytest.raises(ValueError):
            rig(groups=[group])
