"""Pages: the bytes behind an engine's cache: device memory, typed views for kernels, colder tiers, the mover.

    pool 0   slot 0   slot 1   slot 2 ...     one arena per pool and tier
             ──kv[0]: full, 4 layers──        groups of one pool are views of the same memory:
             ──kv[1]: window, 4 layers──      whose page is in a slot the cache knows

Knows which byte belongs to which layer. Decides nothing: the cache names slots, plans say what moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, QuireError, say
from quire.core.records.memory import say_bytes
from quire.engine.model.folders import first_line
from quire.engine.model.layers import KvShape, Model, StateShape
from quire.tiers.arena import ArenaTier
from quire.tiers.base import MemoryTier, PageLayout, Tier
from quire.tiers.host_limit import check_host_memory
from quire.tiers.mover import Mover

if TYPE_CHECKING:
    from quire.tiers.gpu.pinning import Pinning


class StateView(NamedTuple):
    """One recurrent layer's part of every state slot."""

    conv: torch.Tensor  # [slots, channels, places]
    matrix: torch.Tensor  # [slots, heads, key dim, value dim], float32


class Pages:
    """Memory of all tiers. `kv[group]` is [slots + 1, layers, 2, block, heads, dim], `states[layer]` a StateView.

    `arenas[group]` is uint8 [slots, page_bytes]; groups of one pool have the same one. The slot behind the last is the
    spare page: no cache and no tier knows it, and rows that only fill up a step of fixed size read and write there.
    """

    def __init__(self, model: Model, config: CacheConfig, colder: Sequence[Tier] | None = None) -> None:
        with _memory(config, 0):
            own = [
                torch.zeros(number + 1, size, dtype=torch.uint8, device=model.device)
                for number, size in _pool_sizes(config, 0)
            ]
        self.arenas = [own[pool][:-1] for pool in config.pool_of]
        self.device = own[0].device  # a module of transformers looks through all of its parts to say where it is
        self.kv: dict[int, torch.Tensor] = {}
        self.states: dict[int, StateView] = {}
        for group, (shape, arena) in enumerate(zip(model.shapes, self.arenas, strict=True)):
            if isinstance(shape, KvShape):
                form = (shape.depth, 2, config.block_size, shape.heads, shape.dim)
                whole = own[config.pool_of[group]]
                self.kv[group] = whole.view(model.dtype).view(len(whole), *form)
            else:
                self.states.update(_state_views(shape, arena, model.dtype))
        self.device_tier: Tier = _device_tier(self.arenas)
        below = _host_tiers(config) if colder is None else colder
        self.tiers: list[Tier] = [self.device_tier, *below]
        self._pinning = None if colder is not None else _pinning(below, model.device)
        layouts = [PageLayout(group.page_bytes, group.planes) for group in config.groups]
        self.mover = Mover(self.tiers, layouts, config.block_size)

    @property
    def spare_slots(self) -> dict[int, int]:
        """The spare page of each group with keys and values."""
        return {group: len(self.arenas[group]) for group in self.kv}

    def move_behind(self, event: torch.cuda.Event | None) -> None:
        """Moves between the device and other tiers wait for the event, and not for what was launched after it."""
        from quire.tiers.torch_tier import TorchTier

        if isinstance(self.device_tier, TorchTier):
            self.device_tier.behind = event

    def once_more(self) -> list[Tier]:
        """The same memory as tiers of their own, for another thread: a tier has one caller at a time."""
        groups = range(len(self.arenas))
        tiers: list[Tier] = [_device_tier(self.arenas)]
        for tier in self.tiers[1:]:
            views = [tier.view(group) for group in groups] if isinstance(tier, MemoryTier) else None
            tiers.append(tier if views is None else ArenaTier.over(tier.info().name, views))
        return tiers

    def close(self) -> None:
        """End the mover, then give the memory back."""
        self.mover.close()
        for tier in self.tiers:
            tier.close()
        if self._pinning is not None:  # now that no tier reads it
            self._pinning.close()
        self.arenas, self.kv, self.states = [], {}, {}


def _state_views(shape: StateShape, arena: torch.Tensor, dtype: torch.dtype) -> dict[int, StateView]:
    views: dict[int, StateView] = {}
    for layer, part in zip(shape.layers, shape.parts(dtype.itemsize), strict=True):
        conv = arena[:, part.conv : part.conv + prod(shape.conv) * dtype.itemsize].view(dtype)
        matrix = arena[:, part.matrix : part.end].view(torch.float32)[:, : prod(shape.matrix)]
        views[layer] = StateView(conv.unflatten(1, shape.conv), matrix.unflatten(1, shape.matrix))
    return views


def _device_tier(arenas: list[Any]) -> Tier:
    if all(arena.device.type == "cpu" for arena in arenas):
        return ArenaTier.over("device", [arena.numpy() for arena in arenas])
    from quire.tiers.torch_tier import TorchTier

    return TorchTier("device", arenas)


def _pool_sizes(config: CacheConfig, tier: int) -> list[tuple[int, int]]:
    """By pool: its slots in a tier, and the bytes of one."""
    sizes = dict(zip(config.pool_of, (group.page_bytes for group in config.groups), strict=True))
    return [(config.tiers[tier].of_pool(pool), sizes[pool]) for pool in range(config.num_pools)]


def _host_tiers(config: CacheConfig) -> list[Tier]:
    """Arenas in host memory, which the system gives when it is first written."""
    tiers: list[Tier] = []
    for place, tier in enumerate(config.tiers[1:], 1):
        if tier.slow:  # no step touches it, and its bytes are not this memory's
            continue
        with _memory(config, place):
            sizes = _pool_sizes(config, place)
            check_host_memory(sum(slots * size for slots, size in sizes), f"{tier.name} memory")
            own = [np.zeros(shape, np.uint8) for shape in sizes]
        tiers.append(ArenaTier.over(tier.name, [own[pool] for pool in config.pool_of]))
    return tiers


def _pinning(tiers: Sequence[Tier], device: torch.device) -> Pinning | None:
    """Beside a GPU host memory is pinned while the engine starts, so that the GPU can read and write it itself."""
    views = [tier.view(group) for tier in tiers if isinstance(tier, MemoryTier) for group in tier.info().first_of]
    if device.type == "cpu" or not views:
        return None
    from quire.tiers.gpu.pinning import Pinning

    return Pinning(list({view.__array_interface__["data"][0]: view for view in views}.values()), device)


@contextmanager
def _memory(config: CacheConfig, tier: int) -> Iterator[None]:
    """Memory that cannot be allocated is reported with its amount: torch and NumPy each report it differently."""
    try:
        yield
    except QuireError:
        raise
    except (MemoryError, RuntimeError, ValueError) as wrong:
        total = sum(number * size for number, size in _pool_sizes(config, tier))
        ask = f"{config.tiers[tier].name} memory of {say_bytes(total)}"
        raise InputError(say(ask, f"it cannot be had here ({first_line(wrong)})", "give less")) from wrong
