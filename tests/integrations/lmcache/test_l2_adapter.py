"""The adapter beside LMCache's interface: objects to disk and store and back, and what its operator may write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import InputError
from quire.core.records.errors import MissingExtra, StateError
from quire.integrations.lmcache import object_tier
from quire.integrations.lmcache.adapter_options import (
    check_lmcache_version,
    objects_print,
    read_adapter_options,
)
from quire.integrations.lmcache.object_pieces import cut, object_id, piece_keys
from tests.attacks.plugged import KINDS, opened
from tests.integrations.lmcache.stand_ins import Dtype, Key, Layout, Size
from tests.integrations.lmcache.stub_lmcache import LAYOUTS, PIECE, ROWS, SIZES, StubLMCache, bytes_of, key_of
from tests.tiers.shared.test_client import GatedStore

GIVEN = {"folder": "/tmp/x", "bytes": "1GB", "namespace": "one"}


@pytest.mark.parametrize("kind", KINDS)
def test_random_tasks_many_at_once_and_lmcache_counts_what_is_there(tmp_path: Path, kind: str) -> None:
    dice, engine = np.random.default_rng(7), opened(StubLMCache, tmp_path, kind)
    assert isinstance(engine, StubLMCache)
    for _ in range(60):
        keys = [key_of(one) for one in dice.choice(40, int(dice.integers(1, 9)), replace=False).tolist()]
        (engine.store if dice.random() < 0.5 else engine.load)(keys)
        engine.look()
    engine.settle()
    every = [key_of(one) for one in range(40)]
    assert engine.loaded > 0 and engine.stored > 50
    engine.adapter.pop_completed_store_tasks()
    if engine.disk is not None:
        there = sum(SIZES[key.object_group_id] for key in engine.durable(every))
        usage = engine.adapter.get_usage()
        assert usage.bytes_by_cache_salt == {"": there} and usage.total_bytes_used == len(engine.disk) * PIECE
        assert len(engine.disk) <= engine.disk.num_slots and engine.adapter.report_status()["is_healthy"]
    assert engine.tier.num_waiting == 0 and not engine.adapter._objects and engine.close()


def test_a_wrong_byte_would_be_seen(tmp_path: Path) -> None:
    engine = StubLMCache(tmp_path, None)
    engine.store([key_of(0)])
    engine.settle()
    engine.load([key_of(0)])
    engine.tier.jobs.drain()
    engine.memory(key_of(0), next(iter(engine.under_way[2, True].values())))[5] ^= 1
    with pytest.raises(AssertionError, match="WRONG BYTES"):
        engine.look()
    engine.close()


def test_what_a_lookup_found_stays_until_it_is_unlocked_or_forgotten(tmp_path: Path) -> None:
    engine, kept = StubLMCache(tmp_path, None), [key_of(one) for one in (0, 1, 2)]
    engine.store(kept)
    engine.settle()
    assert engine.found(kept) == [True] * 3 and engine.found(kept[:1]) == [True]

    def crowd(first: int) -> None:
        for start in range(first, first + 60, 5):
            engine.store([key_of(start + nth) for nth in range(5)])
            engine.settle()

    crowd(100)
    engine.adapter.submit_unlock(kept[:1])
    assert [held.times for held in engine.tier._held.values()] == [1, 1, 1]
    crowd(200)
    assert engine.load_all(kept) == 3, "one of them is held twice"
    engine.adapter.submit_unlock(kept)
    crowd(300)
    assert engine.found(kept) == [False] * 3
    fresh = [key_of(one) for one in range(300, 360)]
    there = engine.durable(fresh)
    assert engine.found(there) == [True] * len(there)
    assert engine.tier._held_pieces <= object_tier.HELD_SHARE * engine.disk.num_slots, "lookups leave room for others"
    engine.tier._clock = lambda: float("inf")
    engine.found([key_of(1)])
    assert engine.tier._held == {}, "nobody ever unlocked those"
    assert engine.close()


def test_an_object_that_lost_a_piece_goes_whole_and_deleted_ones_go(tmp_path: Path) -> None:
    engine, keys = StubLMCache(tmp_path, None), [key_of(0), key_of(2), key_of(4)]
    engine.store(keys)
    engine.settle()
    engine.adapter.delete(keys[:1])
    assert engine.found(keys) == [False, True, True] and len(engine.disk) == 6
    (name,), _ = engine.adapter._known(keys[1:2])
    engine.adapter.submit_unlock(keys)
    engine.disk.remove(piece_keys(name, 3)[1:2])
    engine.adapter.pop_completed_store_tasks()
    assert (len(engine.disk), engine.adapter.get_usage().bytes_by_cache_salt) == (3, {"": SIZES[0]})
    engine.adapter.delete([key_of(1)])
    assert engine.close()


def test_a_lookup_whose_store_hangs_is_answered_with_what_the_disk_has(tmp_path: Path) -> None:
    engine = StubLMCache(tmp_path / "d", tmp_path / "s", wait=0.2)
    engine.store([key_of(0)])
    engine.settle()
    gated = engine.shared.client.store = GatedStore(tmp_path / "s")
    gated.hangs = True
    assert engine.found([key_of(0), key_of(1)]) == [True, False]
    gated.hangs = False
    gated.gate.set()
    engine.close()


def test_another_key_form_or_print_is_another_object() -> None:
    form = (((2, 4), "bf16"),)
    first = (b"h", "toy", 0, 0, "", form)
    others = [
        (b"i", "toy", 0, 0, "", form), (b"h", "toz", 0, 0, "", form), (b"h", "toy", 1, 0, "", form),
        (b"h", "toy", 0, 1, "", form), (b"h", "toy", 0, 0, "s", form), (b"h", "toy", 0, 0, "", (((4, 2), "bf16"),)),
        (b"h", "toy", 0, 0, "", (((2, 4), "f16"),)), (b"h", "toy", 0, 0, "", (*form, *form)),
    ]  # fmt: skip
    assert len({object_id(*one) for one in (first, *others)}) == 9
    options = [read_adapter_options(GIVEN | more) for more in ({}, {"namespace": "two"}, {"piece": "2MB"})]
    assert len({*(objects_print(one, "0.5.6") for one in options), objects_print(options[0], "0.6.0")}) == 4
    assert objects_print(options[0], "0.5.6") == objects_print(options[0], "0.5.7")


def test_objects_of_one_name_and_another_dtype_are_not_served(tmp_path: Path) -> None:
    """LMCache's keys do not say it; a restart with another cache dtype would read the other's bytes."""
    engine, key = StubLMCache(tmp_path, None), key_of(0)
    engine.store([key])
    engine.settle()
    engine.close()
    again = StubLMCache(tmp_path, None)
    other = {0: Layout([Size((2, 4, 640))], [Dtype(2, "f16")])}
    number = again.adapter.submit_lookup_and_lock_task([key], other)
    assert again.adapter.query_lookup_and_lock_result(number).bits == [False]
    again.adapter._forms.clear()
    assert again.has(key)
    again.close()


def test_pieces_lie_in_place_but_for_a_last_one_that_is_not_full() -> None:
    whole = np.arange(10, dtype=np.uint8)
    made = cut([b"a" * 32, b"b" * 32], [whole, whole[:8]], 4, is_load=True)
    assert made.counts == [3, 2] and len({*made.keys}) == 5
    assert [np.shares_memory(page, whole) for page in made.pages] == [True, True, False, True, True]
    made.pages[2][:] = 99
    made.fill([False, True])
    assert whole[8:].tolist() == [8, 9], "an object that did not come is left as it was"
    made.fill([True, True])
    assert whole[8:].tolist() == [99, 99]
    assert made.whole(made.keys[:4]) == [True, False] and made.whole([]) == [False, False]


def test_stores_beyond_what_may_wait_are_refused_and_said(tmp_path: Path) -> None:
    engine = StubLMCache(tmp_path, None)
    for part in engine.tier.jobs.parts:
        part.jobs._most_pages = 3
    with engine.disk._writing:  # the writer waits
        for one in range(4):
            engine.store([key_of(2 * one)])
    engine.settle()
    assert engine.failed >= 2 and engine.stored >= 1 and engine.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"namespace": "x"}, "QuireL2Adapter without 'folder' and 'shared'"),
        ({"folder": "/x", "bytes": "1GB"}, "without 'namespace'"),
        (GIVEN | {"path": 1}, "option 'path'.*use \\['folder'"),
        (GIVEN | {"piece": "1kB"}, "piece '1kB'"),
        (GIVEN | {"piece": "1GB"}, "piece '1GB'"),
        (GIVEN | {"waiting": 2}, "waiting 2"),
    ],
)
def test_what_an_operator_writes_is_checked_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_adapter_options(given)
    assert read_adapter_options(GIVEN).bytes == 10**9 and read_adapter_options(GIVEN).piece_bytes == 1 << 20


def test_another_version_is_refused_and_without_lmcache_it_says_where_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_ANY_LMCACHE", raising=False)
    check_lmcache_version("0.5.6.post1")
    with pytest.raises(StateError, match="QUIRE_ANY_LMCACHE=1"):
        check_lmcache_version("0.6.0")
    code = "import quire.integrations.lmcache.l2_adapter"
    monkeypatch.setitem(__import__("sys").modules, "quire.integrations.lmcache.l2_adapter", None)
    with pytest.raises((ImportError, MissingExtra)):
        exec(code, {})


def test_a_folder_that_is_another_adapters_is_refused_and_leaves_no_file_open(tmp_path: Path) -> None:
    engine = StubLMCache(tmp_path, None)
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StateError):
        StubLMCache(tmp_path, None)
    assert len(os.listdir("/proc/self/fd")) == files
    key = Key(b"x" * 32)
    assert engine.found([key]) == [False] and bytes_of(key).nbytes == SIZES[0] and len(LAYOUTS) == 2 and ROWS
    assert engine.close()
