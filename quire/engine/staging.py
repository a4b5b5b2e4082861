"""Staging: an engine's pages as a link can address them: themselves, or host memory beside a GPU. Knows no peers."""

from __future__ import annotations

import torch

from quire.engine.engine import Engine
from quire.tiers.arena import ArenaTier
from quire.tiers.base import Bytes
from quire.transfer import CacheView, StagedView


def reachable(view: CacheView, engine: Engine, prompts: int) -> tuple[CacheView, list[Bytes]]:
    """A view and the pages it names; on a GPU room for so many of the longest prompts, in pinned memory."""
    arenas = engine.pages.arenas
    if engine.model.device.type == "cpu":
        return view, [arena.numpy() for arena in arenas]
    shape, length = view.shape(), engine.config.max_length
    counts = [sum(map(len, group.needs_at(length, shape.block_size))) for group in shape.groups]
    slots = [min(len(arena), prompts * count) for arena, count in zip(arenas, counts, strict=True)]
    sizes = [group.page_bytes for group in shape.groups]
    pairs = zip(slots, sizes, strict=True)
    pinned = [torch.zeros(count, size, dtype=torch.uint8, pin_memory=True).numpy() for count, size in pairs]
    return StagedView(view, engine.pages.device_tier, ArenaTier.over("staging", pinned)), pinned
