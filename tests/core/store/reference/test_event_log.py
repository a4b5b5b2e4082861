"""The reference store's log of events."""

from __future__ import annotations

import struct

import numpy as np

from quire.core.store.reference import Chain, Store
from quire.core.store.reference.keys.hash import read_seed, siphash

from .rig import CREATED, REMOVED, STORED, T, block, full, rig, window


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
