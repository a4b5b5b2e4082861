"""SGLang's side of the storage without SGLang: a host pool of pages in place, filled, compared, and used again at once.

Of SGLang there are the three names that QuireHiCacheStorage asks for. `hicache_lives` runs it under the real ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

ROWS, ROW, SLOTS = 24, 4096, 64
NAME, OURS = "sglang.srt.mem_cache.hicache_storage", "quire.integrations.sglang.hicache_storage"


@cache
def storage_module() -> Any:
    """The module of QuireHiCacheStorage, over an empty base class; nobody else in this process gets that one."""
    module = ModuleType(NAME)
    for word in ("HiCacheStorage", "PoolHitPolicy", "PoolTransferResult"):
        setattr(module, word, type(word, (), {}))
    before = {name: sys.modules.pop(name, None) for name in (NAME, OURS)}
    sys.modules[NAME] = module
    try:
        return import_module(OURS)
    finally:
        for name, other in before.items():
            sys.modules.pop(name, None)
            if other is not None:
                sys.modules[name] = other


@contextmanager
def any_version() -> Iterator[None]:
    """SGLang's version is not asked meanwhile."""
    before = os.environ.get("QUIRE_ANY_SGLANG")
    os.environ["QUIRE_ANY_SGLANG"] = "1"
    try:
        yield
    finally:
        del os.environ["QUIRE_ANY_SGLANG"]
        if before is not None:
            os.environ["QUIRE_ANY_SGLANG"] = before


def key_of(number: int) -> str:
    return f"k{number}".encode().hex().ljust(64, "0")


def bytes_of(key: str) -> Any:
    return np.random.default_rng(np.frombuffer(bytes.fromhex(key), np.uint32)).integers(0, 256, 2 * ROW, np.uint8)


class Pool:
    """A host pool of a page_first layout: K and V of a page lie apart."""

    page_size, page_num, kv_buffer, dtype, layout = 1, ROWS, True, "bf16", "page_first"

    def __init__(self) -> None:
        self.rows = np.zeros((2, ROWS, ROW), np.uint8)

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        places = [self.rows[half, at].ctypes.data for at in indices.tolist() for half in (0, 1)]
        return places, [ROW] * len(places)


class StubSGLang:
    """A host pool over a disk, a store or both; `deadline` and `wait` in seconds. Its calls wait, as SGLang's do."""

    def __init__(
        self,
        disk: Path | None,
        store: Path | str | None,
        *,
        deadline: float = 60.0,
        wait: float = 60.0,
        files: Any = None,
    ) -> None:
        module, given = storage_module(), {"namespace": "stub", "deadline": deadline, "wait": wait}
        given |= {} if disk is None else {"folder": str(disk), "bytes": SLOTS * (ROW + 256)}
        given |= {} if store is None else {"shared": str(store)}
        ranks = dict.fromkeys(("tp_rank", "pp_rank", "attn_cp_rank", "dp_rank"), 0)
        ranks |= dict.fromkeys(("tp_size", "pp_size", "attn_cp_size", "dcp_size"), 1)
        config = SimpleNamespace(
            model_name="toy", is_mla_model=False, extra_config={"interface_v1": 1, "quire": given}, **ranks
        )
        opens = module.disk_of
        module.disk_of = opens if files is None else partial(opens, files=files)
        try:
            with any_version():
                self.storage, self.pool = module.QuireHiCacheStorage(config), Pool()
            self.storage.register_mem_pool_host(self.pool)
            self.storage.on_host_pools_registered()
        finally:
            module.disk_of = opens
        ((_, place),) = self.storage._open.values()
        self.disk, self.shared = place.disk, place.store
        self.loaded = self.stored = self.failed = 0

    def _at(self, count: int) -> Any:
        import torch

        return torch.arange(count)

    def store(self, keys: list[str]) -> None:
        """Pages that were computed go down."""
        for nth, key in enumerate(keys):
            self.pool.rows[:, nth] = bytes_of(key).reshape(2, ROW)
        self._end(self.storage.batch_set_v1(keys, self._at(len(keys))), False)

    def load(self, keys: list[str]) -> None:
        """Pages come up."""
        good = self.storage.batch_get_v1(keys, self._at(len(keys)))
        for nth, key in enumerate(keys):
            assert not good[nth] or np.array_equal(self.pool.rows[:, nth].reshape(-1), bytes_of(key)), "WRONG BYTES"
        self._end(good, True)

    def _end(self, good: list[bool], is_load: bool) -> None:
        self.loaded += sum(good) * is_load
        self.stored += sum(good) * (not is_load)
        self.failed += len(good) - sum(good)
        self.pool.rows[:] = self.loaded % 251

    def look(self) -> None:
        """Nothing is under way."""

    def settle(self) -> None:
        """Nothing is under way."""

    def has(self, key: str) -> bool:
        return bool(self.storage.exists(key))

    def durable(self, keys: list[str]) -> list[str]:
        """Of these, what lies on the disk whole."""
        return [key for key in keys if all(f"{key}/{part}".encode() in self.disk for part in (0, 1))]

    def load_all(self, keys: list[str]) -> int:
        """How many of them come, each compared."""
        before = self.loaded
        for start in range(0, len(keys), ROWS):
            self.load([key for key in keys[start : start + ROWS] if self.has(key)])
        return self.loaded - before

    def close(self) -> bool:
        self.storage.close()
        return True
