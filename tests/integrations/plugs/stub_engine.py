"""An engine's side of the tier without the engine: rows that jobs pin, filled, compared, and used again at once.

A row's bytes follow from its key. A row whose job is over is overwritten, as an engine would: whatever reads or writes
it later has other bytes, and is found when a page is compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from quire.integrations.vllm.plugs.key_tier import KeyTier
from quire.integrations.vllm.plugs.tier_options import TierOptions
from quire.tiers.base import Bytes
from quire.tiers.disk.keyed import KeyDisk, KeyJobsDone
from quire.tiers.shared.keyed import KeyStore
from tests.waits import until

ROWS, ROW, SLOTS = 24, 4096, 30
PRINT = bytes(range(32))


def key_of(number: int) -> bytes:
    return f"k{number}".encode().ljust(32, b".") + bytes(4)


def bytes_of(key: bytes) -> Bytes:
    return np.random.default_rng(np.frombuffer(key, np.uint32)).integers(0, 256, ROW, np.uint8)


class Request:
    """vLLM's ReqContext, as much of it as a tier asks."""

    def __init__(self, number: int) -> None:
        self.req_id, self.kv_transfer_params = str(number), None
        self._states: dict[type, Any] = {}

    def set_state(self, val: Any) -> None:
        self._states[type(val)] = val

    def get_state(self, cls: type[Any]) -> Any:
        return self._states.get(cls)

    def get_offload_key_position(self, key: bytes) -> int | None:
        return None


class StubEngine:
    """A host cache of some rows over a disk, a store or both; `deadline` and `wait` in seconds."""

    def __init__(
        self, disk: Path | None, store: Path | str | None, *, deadline: float = 60.0, wait: float = 60.0, **more: Any
    ):
        memory = bytearray(ROWS * ROW)
        self.rows = np.frombuffer(memory, np.uint8).reshape(ROWS, ROW)
        options = TierOptions(
            folder="" if disk is None else str(disk), bytes=0 if disk is None else SLOTS * (ROW + 256),
            shared="" if store is None else str(store), waiting=1.0, deadline=deadline, wait=wait,
        )  # fmt: skip
        self.tier = KeyTier(memoryview(memory).cast("B", (ROWS, ROW)), options, lambda _: PRINT, **more)
        self.free = list(range(ROWS))
        self.under_way: dict[int, dict[bytes, int]] = {}
        self.number = self.loaded = self.stored = self.failed = 0

    @property
    def disk(self) -> KeyDisk | None:
        return self.tier.disk

    @property
    def shared(self) -> KeyStore | None:
        return self.tier.store

    def durable(self, keys: list[bytes]) -> list[bytes]:
        """Of these, what lies on the disk."""
        return [key for key in keys if self.tier.disk is not None and key in self.tier.disk]

    def close(self) -> bool:
        return self.tier.close()

    def store(self, keys: list[bytes]) -> None:
        """Blocks that were computed go down."""
        rows = self._take(keys)
        for key, row in rows.items():
            self.rows[row] = bytes_of(key)
        self._submit(rows, False)

    def load(self, keys: list[bytes]) -> None:
        """Blocks come up."""
        self._submit(self._take(keys), True)

    def _take(self, keys: list[bytes]) -> dict[bytes, int]:
        until(lambda: self.look() or len(self.free) >= len(keys))  # type: ignore[func-returns-value]
        return {key: self.free.pop() for key in keys}

    def _submit(self, rows: dict[bytes, int], is_load: bool) -> None:
        self.number += 1
        self.under_way[self.number] = rows
        request: Any = Request(self.number)
        self.tier.submit(self.number, list(rows), list(rows.values()), is_load, request)
        self.tier.end_request(request)

    def look(self) -> None:
        """Jobs that are over: what was loaded is compared, and their rows are used for something else."""
        for done in self.tier.finished():
            self._end(done)

    def _end(self, done: KeyJobsDone) -> None:
        rows = self.under_way.pop(done.number)
        assert {*done.good, *done.bad} == rows.keys(), "a job that is not about its keys"
        for key in done.good if done.is_load else ():
            assert np.array_equal(self.rows[rows[key]], bytes_of(key)), "WRONG BYTES"
        self.loaded += len(done.good) * done.is_load
        self.stored += len(done.good) * (not done.is_load)
        self.failed += len(done.bad)
        for row in rows.values():
            self.rows[row] = done.number % 251
        self.free += rows.values()

    def has(self, key: bytes) -> bool:
        """Asked at each step, until it is known."""
        answers: list[bool | None] = [self.tier.has(key, "asks")]
        self.tier.flush()
        until(lambda: answers.append(self.tier.has(key, "asks")) or answers[-1] is not None)  # type: ignore[func-returns-value]
        return bool(answers[-1])

    def settle(self) -> None:
        """Until nothing is under way."""
        self.tier.jobs.drain()
        self.look()
        assert not self.under_way and len(self.free) == ROWS

    def load_all(self, keys: list[bytes]) -> int:
        """How many of them come, each compared."""
        before = self.loaded
        for start in range(0, len(keys), ROWS):
            self.load([key for key in keys[start : start + ROWS] if self.has(key)])
            self.settle()
        return self.loaded - before
