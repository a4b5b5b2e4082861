"""LMCache's side of the adapter without LMCache: an L1 of some buffers, its files polled, its answers compared.

A buffer's bytes follow from its key. A buffer whose task is over is overwritten, as L1 would: whatever reads or writes
it later has other bytes, and is found when an object is compared.
"""

from __future__ import annotations

import os
import select
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quire.integrations.lmcache import object_tier
from quire.integrations.lmcache.object_pieces import piece_keys
from tests.integrations.lmcache.stand_ins import Dtype, Key, Layout, Size, adapter_class

ROWS, PIECE, PIECES = 24, 4096, 75
LAYOUTS = {0: Layout([Size((2, 4, 640))], [Dtype(2)]), 1: Layout([Size((700,))], [Dtype(4, "f32")])}
SIZES = {0: 10_240, 1: 2_800}  # three pieces, the last one half full; one that is not full


def key_of(number: int) -> Key:
    """Every 500 are the same texts of another tenant."""
    tenant, text = divmod(number, 500)
    return Key(f"k{text}".encode().ljust(32, b"."), object_group_id=text % 2, cache_salt=f"t{tenant}" if tenant else "")


def bytes_of(key: Key) -> Any:
    dice = np.random.default_rng([*np.frombuffer(key.chunk_hash, np.uint32).tolist(), *key.cache_salt.encode()])
    return dice.integers(0, 256, SIZES[key.object_group_id], np.uint8)


class StubLMCache:
    """An L1 over a disk, a store or both; `deadline` and `wait` in seconds."""

    def __init__(
        self,
        disk: Path | None,
        store: Path | str | None,
        *,
        deadline: float = 60.0,
        wait: float = 60.0,
        files: Any = None,
    ) -> None:
        params: dict[str, Any] = {
            "namespace": "stub",
            "piece": PIECE,
            "waiting": 1.0,
            "deadline": deadline,
            "wait": wait,
        }
        params |= {} if disk is None else {"folder": str(disk), "bytes": PIECES * (PIECE + 256)}
        params |= {} if store is None else {"shared": str(store)}
        module: Any = object_tier
        opens = module.both_of
        module.both_of = opens if files is None else partial(opens, files=files)
        try:
            l1 = type("L1", (), {"size": ROWS * SIZES[0]})()
            self.adapter = adapter_class()(params, l1_memory_desc=l1)
        finally:
            module.both_of = opens
        self.tier = self.adapter.tier
        self.rows = np.zeros((ROWS, SIZES[0]), np.uint8)
        self.free = list(range(ROWS))
        self.under_way: dict[tuple[int, bool], dict[Key, int]] = {}
        self.loaded = self.stored = self.failed = 0
        self.poller = select.poll()
        a = self.adapter
        for file in (a.get_store_event_fd(), a.get_load_event_fd(), a.get_lookup_and_lock_event_fd()):
            self.poller.register(file, select.POLLIN)

    @property
    def disk(self) -> Any:
        return self.tier.disk

    @property
    def shared(self) -> Any:
        return self.tier.store

    def memory(self, key: Key, row: int) -> Any:
        return self.rows[row][: SIZES[key.object_group_id]]

    def _object(self, key: Key, row: int) -> Any:
        return type("Object", (), {
            "metadata": LAYOUTS[key.object_group_id], "byte_array": memoryview(self.memory(key, row)),
        })()  # fmt: skip

    def store(self, keys: list[Key]) -> None:
        """Objects that were computed go down."""
        rows = self._take(keys)
        for key, row in rows.items():
            self.memory(key, row)[:] = bytes_of(key)
        number = self.adapter.submit_store_task(list(rows), [self._object(*one) for one in rows.items()])
        self.under_way[number, False] = rows

    def load(self, keys: list[Key]) -> None:
        """Objects come up."""
        rows = self._take(keys)
        number = self.adapter.submit_load_task(list(rows), [self._object(*one) for one in rows.items()])
        self.under_way[number, True] = rows

    def _take(self, keys: list[Key]) -> dict[Key, int]:
        while len(self.free) < len(keys):
            self._poll()
        return {key: self.free.pop() for key in keys}

    def _poll(self) -> None:
        """Sleep until something is over, as LMCache's controllers do."""
        for file, _ in self.poller.poll(120_000):
            os.eventfd_read(file)
        self.look()

    def look(self) -> None:
        """Tasks that are over: what was loaded is compared, and their buffers are used for something else."""
        for number, result in self.adapter.pop_completed_store_tasks().items():
            rows = self.under_way.pop((number, False))
            self.stored += len(rows) * result.success
            self.failed += len(rows) * (not result.success)
            self._reuse(rows, number)
        for number in [number for number, is_load in self.under_way if is_load]:
            came = self.adapter.query_load_result(number)
            if came is None:
                continue
            rows = self.under_way.pop((number, True))
            for (key, row), good in zip(rows.items(), came.bits, strict=True):
                assert not good or np.array_equal(self.memory(key, row), bytes_of(key)), "WRONG BYTES"
            self.loaded += sum(came.bits)
            self.failed += len(rows) - sum(came.bits)
            self._reuse(rows, number)

    def _reuse(self, rows: dict[Key, int], number: int) -> None:
        for row in rows.values():
            self.rows[row] = number % 251
        self.free += rows.values()

    def found(self, keys: list[Key]) -> list[bool]:
        """A lookup's answer; what it holds is not unlocked."""
        number = self.adapter.submit_lookup_and_lock_task(keys, LAYOUTS)
        end = time.monotonic() + 120.0
        while (answer := self.adapter.query_lookup_and_lock_result(number)) is None:
            assert time.monotonic() < end, "a lookup never ended"
            self._poll()
        return list(answer.bits)

    def has(self, key: Key) -> bool:
        """Whether it is found."""
        (there,) = self.found([key])
        self.adapter.submit_unlock([key])
        return there

    def durable(self, keys: list[Key]) -> list[Key]:
        """Of these, what lies on the disk whole."""
        known = [key for key in keys if self.adapter._known([key])[0]]
        return [
            key for key, name in zip(known, self.adapter._known(known)[0], strict=True)
            if all(piece in self.disk for piece in piece_keys(name, -(-SIZES[key.object_group_id] // PIECE)))
        ]  # fmt: skip

    def settle(self) -> None:
        """Until nothing is under way."""
        while self.under_way:
            self._poll()
        assert len(self.free) == ROWS

    def load_all(self, keys: list[Key]) -> int:
        """How many of them come, each compared."""
        before = self.loaded
        for start in range(0, len(keys), ROWS):
            some = keys[start : start + ROWS]
            there = [key for key, good in zip(some, self.found(some), strict=True) if good]
            self.load(there)
            self.settle()
            self.adapter.submit_unlock(there)
        return self.loaded - before

    def close(self) -> bool:
        ended = bool(self.tier.close())
        self.adapter.close()
        return ended
