"""A real Mooncake Store as a shared store: the suite, eviction, a node and a master that are killed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from quire.core.records.errors import InputError
from quire.tiers.shared import SharedConfig, SharedStore, StoreError, StoreMiss, open_store
from tests.tiers.shared.machine import Machine, text
from tests.tiers.shared.mooncake_cluster import MooncakeCluster, missing
from tests.tiers.shared.store_suite import StoreSuite, empty, got, name, page, soon

WHY_NOT = missing()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "it is here")
if not WHY_NOT:
    from quire.tiers.shared.stores.mooncake_store import MooncakeStore, _key


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[MooncakeCluster]:
    """A store for the tests that only use it."""
    cluster = MooncakeCluster()
    try:
        yield cluster.start()
    finally:
        cluster.kill()


@pytest.fixture
def cluster() -> Iterator[MooncakeCluster]:
    """One that the test may treat as it likes."""
    cluster = MooncakeCluster()
    try:
        yield cluster.start()
    finally:
        cluster.kill()


class TestMooncakeStore(StoreSuite):
    @pytest.fixture
    def store(self, one_cluster: MooncakeCluster) -> Iterator[SharedStore]:
        store = MooncakeStore(one_cluster.url)
        assert store._open_client().remove_all(True) >= 0
        yield store
        store.close()

    def damage(self, store: SharedStore, of: bytes, change: str) -> None:
        assert isinstance(store, MooncakeStore)
        client: Any = store._open_client()
        raw = bytearray(client.get(_key(of)))
        match change:
            case "flip":
                raw[-3] ^= 1
            case "cut":
                del raw[-1:]
            case "lengthen":
                raw += b"\0"
            case "empty":
                del raw[1:]  # it keeps no empty value
            case "newer":
                raw[4:6] = struct.pack("<H", 2)
            case "magic":
                raw[0] ^= 0xFF
            case "swap":
                raw = bytearray(client.get(_key(name(0))))
        assert client.upsert(_key(of), bytes(raw)) == 0


def test_the_machine_that_finds_a_bad_page_replaces_it(one_cluster: MooncakeCluster) -> None:
    with ExitStack() as closing:
        stores = [MooncakeStore(one_cluster.url) for _ in range(3)]  # each its own client: only one has read it
        machines = [Machine(store) for store in stores]
        for one in machines:
            closing.callback(one.close)
        first, second, third = machines
        first.serve(text(1))
        first.settle()
        of = first.shared._ground.digests(first.request(text(1)), 6)[0].page(3, 0)
        TestMooncakeStore().damage(stores[0], of, "flip")
        assert second.serve(text(1)) == 12
        second.settle()
        assert second.shared.counts().sent == 1
        assert third.serve(text(1)) == 20 and third.shared.counts().misses == {}


def test_a_store_that_is_full_evicts_and_never_serves_wrong_pages() -> None:
    cluster = MooncakeCluster(node_bytes=16 << 20)
    try:
        store = MooncakeStore(cluster.start().url)
        big, names = 1 << 20, [name(n) for n in range(40)]
        answers = [store.put_many([one], [page(n, big)], soon(60))[0] for n, one in enumerate(names)]
        assert set(answers) <= {None, StoreMiss.FULL, StoreMiss.FAILED} and None in answers
        there = 0
        for n, came in enumerate(got(store, names, big)):
            assert isinstance(came, StoreMiss) or np.array_equal(came, page(n, big))
            there += not isinstance(came, StoreMiss)
        assert 0 < there < 40
        store.close()
    finally:
        cluster.kill()


def test_what_a_dead_node_had_is_a_miss(cluster: MooncakeCluster) -> None:
    store = MooncakeStore(cluster.url)
    assert store.put_many([name(1)], [page(1)], soon(60)) == [None]
    cluster.kill_node()
    assert got(store, [name(1)])[0] in (StoreMiss.FAILED, StoreMiss.ABSENT)
    (answer,) = store.put_many([name(2)], [page(2)], soon(60))
    assert answer in (StoreMiss.FAILED, StoreMiss.FULL)
    store.close()


@pytest.mark.slow  # it waits for its client to notice, some seconds each time
def test_a_dead_master_is_unreachable_and_another_one_is_found(cluster: MooncakeCluster) -> None:
    store = MooncakeStore(cluster.url)
    assert store.put_many([name(1)], [page(1)], soon(60)) == [None]
    cluster.kill()
    for act in (
        lambda: store.exists_many([name(1)], soon(60)),
        lambda: store.get_many([name(1)], empty(1), soon(60)),
        lambda: store.put_many([name(1)], [page(1)], soon(60)),
        lambda: store.remove_scope(name(1)[:16], soon(60)),
    ):
        with pytest.raises(StoreError) as caught:
            act()
        assert caught.value.miss is StoreMiss.UNREACHABLE
    cluster.start()
    end = soon(60)
    while True:
        try:
            if store.put_many([name(1)], [page(1)], end) == [None]:
                break
        except StoreError as wrong:
            assert wrong.miss is StoreMiss.UNREACHABLE, "not in time"
    assert np.array_equal(got(store, [name(1)])[0], page(1))
    store.close()


def test_a_master_that_is_not_there_yet_is_no_error_until_it_is_asked() -> None:
    store = open_store(SharedConfig("mooncake://127.0.0.1:1"))
    assert isinstance(store, MooncakeStore) and repr(store) == "MooncakeStore(mooncake://127.0.0.1:1)"
    store.close()


@pytest.mark.parametrize("url", ["mooncake://", "mooncake://host:1?colour=red", "mooncake://host:1?buffer=much"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"Mooncake|memory"):
        open_store(SharedConfig(url))
