"""In which order the reference store gives slots up, and what claims on pages do to it."""

from __future__ import annotations

import pytest

from .rig import RETAINED, block, rig

# Order


def test_empty_slots_go_first_then_priorities_ascending_each_first_in_first_out() -> None:
    r = rig(6)
    a, b = r.cache(block(0)), r.cache(block(10), priority=50)
    c, d = r.cache(block(20), priority=20), r.cache(block(30))
    assert r.order() == {0: [4, 5], 3 + 2 * 20: [2], 3 + 2 * 35: [0, 3], 3 + 2 * 50: [1]}
    r.admit(1, block(100, 5))
    assert r.store.slots[0][1, :5].tolist() == [4, 5, 2, 0, 3]
    assert [r.place(page)[0] for page in b] == [1]
    assert (a, c, d) == ([0], [2], [3])


def test_release_order_puts_empty_slots_among_the_pages_of_default_priority() -> None:
    r = rig(3, order=1)
    r.cache(block(0))
    assert r.order() == {73: [1, 2, 0]}
    r.admit(1, block(10, 2))
    r.store.release(1, False, 0)
    assert r.order() == {73: [0, 2, 1]}  # deepest first
    assert r.store.num_empty(0, 0) == 2 and r.store.num_idle(0, 0) == 1


def test_a_released_row_gives_its_deepest_block_first() -> None:
    r = rig(4)
    r.cache(block(0, 3))
    assert r.order()[73] == [2, 1, 0]


def test_claimed_pages_keep_their_place_and_are_passed_over() -> None:
    r = rig(3)
    for start in (0, 10, 20):
        r.cache(block(start))
    before = r.store.dump()
    hit = r.claim(block(0))
    assert r.store.available(0) == 2
    assert r.order() == {73: [0, 1, 2]}
    r.admit(1, block(50))
    assert r.store.slots[0][1, 0] == 1
    r.store.release(1, False, 0)
    r.store.unclaim(hit)
    assert r.store.available(0) == 3
    r.admit(1, block(60, 2))
    assert r.store.slots[0][1, :2].tolist() == [1, 0]
    assert before.groups[0].available == 3


def test_claiming_twice_or_unclaiming_twice_is_an_error() -> None:
    r = rig(3)
    r.cache(block(0))
    hit = r.claim(block(0))
    with pytest.raises(ValueError):
        r.store.claim(hit)
    r.store.unclaim(hit)
    with pytest.raises(ValueError):
        r.store.unclaim(hit)


def test_a_dropped_claim_leaves_everything_as_it_was() -> None:
    r = rig(4, 4)
    r.cache(block(0, 2))
    r.cache([*block(50, 2), 1])
    before = r.store.dump()
    hit = r.claim([*block(0, 2), 9])
    assert r.store.dump() != before
    r.store.unclaim(hit)
    assert r.store.dump() == before


# Retention


def test_priority_runs_out_after_its_duration() -> None:
    r = rig(4)
    page = r.cache(block(0), now=100, priority=80, duration=10)[0]
    r.cache(block(10))
    assert r.store.page_info(0, page)[3:6] == (80, 10, 110)
    r.events()
    r.store.refresh(109)
    assert r.order() == {0: [2, 3], 73: [1], 163: [0]}
    r.store.refresh(110)
    assert r.order() == {0: [2, 3], 73: [1, 0]}
    assert [(e[0], e[6], e[7]) for e in r.events()] == [(RETAINED, 80, 35)]


def test_holding_a_page_stops_its_clock() -> None:
    r = rig(4)
    page = r.cache(block(0), priority=80, duration=10)[0]
    r.admit(1, block(0))
    r.store.refresh(50)
    assert r.store.page_info(0, page)[3:6] == (80, 10, -1)
    r.store.release(1, True, 60)
    assert r.store.page_info(0, page).expiry == 70
