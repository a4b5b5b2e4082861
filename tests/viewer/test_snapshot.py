"""Snapshots: numbers that usage and the sequences know, bounds, and what is never told."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, LayerGroup, Receipt, Request, Scope, TierConfig, check
from quire.core import maps
from quire.core.colder_tiers import registry_of
from quire.core.store import StoreName
from quire.core.store.mapped import SlotState
from quire.viewer.cells import COLOURS, MOST_CELLS
from quire.viewer.made_up_traffic import MadeUpTraffic, demo_cache
from quire.viewer.page_routes import static
from quire.viewer.receipts import receipt_of
from quire.viewer.sampler import Sampler
from quire.viewer.snapshot import MOST_POOLS, MOST_RUNNING, MOST_WAITING, Snapshots
from quire.viewer.source import CacheSource

SECRET = "tenant-of-somebody"


def lively(store: StoreName = "auto", steps: int = 60) -> tuple[MadeUpTraffic, Snapshots]:
    """Traffic that has run for a while, and snapshots of its cache."""
    made = demo_cache(900, 600, 16)
    traffic = MadeUpTraffic(Cache(made.config, store=store), users=30, seed=3)
    source = CacheSource(traffic.cache, traffic.waiting, "a test")
    traffic.viewer = source  # type: ignore[assignment]  # it hears what a viewer hears
    for _ in range(steps):
        traffic.step()
    return traffic, Snapshots(source)


@pytest.mark.parametrize("colour", COLOURS)
def test_pools_are_what_usage_says(store: StoreName, colour: Any) -> None:
    traffic, snapshots = lively(store)
    snapshot, cache = snapshots.make(colour), traffic.cache
    assert [(pool["tier"], pool["group"]) for pool in snapshot["pools"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for pool in snapshot["pools"]:
        usage, counts = cache.usage(pool["tier"], pool["group"]), pool["counts"]
        assert sum(counts) == pool["slots"] == usage.capacity and counts[SlotState.EMPTY] == usage.empty
        assert counts[SlotState.IDLE] + counts[SlotState.CLAIMED] == usage.idle
        assert counts[SlotState.OPEN] + counts[SlotState.HELD] == usage.held
        states = b64decode(pool["states"])
        assert len(states) == len(b64decode(pool["shades"])) == pool["slots"]
        assert Counter(states) == Counter({state: count for state, count in enumerate(counts) if count})
    check(cache)


def test_requests_are_the_sequences(store: StoreName) -> None:
    traffic, snapshots = lively(store)
    requests, cache = snapshots.make("state")["requests"], traffic.cache
    assert requests["running"] == cache.num_sequences == len(requests["rows"]) > 2
    for number, _, reused, prompt, known, computed, blocks, pages in requests["rows"]:
        sequence = cache.sequence(snapshots.numbers.id(number))
        assert [reused, prompt, known, computed] == [
            sequence.start, sequence.prompt_end, sequence.length, sequence.computed,
        ]  # fmt: skip
        assert blocks == sequence.capacity() // 16 and sum(pages) == sequence.counts().reused
    assert requests["totals"] == np.sum([row[2:7] for row in requests["rows"]], axis=0).tolist()
    assert requests["waiting"] == len(traffic.waiting())


def test_prefixes_name_who_uses_them(store: StoreName) -> None:
    traffic, snapshots = lively(store)
    snapshot = snapshots.make("scope")
    rows, numbers = snapshot["prefixes"], {row[0]: row[1] for row in snapshot["requests"]["rows"]}
    assert all(row[0] < place for place, row in enumerate(rows))
    shared = [row for row in rows if row[0] >= 0 and row[5] > 1 and row[8]]
    assert shared and all(numbers[number] == row[1] for row in shared for number in row[8])
    assert snapshot["blocks"] == traffic.cache._setup.store.num_nodes
    assert set(snapshot["scopes"]) == {"plain", "scope 1", "scope 2"}


def test_misses_and_hits_are_those_of_the_receipts() -> None:
    cache = Cache(CacheConfig((TierConfig("device", 16),), block_size=4, receipts=True))
    source = CacheSource(cache)
    receipts: list[Receipt] = []
    for number in range(3):
        batch = cache.add_sequence_batch([Request(number, np.arange(4 * number, 4 * number + 9, dtype=np.int32))])
        source.admitted(batch)
        receipts += batch.receipts
        cache.commit(batch.sequences[0])
        cache.release(batch.sequences[0])
    reuse = Snapshots(source).make("state")["reuse"]
    assert (reuse["requests"], reuse["tokens"]) == (3, 27)
    assert reuse["reused"] == sum(receipt.reused for receipt in receipts)
    assert reuse["reused"] + sum(reuse["missed"].values()) == reuse["tokens"]


def test_receipts_of_the_gone_are_forgotten() -> None:
    cache = Cache(CacheConfig((TierConfig("device", 16),), block_size=4, receipts=True, max_sequences=2))
    source = CacheSource(cache)
    for number in range(50):
        batch = cache.add_sequence_batch([Request(number, np.arange(9, dtype=np.int32))])
        source.admitted(batch)
        if number < 49:
            cache.release(batch.sequences[0])
    assert len(source._receipts) <= 5 and source.receipt(49) is not None and source.receipt(3) is None


def test_who_is_claimed_waits_and_what_was_found_is_told() -> None:
    cache = Cache(CacheConfig((TierConfig("device", 16),), block_size=4))
    batch = cache.add_sequence_batch([Request("first", np.arange(8, dtype=np.int32))])
    cache.commit(batch.sequences[0])
    outside = [Request("claimed", np.arange(12, dtype=np.int32)), Request("outside", np.arange(5, dtype=np.int32))]
    snapshots = Snapshots(CacheSource(cache, lambda: outside))
    with cache.claim(outside[:1]):
        waits = snapshots.make("state")["requests"]["waits"]
    assert [wait[1:3] for wait in waits] == [[12, 8], [5, -1]]


def large(sequences: int) -> Cache:
    """100,000 pages on the device and as many sequences as asked for."""
    tiers = (TierConfig("device", 100_000), TierConfig("host", 20_000))
    cache = Cache(CacheConfig(tiers, block_size=4, max_sequences=sequences, max_length=400, receipts=True))
    shared = np.arange(40, dtype=np.int32)
    for number in range(sequences):
        own = np.arange(1000 * number, 1000 * number + 320, dtype=np.int32)
        batch = cache.add_sequence_batch([Request(number, np.concatenate([shared, own]))])
        cache.commit(batch.sequences)
    return cache


def test_a_large_cache_has_a_small_snapshot() -> None:
    pytest.importorskip("quire.core.store._compiled", reason="the reference store would take long")
    cache = large(1000)
    waiting = [Request(("waits", number), np.arange(9, dtype=np.int32)) for number in range(500)]
    snapshots = Snapshots(CacheSource(cache, lambda: waiting))
    for colour in COLOURS:
        snapshot = snapshots.make(colour)
        assert len(json.dumps(snapshot)) < 80_000
    assert snapshot["requests"]["running"] == 1000 and snapshot["requests"]["waiting"] == 500
    assert len(snapshot["requests"]["rows"]) == MOST_RUNNING and len(snapshot["requests"]["waits"]) == MOST_WAITING
    assert [pool["per_cell"] for pool in snapshot["pools"]] == [25, 5]
    assert all(len(b64decode(pool["states"])) <= MOST_CELLS for pool in snapshot["pools"])
    shared = snapshot["prefixes"][1]
    assert shared[2:7] == [40, 40, 80_010, 1000, 1000]


def test_many_pools_are_cut() -> None:
    groups = tuple(LayerGroup(f"group {number}") for number in range(20))
    cache = Cache(CacheConfig((TierConfig("device", 8),), block_size=4, groups=groups))
    assert len(Snapshots(CacheSource(cache)).make("state")["pools"]) == MOST_POOLS


class CountedLock:
    """The cache's lock, with a count of how often it was taken."""

    def __init__(self, lock: Any) -> None:
        self._lock, self.taken = lock, 0

    def __enter__(self) -> bool:
        self.taken += 1
        return bool(self._lock.__enter__())

    def __exit__(self, *given: Any) -> None:
        self._lock.__exit__(*given)


def test_the_lock_is_given_back_between_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic, snapshots = lively()
    monkeypatch.setattr(maps, "PART", 50)
    registry = registry_of(traffic.cache)
    counted: Any = CountedLock(registry.setup.lock)
    monkeypatch.setattr(registry, "setup", replace(registry.setup, lock=counted))
    blocks = registry.setup.store.num_nodes
    snapshots.make("age")
    slots = sum(tier.of_pool(group) for tier in traffic.cache.config.tiers for group in range(2))
    assert counted.taken > slots / 50 + blocks / 50 > 20


# -- what is never told ------------------------------------------------------------------------------------------------


def private(show_tokens: bool = False) -> Snapshots:
    """A cache of prompts whose tokens can be told from all other numbers, of a tenant with a name."""
    cache = Cache(CacheConfig((TierConfig("device", 64),), block_size=4, receipts=True, receipt_scopes=4))
    source = CacheSource(cache)
    for number in range(3):
        tokens = np.arange(987_650_000, 987_650_030, dtype=np.int32)
        request = Request(f"{SECRET}-{number}", tokens, Scope(salt=f"{SECRET}-salt-{number % 2}"))
        batch = cache.add_sequence_batch([request])
        source.admitted(batch)
        cache.commit(batch.sequences)
    return Snapshots(source, show_tokens)


def test_neither_tokens_nor_ids_nor_salts_are_told() -> None:
    snapshots = private()
    for colour in COLOURS:
        told = json.dumps(snapshots.make(colour))
        assert "9876500" not in told and SECRET not in told and "salt" not in told and "other_scope" not in told
    for number in (1, 2, 3):
        told = json.dumps(receipt_of(snapshots, number, operator=False))
        assert "9876500" not in told and SECRET not in told and "other_scope" not in told and "cure" not in told


def test_an_operator_sees_ids_and_causes_and_no_salt() -> None:
    snapshots = private()
    snapshots.make("state")
    told = receipt_of(snapshots, 2, operator=True)
    assert told is not None and told["id"] == repr(f"{SECRET}-1")
    causes = {miss["cause"]: miss for miss in told["receipt"]["misses"]}
    assert causes["other_scope"]["scope"] == "scope 1" and causes["other_scope"]["cure"] == "the same scope"
    assert "salt" not in json.dumps(told) and "9876500" not in json.dumps(told)
    third = receipt_of(snapshots, 3, operator=True)
    assert third is not None and third["receipt"]["hits"] == [{"tier": "device", "group": "full", "tokens": 28}]


def test_prompts_are_shown_when_somebody_wants_that() -> None:
    snapshots = private(show_tokens=True)
    assert snapshots.make("state")["shows_tokens"] and not private().make("state")["shows_tokens"]
    told = receipt_of(snapshots, 1, operator=False)
    assert told is not None and told["tokens"] == list(range(987_650_000, 987_650_030)) and told["text"] is None
    assert receipt_of(snapshots, 77, operator=True) is None


def test_labels_of_the_gone_are_forgotten() -> None:
    traffic, snapshots = lively(steps=5)
    snapshots.make("state")
    first = dict(snapshots.numbers._numbers)
    for _ in range(250):
        traffic.step()
    snapshots.make("state")
    alive = set(maps.live_ids(traffic.cache)) | {request.id for request in traffic.waiting()}
    assert set(snapshots.numbers._numbers) == alive and not set(first) <= alive
    traffic.cache.forget(Scope(lora="poet"))
    snapshots._read = -9e9  # now, not in two seconds
    assert len(snapshots.make("scope")["scopes"]) == 2


def test_a_pool_that_groups_share_is_one_map(store: StoreName) -> None:
    groups = (LayerGroup("full", pool="kv"), LayerGroup("near", window=8, pool="kv"), LayerGroup("other"))
    cache = Cache(CacheConfig((TierConfig("device", (12, 6)),), block_size=4, groups=groups), store=store)
    cache.add_sequence_batch([Request("a", np.arange(10, dtype=np.int32))])
    first, second = Snapshots(CacheSource(cache)).make("age")["pools"]
    assert (first["group"], first["groups"], first["slots"]) == (0, [0, 1], 12)
    assert (second["group"], second["groups"], second["slots"]) == (2, [2], 6)
    assert first["counts"][SlotState.EMPTY] == cache.usage(0, 1).empty == 6 and second["counts"][SlotState.EMPTY] == 3


def test_pages_that_prompts_share_while_they_are_computed_are_counted() -> None:
    config = CacheConfig((TierConfig("device", 16),), block_size=4, max_sequences=2, share_pending=True)
    cache = Cache(config)
    source = CacheSource(cache)
    cache.add_sequence_batch([Request(name, np.arange(9, dtype=np.int32)) for name in "ab"])
    snapshot = json.loads(Sampler(Snapshots(source)).body("state"))
    assert snapshot["moved"][0]["reused_pending"] == 2 == snapshot["moved"][0]["reused_full"]
    names = re.search(r"const NAMES = \[(.*?)\];", static("panels.js").decode(), re.DOTALL)
    assert names is not None, "the page reads the numbers of its history by their places"
    numbers = dict(zip(re.findall(r'"(\w+)"', names[1]), snapshot["now"], strict=True))
    assert (numbers["reused_pending"], numbers["missed"]) == (2, 4)
