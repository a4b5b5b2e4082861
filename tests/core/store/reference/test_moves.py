"""Eviction, offload and onboard in the reference store: what moves where, and what is dropped."""

from __future__ import annotations

from .rig import (
    DEMOTED,
    DROPPED,
    EXCHANGE,
    MOVED,
    OFFLOAD,
    OFFLOADED,
    ONBOARD,
    ONBOARDED,
    REMOVED,
    STORED,
    T,
    block,
    offloaded,
    rig,
)

# Eviction


def test_eviction_without_a_colder_tier_drops_and_prunes() -> None:
    r = rig(2)
    r.cache(block(0))
    r.cache(block(10))
    r.admit(1, block(20))
    assert r.counter(DROPPED) == 1 and r.moves() == []
    assert r.store.num_nodes == 1
    assert r.kinds() == [STORED, STORED, REMOVED]


def test_eviction_offloads_what_is_worth_it_and_drops_the_rest() -> None:
    r = rig(2, 2)
    low, high = r.cache(block(0), priority=10), r.cache(block(10))
    r.events()
    r.admit(1, block(20, 2))
    stamp = r.store.page_info(0, high[0]).stamp
    assert r.moves() == [[OFFLOAD, 0, 0, 1, 1, 0, T, high[0], stamp, -1, -1]]
    assert r.place(high[0]) == (-1, 0)
    assert r.counter(DROPPED) == 1 and r.counter(OFFLOADED) == 1
    assert [(e[0], e[6], e[7]) for e in r.events()] == [(MOVED, 0, 1), (REMOVED, 0, 0)]
    assert low == [0]


def test_an_offload_never_displaces_a_higher_priority_but_cascades_over_lower_ones() -> None:
    r = rig(1, 1, 1)
    first, second = r.cache(block(0), priority=40), r.cache(block(10), priority=60)
    assert r.place(first[0]) == (-1, 0, -1)
    third = r.cache(block(20), priority=50)  # pushes second down, which pushes first down
    assert (r.place(second[0]), r.place(first[0])) == ((-1, 0, -1), (-1, -1, 0))
    r.admit(1, block(30))  # third may not displace second (60), so it displaces first on the last tier
    assert r.place(third[0]) == (-1, -1, 0)
    assert r.counter(DROPPED) == 1


def test_a_page_with_a_shadow_is_demoted_without_a_move() -> None:
    r = rig(2, 2)
    page = r.cache(block(0))[0]
    assert r.store.offload(0, 5) == 1
    assert r.order(1) == {0: [1], 1: [0]}
    r.moves(), r.events()
    r.admit(1, block(20, 2))
    assert r.place(page) == (-1, 0) and r.order(1) == {0: [1], 73: [0]}
    assert r.moves() == [] and r.counter(DEMOTED) == 1
    assert [(e[0], e[6], e[7]) for e in r.events()] == [(MOVED, 0, 1)]


def test_early_offload_takes_the_next_victims_in_order_and_only_empty_slots() -> None:
    r = rig(4, 1, 1)
    r.cache(block(0), priority=10)
    r.cache(block(10), priority=80)
    two = r.cache(block(20, 2))
    r.moves(), r.events()
    assert r.store.offload(0, 9) == 2
    assert [(m[3], m[4], m[5]) for m in r.moves()] == [(3, 1, 0), (2, 2, 0)]
    assert r.events() == [] and r.store.num_shadow(0, 1) == 1
    assert two == [2, 3]


# Onboard


def test_onboarding_into_an_empty_slot_leaves_a_shadow() -> None:
    r = rig(1, 1)
    page = offloaded(r, block(0))
    hit = r.claim(block(0))
    assert (hit.num_cold(0), hit.tiers(0).tolist()) == (1, [1])
    r.settle(1, hit, block(0))
    assert r.place(page) == (0, 0) and r.order(1) == {1: [0]}
    assert [m[:6] for m in r.moves()] == [[ONBOARD, 0, 1, 0, 0, 0]]
    assert [(e[0], e[6], e[7]) for e in r.events()] == [(MOVED, 1, 0)]
    assert r.store.row_counters[0][1, 13] == 1 and r.store.row_counters[0][1, ONBOARDED] == 1


def test_without_shadows_the_colder_slot_is_given_back() -> None:
    r = rig(1, 1, shadows=False)
    page = offloaded(r, block(0))
    r.admit(1, block(0))
    assert r.place(page) == (0, -1) and r.order(1) == {0: [0]}


def test_onboarding_offloads_the_victim_into_soft_room() -> None:
    r = rig(1, 2)
    page = offloaded(r, block(0))
    other = r.cache(block(10))[0]
    r.moves(), r.events()
    r.admit(1, block(0))
    assert [m[:6] for m in r.moves()] == [[OFFLOAD, 0, 0, 0, 1, 1], [ONBOARD, 0, 1, 0, 0, 0]]
    assert (r.place(page), r.place(other)) == ((0, 0), (-1, 1))


def test_onboarding_between_full_tiers_exchanges() -> None:
    r = rig(1, 1)
    page = offloaded(r, block(0))
    other = r.cache(block(10))[0]
    r.moves(), r.events()
    r.admit(1, block(0))
    stamps = [r.store.page_info(0, p).stamp for p in (page, other)]
    assert r.moves() == [[EXCHANGE, 0, 0, 0, 1, 0, T, page, stamps[0], other, stamps[1]]]
    assert (r.place(page), r.place(other)) == ((0, -1), (-1, 0))
    assert [(e[0], e[6], e[7]) for e in r.events()] == [(MOVED, 0, 1), (MOVED, 1, 0)]
    assert r.order(1) == {73: [0]}
