"""SGLang's real storage classes and host pools, from an unpacked package, without a GPU.

`sglang` itself is entered as a bare package, since its __init__ starts the whole engine. Its storage interface, backend
factory and file backend then load as they are. So do its host pools, with thirteen modules stubbed (STUBBED): platform
questions (`is_cuda()` and its like are false), kernels, and device pools. A pool is made without its constructor, which
asks for device pools, and gets the fields that its page methods read.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import torch

STUBBED = (
    "sglang.srt.utils", "sglang.srt.platforms", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.kvcache",
    "sglang.kernels.ops.kvcache.hicache", "sglang.srt.mem_cache.memory_pool", "sglang.srt.mem_cache.device_pool_info",
    "sglang.srt.utils.common", "sglang.srt.runtime_context", "sglang.srt.layers", "sglang.srt.layers.dcp",
    "sglang.srt.layers.dcp.layout",
)  # fmt: skip
PAGE, LAYERS, PAGES = 4, 6, 16


class Stub(types.ModuleType):
    """Any name of it is an empty class, or a question whose answer is no."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return (lambda *_, **__: False) if name.startswith("is_") else type(name, (), {})


def enter(folder: Path) -> None:
    """Make the package in this folder importable."""
    sys.path.insert(0, str(folder))  # its metadata say which version it is
    bare = types.ModuleType("sglang")
    bare.__path__ = [str(folder / "sglang")]
    sys.modules["sglang"] = bare
    for name in STUBBED:
        stub = Stub(name)
        stub.__path__ = []
        sys.modules[name] = stub


def module(name: str) -> Any:
    return importlib.import_module(f"sglang.srt.mem_cache.{name}")


def config_of(**more: Any) -> Any:
    """A storage config of one rank."""
    given = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1,
        "is_mla_model": False, "enable_storage_metrics": False, "is_page_first_layout": True, "model_name": "toy",
    }  # fmt: skip
    return module("hicache_storage").HiCacheStorageConfig(**(given | more))


def _pool(kind: Any, layout: str, **fields: Any) -> Any:
    pool = object.__new__(kind)
    common = {"layout": layout, "page_size": PAGE, "layer_num": LAYERS, "size": PAGE * PAGES, "page_num": PAGES}
    common |= {"device": "cpu", "pin_memory": False, "start_layer": 0, "end_layer": LAYERS}
    for name, value in (common | fields).items():
        setattr(pool, name, value)
    return pool


def mha_pool(layout: str, heads: int = 2, dim: int = 32) -> Any:
    """K and V of attention with heads."""
    shapes = {
        "layer_first": (2, LAYERS, PAGE * PAGES, heads, dim), "page_first": (2, PAGE * PAGES, LAYERS, heads, dim),
        "page_first_direct": (2, PAGES, LAYERS, PAGE, heads, dim),
    }  # fmt: skip
    buffer = torch.zeros(shapes[layout], dtype=torch.bfloat16)
    kind = module("pool_host.mha").MHATokenToKVPoolHost
    return _pool(kind, layout, kv_buffer=buffer, head_num=heads, head_dim=dim, dtype=torch.bfloat16)


def mla_pool(layout: str, dim: int = 48) -> Any:
    """One latent for all heads."""
    shapes = {"layer_first": (LAYERS, PAGE * PAGES, 1, dim), "page_first": (PAGE * PAGES, LAYERS, 1, dim)}
    buffer = torch.zeros(shapes[layout], dtype=torch.float16)
    kind = module("pool_host.mla").MLATokenToKVPoolHost
    more = {"logical_size": PAGE * PAGES, "dcp_size": 1, "is_dsa": False}
    pool = _pool(kind, layout, kv_buffer=buffer, kv_cache_dim=dim, dtype=torch.float16)
    for name, value in more.items():
        if not isinstance(getattr(type(pool), name, None), property):
            setattr(pool, name, value)
    return pool


def state_pool(count: int = 2) -> Any:
    """A pool of states, by the calls that the storage makes of any pool; a page is one state."""

    class StatePool:
        layout, page_size, page_num, dtype, kv_buffer = "page_first", 1, PAGES, torch.uint8, True

        def __init__(self) -> None:
            self.states = torch.zeros((PAGES, 700 * count), dtype=torch.uint8)

        def get_page_buffer_meta(self, indices: Any) -> Any:
            raise NotImplementedError

        def get_dummy_flat_data_page(self) -> Any:
            return torch.zeros(700 * count, dtype=torch.uint8)

        def get_data_page(self, index: int, flat: bool = True) -> Any:
            return self.states[index].clone()

        def set_from_flat_data_page(self, index: int, data_page: Any) -> None:
            self.states[index] = data_page

    return StatePool()
