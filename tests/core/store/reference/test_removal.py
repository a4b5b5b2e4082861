"""What leaves the reference store's tree on request: truncate, clear, dead roots."""

from __future__ import annotations

import pytest

from .rig import CLEARED, REMOVED, block, full, rig


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
