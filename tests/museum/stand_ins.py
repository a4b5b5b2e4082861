"""Stand-ins for what others install: the names of vLLM that the connector imports, and a Mooncake client. With them the
connector's own file runs where there is no vLLM. They do nothing; a case gives them what it needs.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

OURS = ("connector", "reports.vllm_metrics", "worker.region_pages")


class Role(Enum):
    """Which of its two sides a connector is."""

    SCHEDULER = 0
    WORKER = 1


class Base:
    """vLLM's base class of connectors, as far as ours leans on it."""

    def __init__(self, vllm_config: Any, role: Role, kv_cache_config: Any) -> None:
        self._vllm_config, self._role, self._kv_cache_config = vllm_config, role, kv_cache_config


class Metadata(ABC):  # noqa: B024  # ours are registered with it
    """What travels between the two sides."""


@dataclass
class Stats:
    """vLLM's connector statistics."""

    data: dict[str, Any] = field(default_factory=dict)


class PromMetrics:
    """vLLM's metrics of a connector: the classes that it is to make them of, by kind."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> None:
        kinds = {kind.__name__: made for kind, made in metric_types.items()}
        self._gauge_cls, self._counter_cls = kinds["Gauge"], kinds["Counter"]
        self.per_engine_labelvalues = per_engine_labelvalues


class Region:
    """vLLM's offloading spec: a region of chunks, each as large as this platform makes it."""

    chunk = 0
    replicated_layout = False

    def __init__(self, config: Any) -> None:
        self.kv_bytes_per_chunk = self.chunk
        self.asked = config.extra_config["cpu_bytes_to_use"]


@dataclass(frozen=True)
class Offloading:
    """What vLLM makes of its config for such a region."""

    groups: tuple[Any, ...]
    parallel: Any = field(default_factory=lambda: SimpleNamespace(rank=0))
    extra_config: dict[str, Any] = field(default_factory=dict)


class Registered:
    """vLLM's worker of such a region; it remembers how large a one was made."""

    def __init__(self, spec: Region, *_: Any) -> None:
        self.worker = SimpleNamespace(spec=spec)

    def register_kv_caches(self, kv_caches: Any) -> None:
        """Nothing is copied."""


def vllm_names(version: str) -> dict[str, dict[str, Any]]:
    """By module: what is imported from it."""
    v1 = "vllm.distributed.kv_transfer.kv_connector.v1"
    plain = {
        "vllm.distributed.kv_events": ("MEDIUM_CPU", "BlockRemoved", "BlockStored"),
        "vllm.v1.core.kv_cache_utils": ("maybe_convert_block_hash",),
        "vllm.v1.kv_cache_interface": ("get_kv_cache_spec_kind", "get_kv_cache_spec_sliding_window"),
        "vllm.v1.kv_offload.base": ("GPULoadStoreSpec",),
        "vllm.v1.kv_offload.cpu.common": ("CPULoadStoreSpec",),
    }
    names: dict[str, dict[str, Any]] = {module: dict.fromkeys(some, SimpleNamespace) for module, some in plain.items()}
    build = lambda config, cache: Offloading(tuple(cache.kv_cache_groups))  # noqa: E731
    return names | {
        "vllm": {"__version__": version},
        f"{v1}.base": {
            "KVConnectorBase_V1": Base, "KVConnectorHandshakeMetadata": Metadata, "KVConnectorMetadata": Metadata,
            "KVConnectorRole": Role,
            "KVConnectorTransferResults": SimpleNamespace, "KVConnectorWorkerMetadata": Metadata,
            "SupportsHMA": type("SupportsHMA", (), {}),
        },
        f"{v1}.metrics": {"KVConnectorPromMetrics": PromMetrics, "KVConnectorStats": Stats},
        f"{v1}.offloading.config": {"build_offloading_config": build},
        f"{v1}.offloading.worker": {"OffloadingConnectorWorker": Registered},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: True)},
        "vllm.v1.kv_offload.cpu.spec": {"CPUOffloadingSpec": Region},
        "vllm.v1.metrics.cache_hit_source": {"CacheHitSource": SimpleNamespace(HOST="host")},
    }  # fmt: skip


def under_vllm(patch: pytest.MonkeyPatch, version: str = "0.32.0") -> Any:
    """The connector's module as it is imported inside vLLM; gone again with the test."""
    install(patch, vllm_names(version))
    for name in OURS:
        patch.delitem(sys.modules, f"quire.integrations.vllm.{name}", raising=False)
    module = importlib.import_module("quire.integrations.vllm.connector")
    for name in OURS:  # what the test leaves behind is forgotten: the next import finds no vLLM, or a real one
        patch.setitem(sys.modules, f"quire.integrations.vllm.{name}", sys.modules[f"quire.integrations.vllm.{name}"])
    return module


def install(patch: pytest.MonkeyPatch, names: dict[str, dict[str, Any]]) -> None:
    """Modules with these names in them, and the packages above them."""
    for module, values in names.items():
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if not isinstance(sys.modules.get(name), Made):
                patch.setitem(sys.modules, name, Made(name))
        for name, value in values.items():
            setattr(sys.modules[module], name, value)


class Made(ModuleType):
    """A module that stands in for another; every one may have modules below it."""

    __path__: list[str] = []  # noqa: RUF012  # as modules have it


def vllm_config(extra: dict[str, Any], **transfer: Any) -> Any:
    """A VllmConfig for one rank, with this kv_connector_extra_config."""
    told = {"kv_role": "kv_both", "kv_load_failure_policy": "fail", "engine_id": "e"}
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra, **(told | transfer)),
        parallel_config=SimpleNamespace(world_size=1, rank=0), model_config=SimpleNamespace(max_model_len=256),
        speculative_config=None, kv_events_config=None, instance_id="i",
    )  # fmt: skip
