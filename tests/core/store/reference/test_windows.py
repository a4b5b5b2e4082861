"""Groups that forget, in the reference store: windows."""

from __future__ import annotations

import numpy as np
import pytest

from .rig import MISSED, T, block, columns, full, rig, stake, whole, window


def test_columns_behind_the_window_leave_the_row_and_stay_findable() -> None:
    r = rig(groups=[window(2, 8, sink=1)])
    r.admit(1, block(0, 6))
    assert r.store.commit_row(1, 3 * T) == 3
    assert columns(r, 1) == [0, 1, 2, 3, 4, 5] and stake(r, 1)["front"] == 1
    assert r.store.commit_row(1, 5 * T) == 2
    assert columns(r, 1) == [0, 3, 4, 5] and stake(r, 1)["front"] == 3
    assert r.order()[72] == [2, 1]  # deepest first; nobody resumes there
    assert r.store.available(0) == 4 and stake(r, 1)["own"] == 4
    hit = r.store.walk(r.chain(block(0, 6)), r.root, 5 * T, 0)
    assert hit.blocks == 5 and hit.held(0).tolist() == [0, 3, 4] and hit.present(0).tolist() == [True] * 5


def test_a_row_that_keeps_nothing_forgets_all_the_same() -> None:
    r = rig(groups=[full(8), window(1, 8)])
    r.admit(1, block(0, 4), keep=False)
    assert r.commit(1) == 0 and r.store.committed[1] == 4 and r.store.num_nodes == 0
    assert columns(r, 1, 1) == [3] and r.store.num_empty(1, 0) == 7
    assert stake(r, 1, 0)["shown"] == 4 and stake(r, 1, 0)["front"] == 0


def test_a_twin_that_leaves_takes_a_free_place_or_is_freed() -> None:
    r = rig(groups=[window(1, 6)])
    r.admit(1, block(0, 3), usable=0)
    r.admit(2, block(0, 3), usable=0)
    r.store.commit(np.array([1, 2], np.int32), np.array([T, T], np.int32))
    assert r.store.dump().rows[2].twins == 1
    assert r.store.lose(0, int(r.store.pages[0][1, 0]), 1)  # its place in the tree is free again
    twin = int(r.store.pages[0][2, 0])
    r.events()
    assert r.store.commit_row(2, 2 * T) == 2 and r.store.page_info(0, twin).holders == 0
    assert [e[2] for e in r.events()] == [1, 1]  # block 1 in its turn, block 0 as it left
    before = r.store.num_empty(0, 0)
    assert r.store.commit_row(1, 3 * T) == 1
    assert r.store.num_empty(0, 0) == before + 2  # the lost page and the twin of block 1
    assert r.store.dump().rows[1].twins == 1


def test_pages_that_are_to_leave_are_findable_as_soon_as_they_are_computed() -> None:
    r = rig(groups=[window(1, 8, sink=1)])
    r.admit(1, block(0, 6), asks=[(0, 3, 4)])
    assert r.store.commit_row(1, 3 * T) == 3 and stake(r, 1)["shown"] == 3
    assert columns(r, 1) == [0, 2] and (r.store.available(0), r.store.reserved(0)) == (4, 2)  # what left makes room
    assert r.store.walk(r.chain(block(0, 3)), r.root, 12, 0).present(0).tolist() == [True, True, True]
    assert r.extend(1, (3, 5, 4)) == 2 and (r.store.available(0), r.store.reserved(0)) == (4, 0)
    assert r.store.commit_row(1, 5 * T) == 2 and columns(r, 1) == [0, 4]
    assert r.extend(1, (5, 6, 0)) == 1
    r.events()
    assert r.store.commit_row(1, 5 * T) == 0 and not r.events()
    assert r.store.commit_row(1, 6 * T) == 1
    assert r.store.walk(r.chain(block(0, 6)), r.root, 24, 0).blocks == 6


def test_available_is_net_of_what_is_reserved_for_rows() -> None:
    r = rig(groups=[window(1, 8)])
    r.admit(1, block(0, 6), asks=[(0, 2, 3)])
    assert (r.store.available(0), r.store.reserved(0)) == (5, 1)
    r.store.commit_row(1, 2 * T)  # one page leaves: room for all, and reserved again
    assert (r.store.available(0), r.store.reserved(0), stake(r, 1)["own"]) == (5, 2, 1)
    r.admit(2, block(100, 5))
    assert r.store.available(0) == 0
    assert r.store.grow(np.array([2], np.int32), None, 1) == -1
    assert r.extend(2, (5, 6, 0)) == -1
    assert r.extend(1, (2, 4, 3)) == 2  # out of its own reserve
    assert (r.store.available(0), r.store.reserved(0)) == (0, 0)
    assert r.store.grow(np.array([2], np.int32), None, 0) == 0
    r.store.release(1, True, 0)
    r.store.release(2, False, 0)
    assert (r.store.available(0), r.store.reserved(0)) == (8, 0)


def test_extend_refuses_as_a_whole_and_adds_to_the_rows_counters() -> None:
    r = rig(groups=[full(4), window(1, 9)])
    r.admit(1, block(0, 6), asks=[(0, 3), (0, 3, 4)])
    before = r.store.dump()
    assert r.extend(1, (3, 5), (3, 5, 4)) == -1
    assert r.store.dump() == before
    for asks in ([(3, 2), (3, 3)], [(0, 33), (0, 3)], [(0, 3)], [(0, 3, -1), (0, 3)]):
        with pytest.raises(ValueError):
            r.extend(1, *asks)
    with pytest.raises(ValueError):
        r.store.extend(1, whole([(3, 4), (3, 4)]), np.zeros(3, np.int16), np.zeros(3, np.int64))
    with pytest.raises(LookupError):
        r.extend(2, (0, 1), (0, 1))
    assert r.store.dump() == before
    assert r.extend(1, (2, 4), (3, 4)) == 2  # only holes are filled
    assert r.store.row_counters[0][1, MISSED] == 4 and r.store.capacity[0][1] == 4
    assert stake(r, 1, 1) == {"front": 0, "shown": 0, "base": 0, "own": 4, "peak": 0, "current": -1}


def test_a_hit_in_a_window_has_its_front_where_the_tail_begins() -> None:
    r = rig(groups=[window(2, 12, sink=1)])
    r.cache(block(0, 5))
    r.admit(1, block(0, 7), usable=20, asks=[(5, 7)])
    assert columns(r, 1) == [0, 3, 4, 5, 6]
    assert stake(r, 1) == {"front": 3, "shown": 5, "base": 3, "own": 4, "peak": 0, "current": -1}  # nobody has 3 and 4
    r.commit(1)
    assert columns(r, 1) == [0, 5, 6] and stake(r, 1)["own"] == 2
    assert r.store.trim(1, 0) == 0


def test_standing_room_behind_the_length() -> None:
    r = rig(groups=[full(8), window(2, 8, extra=5)])
    r.admit(1, block(0, 1), asks=[(0, 1), (0, 3)])
    assert r.store.grow(np.array([1], np.int32), np.array([9], np.int32), 1) == 1  # group 0 only
    assert r.store.grow(np.array([1], np.int32), np.arange(3, dtype=np.int32), 3) == 1  # group 1 only: 13 tokens' room
    assert [int(capacity[1]) for capacity in r.store.capacity] == [2, 4]
    assert r.store.fork_needs(1) == (2, 4) and r.store.fork(1, 2) == 6
    assert r.store.trim(1, 4) == 2
    assert [int(capacity[1]) for capacity in r.store.capacity] == [1, 3]
    with pytest.raises(ValueError):
        r.store.grow(np.array([1], np.int32), None, 32 * T - 4 - 4)


def test_a_hold_on_leaving_pages_raises_the_reserve_or_is_refused() -> None:
    r = rig(groups=[window(1, 6)])
    r.admit(1, block(0, 6), asks=[(0, 2, 3)])
    held = r.store.hold(0, 1, 0, 2)
    assert held is not None and held.tolist() == [0, 1]
    assert stake(r, 1)["peak"] == 5 and r.store.available(0) == 1
    before = r.store.dump()
    assert r.store.hold(0, 1, 0, 2) is None
    assert r.store.dump() == before
    r.store.commit_row(1, 2 * T)
    assert columns(r, 1) == [1] and r.store.available(0) == 1  # page 0 is held on; what was set aside for it is used
    assert r.extend(1, (2, 4, 3)) == 2
    r.store.unhold(0, held, 0)
    r.store.release(1, True, 0)
    assert r.store.available(0) == 6
    r.admit(1, block(50, 6))
    assert r.store.hold(0, 1, 0, 6) is not None  # nothing reserved: no room needed


def test_forks_and_cuts_are_refused_where_pages_are_reserved_or_forgotten() -> None:
    r = rig(groups=[window(1, 8)])
    r.admit(1, block(0, 4), asks=[(0, 2, 3)])
    before = r.store.dump()
    with pytest.raises(ValueError):
        r.store.fork(1, 2)
    with pytest.raises(ValueError):
        r.store.recut(1, 0)
    assert r.store.dump() == before and r.store.fork_needs(1) == (4,)


def test_a_fork_shares_what_the_window_still_has() -> None:
    r = rig(groups=[window(1, 8)])
    r.admit(1, [*block(0, 3), 9])
    r.commit(1)
    assert r.store.fork(1, 2) == 1 and columns(r, 2) == [2, 3]
    assert stake(r, 2) == stake(r, 1) | {"own": 1}
    r.store.grow(np.array([2], np.int32), np.arange(4, dtype=np.int32), 4)
    r.commit(2)
    assert columns(r, 2) == [3, 4] and columns(r, 1) == [2, 3]


def test_without_tails_release_stores_full_blocks_only() -> None:
    r = rig(4, tails=False)
    r.cache([*block(0), 7, 8])
    assert r.store.num_nodes == 1 and r.store.num_empty(0, 0) == 3


def test_recut_offers_the_recomputed_blocks_again() -> None:
    r = rig(4)
    r.admit(1, block(0, 2))
    r.commit(1)
    assert r.store.lose(0, 1, 1) and r.store.recut(1, 1) == 0
    assert stake(r, 1)["shown"] == 1 and r.commit(1) == 0  # nothing was handed out since
    r.store.hand_out(1, 2 * T)
    assert r.commit(1) == 1
