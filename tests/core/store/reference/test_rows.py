"""Rows of the reference store: commit, grow, trim, fork, hold, and what failed moves do to them."""

from __future__ import annotations

import numpy as np
import pytest

from .rig import COPIED, COPY, MOVED, REMOVED, STORED, T, block, offloaded, rig

# Commit


def test_commit_tells_one_run_and_counts_new_pages() -> None:
    r = rig(8)
    r.admit(1, block(0, 3))
    assert r.commit(1) == 3 and r.commit(1) == 0
    records, hashes, details, tokens, lost = r.store.take_events()
    assert records.tolist() == [[STORED, 0, 3, 0, 0, T, 0, 0, 7, 7, 1]]
    assert len(hashes) == 3 and details.tolist() == [35] * 3 and tokens.tolist() == block(0, 3) and lost == 0
    with pytest.raises(LookupError):
        r.commit(1, 5)


def test_a_device_page_replaces_a_cold_duplicate_and_inherits_its_copies() -> None:
    r = rig(2, 2)
    cold = offloaded(r, block(0))
    r.admit(1, block(0), policy=0, usable=0)
    own = int(r.store.pages[0][1, 0])
    r.moves(), r.events()
    assert r.commit(1) == 0
    assert r.place(own) == (0, 0) and r.order(1) == {0: [1], 1: [0]}
    assert r.store.dump().groups[0].free_pages[-1] == cold
    assert [(e[0], e[6], e[7]) for e in r.events()] == [(MOVED, 1, 0)] and r.moves() == []
    assert r.store.dump().rows[1].twins == 0


def test_a_private_twin_takes_its_place_at_release_when_it_is_free() -> None:
    r = rig(3)
    r.admit(1, block(0), usable=0)
    r.admit(2, block(0), usable=0)
    assert r.commit(1, 2) == 1
    assert r.store.dump().rows[2].twins == 1
    r.store.release(1, True, 0)
    r.admit(3, block(50, 2))  # one empty slot, then the idle page: it is dropped, the node stays as row 2's tip
    assert r.store.num_nodes == 1
    twin = int(r.store.pages[0][2, 0])
    r.events()
    r.store.release(2, True, 0)
    assert r.kinds() == [STORED]
    assert r.store.page_info(0, twin).node >= 0


def test_a_twin_whose_place_is_taken_is_freed() -> None:
    r = rig(3)
    r.admit(1, block(0), usable=0)
    r.admit(2, block(0), usable=0)
    r.commit(1, 2)
    r.store.release(2, True, 0)
    assert r.store.num_empty(0, 0) == 2


def test_release_stores_the_computed_tail_unless_something_covers_it() -> None:
    r = rig(6)
    r.cache([*block(0), 7, 8])
    assert r.store.num_nodes == 2
    r.admit(1, [*block(0), 7], policy=0)
    r.commit(1)
    r.events()
    r.store.release(1, True, 0)
    assert r.store.num_nodes == 2 and r.events() == []
    r.cache([*block(0), 9], policy=0)
    records = r.events()
    assert [(e[0], e[2], e[5], e[10]) for e in records] == [(STORED, 1, 1, 0)]
    assert r.store.num_nodes == 3


# Rows


def test_grow_is_all_or_nothing() -> None:
    r = rig(4)
    r.admit(1, block(0))
    r.admit(2, block(10))
    rows = np.array([1, 2], np.int32)
    assert r.store.grow(rows, np.array([5, 6], np.int32), 1) == 2
    assert r.store.length.tolist()[1:3] == [5, 5]
    before = r.store.dump()
    assert r.store.grow(rows, None, 4) == -1
    assert r.store.dump() == before
    with pytest.raises(ValueError):
        r.store.grow(rows, None, 1000)
    assert r.store.tokens(2).tolist() == [10, 11, 12, 13, 6]


def test_trim_frees_the_last_columns_and_returns_them() -> None:
    r = rig(4)
    r.admit(1, block(0))
    r.commit(1)
    r.store.grow(np.array([1], np.int32), np.arange(9, dtype=np.int32), 9)
    assert r.store.capacity[0][1] == 4
    assert r.store.trim(1, 7) == 2
    assert (r.store.length[1], r.store.capacity[0][1], r.store.available(0)) == (6, 2, 2)
    assert r.order()[0] == [3, 2]


def test_fork_shares_full_pages_and_takes_spares_first() -> None:
    r = rig(8)
    r.admit(1, [*block(0), 8, 9], spare=1)
    r.commit(1)
    spare = r.store.dump().rows[1].spares[0][0]
    assert r.store.num_spares(0, 1) == 1
    assert r.store.fork(1, 2) == 0
    assert r.store.pages[0][2, :2].tolist() == [r.store.pages[0][1, 0], spare]
    assert [m[0:2] + m[6:8] for m in r.moves()] == [[COPY, 0, 2, spare]]
    assert r.store.row_counters[0][2, COPIED] == 1
    assert r.store.fork(1, 3) == 1
    r.store.release(2, True, 0)
    r.store.release(3, False, 0)
    r.store.release(1, False, 0)
    assert r.store.available(0) == 8


def test_fork_without_room_changes_nothing() -> None:
    r = rig(2)
    r.admit(1, [*block(0), 8])
    before = r.store.dump()
    assert r.store.fork(1, 2) == -1
    assert r.store.dump() == before


def test_a_hold_outlives_its_row() -> None:
    r = rig(4)
    r.admit(1, block(0, 2))
    r.commit(1)
    held = r.store.hold(0, 1, 0, 2)
    r.store.release(1, True, 0)
    assert r.store.available(0) == 2
    r.store.unhold(0, held, 0)
    assert r.store.available(0) == 4 and r.order()[73] == [1, 0]


# Failed moves


def test_lose_detaches_and_recut_gives_the_row_pages_of_its_own() -> None:
    r = rig(6)
    pages = r.cache(block(0, 2))
    r.admit(1, [*block(0, 2), 99])
    r.admit(2, [*block(0, 2), 98])
    r.events()
    stamp = r.store.page_info(0, pages[1]).stamp
    assert not r.store.lose(0, pages[1], stamp + 1)
    assert r.store.lose(0, pages[1], stamp)
    assert r.kinds() == [REMOVED]
    assert r.store.recut(1, 1) == 1  # shared by row 2 still
    assert r.store.recut(2, 1) == 0  # its own now: stays
    assert r.store.pages[0][2, 1] == pages[1] and r.store.pages[0][1, 1] != pages[1]
    assert (r.store.computed[1], r.store.committed[1]) == (4, 1)
    assert r.store.num_nodes == 1 and [node.tips for node in r.store.dump().nodes] == [0, 2]
    for row in (1, 2):
        r.store.hand_out(row, 2 * T)
    assert r.commit(1, 2) == 1


def test_lose_frees_an_idle_page() -> None:
    r = rig(2)
    page = r.cache(block(0))[0]
    assert r.store.lose(0, page, r.store.page_info(0, page).stamp)
    assert not r.store.lose(0, page, r.store.page_info(0, page).stamp)
    assert r.store.num_empty(0, 0) == 2 and r.store.num_nodes == 0
