"""Pages: the bytes behind an engine's cache: device memory, typed views for kernels, colder tiers, the mover.

Knows which byte belongs to which layer. Decides nothing: the cache names slots, plans say what moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import torch

from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, QuireError, say
from quire.core.records.memory import say_bytes
from quire.engine.model.folders import first_line
from quire.engine.model.layers import KvShape, Model, StateShape
from quire.tiers.arena import ArenaTier
from quire.tiers.base import MemoryTier, PageLayout, Tier
from quire.tiers.mover import Mover


class StateView(NamedTuple):
    """One recurrent layer's part of every state slot."""

    conv: torch.Tensor  # [slots, channels, places]
    matrix: torch.Tensor  # [slots, heads, key dim, value dim], float32


class Pages:
    """Memory of all tiers. `kv[group]` is [slots, layers, 2, block, heads, dim], `states[layer]` a StateView."""

    def __init__(self, model: Model, config: CacheConfig, colder: Sequence[Tier] | None = None) -> None:
        sizes = [group.page_bytes for group in config.groups]
        slots = [config.slots_of(0, group) for group in range(len(sizes))]
        with _memory("device", slots, sizes):
            self.arenas = [
                torch.zeros(number, size, dtype=torch.uint8, device=model.device)
                for number, size in zip(slots, sizes, strict=True)
            ]
        self.kv: dict[int, torch.Tensor] = {}
        self.states: dict[int, StateView] = {}
        for group, (shape, arena) in enumerate(zip(model.shapes, self.arenas, strict=True)):
            if isinstance(shape, KvShape):
                form = (len(shape.layers), 2, config.block_size, shape.heads, shape.dim)
                self.kv[group] = arena.view(model.dtype).view(len(arena), *form)
            else:
                self.states.update(_state_views(shape, arena, model.dtype))
        self.device_tier: Tier = _device_tier(self.arenas)
        below = _host_tiers(config, sizes, model.device) if colder is None else colder
        self.tiers: list[Tier] = [self.device_tier, *below]
        layouts = [PageLayout(group.page_bytes, group.planes) for group in config.groups]
        self.mover = Mover(self.tiers, layouts, config.block_size)

    def once_more(self) -> list[Tier]:
        """The same memory as tiers of their own, for another thread: a tier has one caller at a time."""
        sizes = range(len(self.arenas))
        tiers: list[Tier] = [_device_tier(self.arenas)]
        for tier in self.tiers[1:]:
            views = [tier.view(group) for group in sizes] if isinstance(tier, MemoryTier) else None
            tiers.append(tier if views is None else ArenaTier.over(tier.info().name, views))
        return tiers

    def close(self) -> None:
        """End the mover, then give the memory back."""
        self.mover.close()
        for tier in self.tiers:
            tier.close()
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


def _host_tiers(config: CacheConfig, sizes: list[int], device: torch.device) -> list[Tier]:
    """Arenas in host memory; beside a GPU pinned, so that it can read and write them itself."""
    tiers: list[Tier] = []
    for place, tier in enumerate(config.tiers[1:], 1):
        if tier.slow:  # no step touches it, and its bytes are somebody else's
            continue
        slots = [config.slots_of(place, group) for group in range(len(sizes))]
        with _memory(tier.name, slots, sizes):
            if device.type == "cpu":
                tiers.append(ArenaTier(tier.name, slots, sizes))
                continue
            pairs = zip(slots, sizes, strict=True)
            pinned = [torch.zeros(number, size, dtype=torch.uint8, pin_memory=True).numpy() for number, size in pairs]
            tiers.append(ArenaTier.over(tier.name, pinned))
    return tiers


@contextmanager
def _memory(tier: str, slots: list[int], sizes: list[int]) -> Iterator[None]:
    """Memory that cannot be had is told as the amount that was asked for: torch and NumPy each say it in their way."""
    try:
        yield
    except QuireError:
        raise
    except (MemoryError, RuntimeError, ValueError) as wrong:
        total = sum(number * size for number, size in zip(slots, sizes, strict=True))
        ask, fact = f"{tier} memory of {say_bytes(total)}", f"it cannot be had here ({first_line(wrong)})"
        raise InputError(say(ask, fact, "give less")) from wrong
