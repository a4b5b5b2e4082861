"""What QuireL2Adapter asks of LMCache, in our words, where LMCache is not installed: bits, a store's result, a file to
wait for, the base class with its counts. `adapter_lives` runs the same adapter under the real ones.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


class Bitmap:
    """Bits by number."""

    def __init__(self, size: int) -> None:
        self.bits = [False] * size

    def set(self, nth: int) -> None:
        self.bits[nth] = True


class L2StoreResult:
    """Whether a store succeeded, and what it moved."""

    def __init__(self, success: bool, bytes_transferred: int) -> None:
        self.success, self.moved = success, bytes_transferred


class Notifier:
    """A file that is readable when something is over."""

    def __init__(self) -> None:
        self._file = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._file

    def notify(self) -> None:
        os.eventfd_write(self._file, 1)

    def close(self) -> None:
        os.close(self._file)


@dataclass(frozen=True)
class AdapterUsage:
    total_bytes_used: int
    total_capacity_bytes: int
    bytes_by_cache_salt: dict[str, int] = field(default_factory=dict)


class L2AdapterInterface:
    """The base class: bytes per salt, by what it is told."""

    def __init__(self, max_capacity_bytes: int = 0) -> None:
        self._most, self.per_salt = max_capacity_bytes, dict[str, int]()
        self.accessed: list[Any] = []

    def _notify_keys_stored(self, keys: list[Any], sizes: list[int]) -> None:
        for key, size in zip(keys, sizes, strict=True):
            self.per_salt[key.cache_salt] = self.per_salt.get(key.cache_salt, 0) + size

    def _notify_keys_deleted(self, keys: list[Any], sizes: list[int]) -> None:
        self._notify_keys_stored(keys, [-size for size in sizes])
        assert min(self.per_salt.values()) >= 0, "more is gone than came"

    def _notify_keys_accessed(self, keys: list[Any]) -> None:
        self.accessed += keys

    def get_usage(self) -> AdapterUsage:
        return AdapterUsage(sum(self.per_salt.values()), self._most, dict(self.per_salt))


NAMES: dict[str, dict[str, Any]] = {
    "lmcache.lmcache_native": {"Bitmap": Bitmap},
    "lmcache.v1.distributed.internal_api": {"L2StoreResult": L2StoreResult},
    "lmcache.v1.distributed.l2_adapters.base": {"AdapterUsage": AdapterUsage, "L2AdapterInterface": L2AdapterInterface},
    "lmcache.v1.platform": {"create_event_notifier": Notifier},
}


def adapter_class() -> Any:
    """QuireL2Adapter over these."""
    os.environ["QUIRE_ANY_LMCACHE"] = "1"
    there = {name: sys.modules.get(name) for name in NAMES}
    for name, things in NAMES.items():
        module = sys.modules[name] = ModuleType(name)
        for word, thing in things.items():
            setattr(module, word, thing)
    try:
        from quire.integrations.lmcache.l2_adapter import QuireL2Adapter
    finally:
        for name, module in there.items():  # type: ignore[assignment]
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return QuireL2Adapter


class Size(tuple[int, ...]):
    """A shape."""

    def numel(self) -> int:
        count = 1
        for one in self:
            count *= one
        return count


@dataclass(frozen=True)
class Dtype:
    itemsize: int
    name: str = "bf16"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Layout:
    """LMCache's MemoryLayoutDesc."""

    shapes: list[Size]
    dtypes: list[Dtype]


@dataclass(frozen=True)
class Key:
    """LMCache's ObjectKey."""

    chunk_hash: bytes
    model_name: str = "toy"
    kv_rank: int = 0
    object_group_id: int = 0
    cache_salt: str = ""


class Memory:
    """LMCache's MemoryObj: some bytes, and their form."""

    def __init__(self, layout: Layout, buffer: Any) -> None:
        self.metadata = type("Metadata", (), {"shapes": layout.shapes, "dtypes": layout.dtypes})()
        self.byte_array = memoryview(buffer)
