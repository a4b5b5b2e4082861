"""LMCache's real storage manager from an unpacked package, on the CPU: its L1 memory, its controllers and its plugin
factory run as they are. Nothing of it is stubbed; there is no GPU and no engine, so a driver of ours computes objects.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.waits import until

SHAPE, DTYPE = (2, 4, 16, 24), torch.bfloat16  # K and V, layers, tokens, heads: 6,144 bytes
STATE = (700,)  # float32: 2,800 bytes, so no whole number of pieces
PIECE = 4096
L1_BYTES = 4 << 20


def enter(folder: Path) -> None:
    """Make the package in this folder importable, and quiet."""
    sys.path.append(str(folder))  # behind what is installed: only what is missing comes from there
    logging.disable(logging.ERROR)


def key_of(text: str, chunk: int, salt: str = "", model: str = "toy", group: int = 0, rank: int = 0x01000100) -> Any:
    from lmcache.v1.distributed.api import ObjectKey

    digest = blake2b(f"{text}/{chunk}".encode(), digest_size=32).digest()
    return ObjectKey(digest, model, rank, group, salt)


def layout_of(group: int = 0) -> Any:
    from lmcache.v1.distributed.api import MemoryLayoutDesc

    if group:
        return MemoryLayoutDesc([torch.Size(STATE)], [torch.float32])
    return MemoryLayoutDesc([torch.Size(SHAPE)], [DTYPE])


def bytes_of(key: Any, size: int) -> Any:
    """What lies under a key."""
    facts = [key.chunk_hash.hex(), key.model_name, key.kv_rank, key.object_group_id, key.cache_salt]
    seed = int.from_bytes(blake2b(repr(facts).encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def memory_of(one: Any) -> Any:
    return np.frombuffer(one.byte_array, np.uint8)


def plugin_config(params: dict[str, Any]) -> Any:
    """As LMCache reads `--l2-adapter`."""
    from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class

    given = {
        "type": "plugin", "module_path": "quire.integrations.lmcache.l2_adapter", "class_name": "QuireL2Adapter",
        "adapter_params": params,
    }  # fmt: skip
    return get_l2_adapter_config_class("plugin").from_dict(given)


def fs_config(folder: Path) -> Any:
    """LMCache's own file adapter."""
    from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class

    return get_l2_adapter_config_class("fs").from_dict({"type": "fs", "base_path": str(folder)})


def manager_with(config: Any, l1_bytes: int = L1_BYTES) -> Any:
    """LMCache's storage manager over one adapter."""
    from lmcache.v1.distributed.config import (
        EvictionConfig,
        L1ManagerConfig,
        L1MemoryManagerConfig,
        L2AdaptersConfig,
        StorageManagerConfig,
    )
    from lmcache.v1.distributed.storage_manager import StorageManager

    memory = L1MemoryManagerConfig(l1_bytes, use_lazy=False, shm_name="")
    return StorageManager(
        StorageManagerConfig(L1ManagerConfig(memory), EvictionConfig("LRU"), L2AdaptersConfig([config]))
    )


def listener_of(waiting: set[Any]) -> Any:
    """Hears of objects that have been read in L1: the store controller is done with them."""
    from lmcache.v1.distributed.internal_api import L1ManagerListener

    def read(self: Any, keys: list[Any]) -> None:
        waiting.difference_update(keys)

    methods = {name: lambda self, *given: None for name in L1ManagerListener.__abstractmethods__} | {
        "on_l1_keys_read_finished": read
    }
    return type("Listener", (L1ManagerListener,), methods)()


class Driver:
    """What an engine's worker does: writes objects into L1, and asks for them again."""

    def __init__(self, config: Any, l1_bytes: int = L1_BYTES) -> None:
        self.manager = manager_with(config, l1_bytes)
        ((_, self.adapter),) = self.manager.l2_adapters()
        self.waiting: set[Any] = set()
        self.manager._l1_manager.register_listener(listener_of(self.waiting))

    def write(self, keys: Sequence[Any]) -> int:
        """Objects are computed; how many found room in L1."""
        count = 0
        for group in sorted({key.object_group_id for key in keys}):
            ours = [key for key in keys if key.object_group_id == group]
            reserved = self.manager.reserve_write(ours, layout_of(group))
            for key, one in reserved.items():
                room = memory_of(one)
                room[:] = bytes_of(key, room.nbytes)
            self.waiting.update(reserved)
            self.manager.finish_write(list(reserved))
            count += len(reserved)
        return count

    def settle(self) -> None:
        """Until what was written has been stored. Its status has a moment in which a store is not counted anywhere."""
        until(lambda: not self.waiting, "the end of a store")

    def forget(self) -> None:
        """L1 is emptied."""
        self.manager.clear(force=True)

    def fetch(self, keys: Sequence[Any], compared: bool = True) -> list[bool]:
        """Objects come into L1, from wherever they are, and are compared."""
        from lmcache.v1.distributed.api import GroupedObjectKeys, PrefetchTaskSpec

        groups = sorted({key.object_group_id for key in keys})
        rows = [[key for key in keys if key.object_group_id == group] for group in groups]
        spec = PrefetchTaskSpec(
            [GroupedObjectKeys(row, group, layout_of(group)) for group, row in zip(groups, rows, strict=True)]
        )
        handle = self.manager.submit_prefetch_task(spec)
        assert self.manager.wait_prefetch_status(handle, 120.0), "it never ended"
        result = self.manager.query_prefetch_status(handle)
        there: dict[Any, bool] = {}
        for row, cells in zip(rows, result.hit_cells, strict=True):
            hit = [row[nth] for nth in cells.get_indices_list()]
            there |= dict.fromkeys(row, False) | dict.fromkeys(hit, True)
            if not hit:
                continue
            with self.manager.read_prefetched_results(hit) as objects:
                for key, one in zip(hit, objects, strict=True):
                    came = memory_of(one)
                    assert not compared or np.array_equal(came, bytes_of(key, came.nbytes)), f"WRONG BYTES under {key}"
            self.manager.finish_read_prefetched(hit)
        return [there[key] for key in keys]

    def close(self) -> None:
        self.manager.close()
