"""The twin store, one behaviour per test: small pools, small blocks, everything read back through the interface."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from quire.core.store.twin import Chain, Hit, Store
from quire.core.store.twin.keys.hash import read_seed, siphash

T = 4
ONBOARD, OFFLOAD, COPY, EXCHANGE = range(4)
CREATED, STORED, MOVED, RETAINED, REMOVED, CLEARED = range(6)
TOTAL, NEW, FULL, PARTIAL, MISSED, ONBOARDED, OFFLOADED, COPIED, DROPPED, DEMOTED, GROWN, COPIED_TOKENS = range(12)


def full(*slots: int) -> tuple[Any, ...]:
    return -1, 0, -1, 1, 0, 0, list(slots)


def window(tail: int, *slots: int, sink: int = 0, extra: int = 0) -> tuple[Any, ...]:
    return tail, sink, tail, 1, extra, 0, list(slots)


def state(every: int, *slots: int) -> tuple[Any, ...]:
    return 1, 0, 0, every, 0, 1, list(slots)


@dataclass
class Rig:
    """A store with one root, and short ways to say things."""

    store: Store
    root: int
    groups: Sequence[tuple[Any, ...]] = ()

    def chain(self, tokens: list[int], extras: Any = None) -> Chain:
        return Chain(T, np.array(tokens, np.int32), extras)

    def claim(self, tokens: list[int], policy: int = 2, usable: int | None = None) -> Hit:
        hit = self.store.walk(self.chain(tokens), self.root, len(tokens) if usable is None else usable, policy)
        self.store.claim(hit)
        return hit

    def settle(self, row: int, hit: Hit, tokens: list[int], **ask: Any) -> None:
        """Pages for all tokens, or what `asks` says: one tuple (first, stop[, peak]) per group."""
        self.store.seat(hit, row, self.chain(tokens), self.root, ask.get("keep", True))
        blocks = ask.get("blocks", -(-len(tokens) // T))
        asks = ask.get("asks", [(hit.blocks, blocks)] * len(self.store.pages))
        priority = ask.get("priority")
        priorities = None if priority is None else np.full(blocks, priority, np.int16)
        durations = None if priority is None else np.full(blocks, ask.get("duration", -1), np.int64)
        self.store.settle(row, hit, whole(asks, ask.get("spare", 0)), priorities, durations, ask.get("decode", 35), -1)

    def extend(self, row: int, *asks: tuple[int, ...]) -> int:
        return self.store.extend(row, whole(asks), None, None)

    def admit(self, row: int, tokens: list[int], **ask: Any) -> Hit:
        hit = self.claim(tokens, ask.get("policy", 2), ask.get("usable"))
        self.settle(row, hit, tokens, **ask)
        return hit

    def commit(self, *rows: int) -> int:
        return self.store.commit(np.array(rows, np.int32), None)

    def cache(self, tokens: list[int], now: int = 0, **ask: Any) -> list[int]:
        """Admit, compute, release: the pages are idle then, deepest first. Returns page ids."""
        self.admit(0, tokens, **ask)
        self.commit(0)
        pages = [page for page in self.store.pages[0][0].tolist() if page >= 0]
        self.store.release(0, True, now)
        return pages

    def moves(self) -> list[list[int]]:
        found: list[list[int]] = self.store.take_moves().tolist()
        return found

    def events(self) -> list[list[int]]:
        found: list[list[int]] = self.store.take_events()[0].tolist()
        return found

    def kinds(self) -> list[int]:
        return [record[0] for record in self.events()]

    def order(self, tier: int = 0) -> dict[int, list[int]]:
        return self.store.dump().groups[0].orders[tier]

    def place(self, page: int) -> tuple[int, ...]:
        return self.store.page_slots(0, page)

    def counter(self, index: int) -> int:
        return int(self.store.counters[0][index])


def whole(asks: Sequence[tuple[int, ...]], spare: int = 0) -> list[tuple[int, int, int, int]]:
    return [(first, stop, rest[0] if rest else 0, spare) for first, stop, *rest in asks]


def rig(*slots: int, groups: list[Any] | None = None, **options: Any) -> Rig:
    shape = groups or [full(*slots)]
    settings = {"order": 0, "shadows": True, "offload_min": 35, "events": True, "max_events": 10_000} | options
    store = Store(T, shape, 8, 32, **settings)
    store.take_events()
    return Rig(store, store.new_root(7), shape)


def block(start: int, blocks: int = 1) -> list[int]:
    return list(range(start, start + T * blocks))


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


def offloaded(r: Rig, tokens: list[int]) -> int:
    """Cache one block, push it to tier 1 by filling the device, free the device again."""
    page = r.cache(tokens)[0]
    r.admit(7, block(1000, int(r.store.available(0))), policy=0)
    r.store.release(7, False, 0)
    r.moves(), r.events()
    return page


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


def test_ten_thousand_children_are_searched_from_the_query_outward() -> None:
    store = Store(T, [full(10_100)], 4, 8, 0, True, 35, False, 1)
    r = Rig(store, store.new_root(1))
    for n in range(10_000):
        r.cache([n - 5000, 1, 2], policy=0)
    hit = store.walk(r.chain([17, 1, 9]), r.root, 3, 2)
    assert hit.matched == 2 and store.num_nodes == 10_000
    assert store.walk(r.chain([-5000, 1, 2, 7]), r.root, 3, 2).matched == 3
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


# Removal


def test_truncate_removes_the_subtree_and_unties_rows() -> None:
    r = rig(8)
    r.cache(block(0, 3))
    r.admit(1, [*block(0, 2), 50, 51, 52, 53])
    r.commit(1)
    r.events()
    assert r.store.truncate(r.root, r.chain(block(0, 3)), 12, 4) == 3
    assert r.store.num_nodes == 1
    assert r.store.dump().rows[1].tip == -1
    records, hashes, *_ = r.store.take_events()
    assert records[:, 0].tolist() == [REMOVED] and len(hashes) == 3
    assert r.commit(1) == 0
    r.store.release(1, True, 0)
    assert r.store.num_empty(0, 0) == 7


def test_truncate_removes_partial_blocks_along_the_tail() -> None:
    r = rig(8)
    r.cache([*block(0), 7])
    r.cache([*block(0), 7, 8], policy=0)
    r.cache([*block(0), 9], policy=0)
    assert r.store.num_nodes == 4
    assert r.store.truncate(r.root, r.chain([*block(0), 7, 8, 9]), 7, 5) == 0
    assert r.store.truncate(r.root, r.chain([*block(0), 7, 8, 9]), 7, 4) == 2
    assert r.store.num_nodes == 2


def test_truncate_and_clear_refuse_while_a_claim_rests_on_them() -> None:
    r = rig(4)
    r.cache(block(0))
    hit = r.claim(block(0))
    before = r.store.dump()
    for act in (r.store.clear, lambda: r.store.truncate(r.root, r.chain(block(0)), 4, 0)):
        with pytest.raises(ValueError):
            act()
    assert r.store.dump() == before
    r.store.unclaim(hit)
    assert r.store.clear() == 1


def test_clear_tells_cleared_instead_of_removals_and_forgets_roots() -> None:
    r = rig(groups=[full(4), full(4)])
    r.cache(block(0, 2))
    r.admit(1, block(0, 2))
    r.admit(2, block(20, 2))  # nothing evicted
    r.events()
    assert r.store.clear() == 4
    assert [(e[0], e[1], e[2]) for e in r.events()] == [(CLEARED, 0, 0), (CLEARED, 1, 0)]
    dump = r.store.dump()
    assert dump.nodes == [] and dump.rows[2].tip == -1
    assert r.store.dead_roots() == []


def test_a_root_without_child_and_tip_is_reported_dead_once() -> None:
    r = rig(1)
    assert r.store.dead_roots() == []
    r.cache(block(0))
    assert r.store.dead_roots() == []
    other = r.store.new_root(8)
    hit = r.store.walk(r.chain(block(9)), other, 4, 0)
    r.store.claim(hit)
    r.store.seat(hit, 1, r.chain(block(9)), other, True)
    r.store.settle(1, hit, [(0, 1, 0, 0)], None, None, 35, -1)
    assert r.store.dead_roots() == [r.root] and r.store.dead_roots() == []
    r.store.free_root(r.root)
    with pytest.raises(ValueError):
        r.store.free_root(other)


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


# Groups that forget: windows


def stake(r: Rig, row: int, group: int = 0) -> dict[str, int]:
    """What the store says of a row in one group."""
    facts = r.store.dump().rows[row]
    names = ("front", "shown", "base", "own", "peak", "current")
    return {name: getattr(facts, f"{name}s")[group] for name in names}


def columns(r: Rig, row: int, group: int = 0) -> list[int]:
    """Columns that have a page."""
    return np.flatnonzero(r.store.pages[group][row] >= 0).tolist()


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


# Groups that forget: state


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


# Events


def test_a_store_closes_its_own_groups_removals_and_no_others() -> None:
    r = rig(groups=[full(1), full(1)])
    r.cache(block(0))
    r.admit(1, block(10))
    r.events()
    r.store.release(1, False, 0)
    r.cache(block(20))
    r.admit(1, block(30))
    assert [(e[0], e[1]) for e in r.events()] == [(STORED, 0), (STORED, 1), (REMOVED, 0), (REMOVED, 1)]
    r.store.commit(np.array([1], np.int32), None)
    r.store.release(1, True, 0)
    r.admit(2, block(40))
    r.commit(2)
    kinds = [(e[0], e[1]) for e in r.events()]
    assert kinds == [(STORED, 0), (STORED, 1), (REMOVED, 0), (STORED, 0), (REMOVED, 1), (STORED, 1)]


def test_a_full_log_is_discarded_as_a_lump_and_counted() -> None:
    r = rig(8, max_events=4)
    r.admit(1, block(0, 3))
    r.commit(1)
    r.admit(2, block(50))
    r.commit(2)
    r.admit(3, block(70))
    r.commit(3)
    _, hashes, _, tokens, lost = r.store.take_events()
    assert lost == 4 and len(hashes) == 1 and tokens.tolist() == block(70)
    assert r.store.take_events()[4] == 0


def test_the_event_hash_is_the_documented_one() -> None:
    """SipHash-2-4 of parent and tokens; of that, with place and words of each token that has some, and a one."""
    seed = bytes(range(16))
    store = Store(3, [full(4)], 2, 4, 0, True, 35, True, 100, True, seed)
    store.take_events()
    root = store.new_root(7)
    words = np.array([[0, 0, 0], [5, 6, 1 << 63], [0, 0, 0]], np.uint64)
    chain = Chain(3, np.array([-1, 2, 3], np.int32), words)
    hit = store.walk(chain, root, 2, 0)
    store.claim(hit)
    store.seat(hit, 0, chain, root, True)
    store.settle(0, hit, [(0, 1, 0, 0)], None, None, 35, -1)
    store.commit(np.array([0], np.int32), None)
    plain = siphash(read_seed(seed), struct.pack("<Q3i", 7, -1, 2, 3))
    value = siphash(read_seed(seed), struct.pack("<5QB", plain, 1, 5, 6, 1 << 63, 1))
    assert store.take_events()[1].tolist() == [value]


def test_pools_are_told_first_and_events_can_be_off() -> None:
    store = Store(T, [full(3, 2), window(2, 5, 0, sink=1)], 2, 4, 0, True, 35, True, 100)
    records, hashes, *_ = store.take_events()
    assert records[:, :4].tolist() == [[CREATED, 0, 2, 0], [CREATED, 1, 2, 2]] and hashes.tolist() == [3, 2, 5, 0]
    silent = rig(2, events=False)
    silent.cache(block(0))
    assert [len(part) for part in silent.store.take_events()[:4]] == [0, 0, 0, 0]


# All together


def recount(store: Store) -> None:
    """What is kept up to date equals what a count from scratch gives."""
    dump = store.dump()
    for number, group in enumerate(dump.groups):
        peaks = [(row.peaks[number], row.owns[number]) for row in dump.rows.values()]
        reserved = sum(max(0, peak - own) for peak, own in peaks if peak)
        listed = {(t, s) for t, order in enumerate(group.orders) for slots in order.values() for s in slots}
        owned = {(t, s): p for p, info in group.pages.items() for t, s in enumerate(info.slots) if s >= 0}
        free = 0
        for place in listed:
            info = group.pages.get(owned.get(place, -1))
            free += place[0] == 0 and (info is None or info.claims == 0)
        assert group.available == free - reserved and store.reserved(number) == reserved
        assert not set(group.pages) & set(group.free_pages)
        for name, page in group.pages.items():
            tiers = [t for t, s in enumerate(page.slots) if s >= 0]
            assert tiers and (page.node >= 0 or page.holders > 0), name
            assert ((tiers[0], page.slots[tiers[0]]) in listed) == (page.holders == 0)
            assert all((t, page.slots[t]) in listed for t in tiers[1:])


def chunked(r: Rig, hit: Hit, tokens: list[int], chunk: int) -> list[tuple[int, int, int]]:
    """Windows get a chunk at a time, all others everything; a state's snapshot stands at the last edge."""
    blocks, edge = -(-len(tokens) // T), len(tokens) // T
    asks = []
    for _, sink, keep, _, _, current, _ in r.groups:
        stop = min(blocks, hit.blocks + chunk) if keep > 0 else blocks
        peak = keep + chunk + sink if stop < blocks else 0
        asks.append((max(edge - 1, 0), edge, 0) if current else (min(hit.blocks, stop), stop, peak))
    return asks


def arrive(r: Rig, dice: random.Random, live: set[int]) -> None:
    tokens = [dice.randrange(2) for _ in range(dice.randrange(1, 16))]
    hit = r.claim(tokens, dice.randrange(3), len(tokens) - 1)
    asks = chunked(r, hit, tokens, dice.choice([1, 2, 9]))
    need = len(tokens) // T + 5
    if any(need > r.store.available(g) for g in range(len(r.groups))):
        r.store.unclaim(hit)
        return
    row = next(n for n in range(8) if n not in live)
    lowest = hit.blocks + (hit.source >= 0)
    asks = [(first, max(stop, lowest), peak) for first, stop, peak in asks]
    r.settle(row, hit, tokens, asks=asks, priority=dice.choice([None, 10, 35, 60]), duration=3)
    live.add(row)


def go_on(r: Rig, row: int) -> None:
    """Compute what there are pages for, then ask for the rest."""
    length = int(r.store.length[row])
    held = (int(c[row]) for c, group in zip(r.store.capacity, r.groups, strict=True) if not group[5])
    r.store.commit_row(row, min(length, T * min(held, default=length)))
    committed, blocks = int(r.store.committed[row]), -(-length // T)
    r.extend(row, *((blocks, blocks) if group[5] else (committed, blocks) for group in r.groups))


def step(r: Rig, dice: random.Random, live: set[int], now: int) -> None:
    rows = sorted(live)
    finished = [row for row, info in r.store.dump().rows.items() if not any(info.peaks)]
    if dice.random() < 0.45 and len(live) < 8:
        arrive(r, dice, live)
    elif not rows:
        return
    elif dice.random() < 0.3:
        tokens = np.array([dice.randrange(2) for _ in finished], np.int32)
        r.store.grow(np.array(finished, np.int32), tokens, 1)
    elif dice.random() < 0.4:
        go_on(r, dice.choice(rows))
    elif dice.random() < 0.2:
        target = next((n for n in range(8) if n not in live), -1)
        if target >= 0 and finished and r.store.fork(dice.choice(finished), target) >= 0:
            live.add(target)
    elif dice.random() < 0.1:
        r.store.truncate(r.root, r.chain([dice.randrange(2) for _ in range(9)]), 9, dice.choice([0, 4]))
    elif dice.random() < 0.2:
        r.store.offload(dice.randrange(len(r.groups)), 2)
    else:
        row = dice.choice(rows)
        r.store.commit(np.array([row], np.int32), r.store.computed[[row]])
        r.store.release(row, dice.random() < 0.8, now)
        live.remove(row)
    r.store.refresh(now)


MIXES = (
    [full(12, 5, 4), window(2, 14, 3, 0, sink=1)],
    [window(1, 16, 2, 3), full(16, 4, 2), state(1, 20, 3, 3)],
    [state(2, 14, 3, 2)],
    [window(3, 18, 0, 4, sink=2, extra=3)],
)


@pytest.mark.parametrize("seed", range(12))
def test_random_use_keeps_every_count_right(seed: int) -> None:
    dice = random.Random(seed)
    groups = MIXES[seed % len(MIXES)]
    r = rig(groups=groups, order=seed % 2, shadows=seed % 3 > 0, offload_min=20)
    live: set[int] = set()
    for now in range(400):
        step(r, dice, live, now)
        recount(r.store)
    for row in live:
        r.store.release(row, True, 400)
    r.store.clear()
    recount(r.store)
    for number, (*_, slots) in enumerate(groups):
        assert [r.store.num_empty(number, tier) for tier in range(3)] == slots
