"""Staging: an engine's pages as a link can address them: themselves, or host memory beside a GPU. Knows no peers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from quire.core.records.groups import LayerGroup
from quire.engine.runner.engine import Engine
from quire.tiers.arena import ArenaTier
from quire.tiers.base import Bytes
from quire.transfer import CacheView, StagedView


class AddressablePages(NamedTuple):
    """A cache as peers see it, and the memory that its slots mean."""

    view: CacheView
    pages: list[Bytes]  # uint8 [slots, page_bytes], per layer group


def addressable(view: CacheView, engine: Engine, prompts: int) -> AddressablePages:
    """A view and the pages it names; on a GPU room for so many of the longest prompts, in pinned memory."""
    if engine.model.device.type == "cpu":
        return AddressablePages(view, [arena.numpy() for arena in engine.pages.arenas])
    pinned = [
        torch.zeros(slots, group.page_bytes, dtype=torch.uint8, pin_memory=True).numpy()
        for slots, group in slots_for(view, engine, prompts)
    ]
    staged = StagedView(view, engine.pages.device_tier, ArenaTier.over("staging", pinned))
    return AddressablePages(staged, pinned)


def slots_for(view: CacheView, engine: Engine, prompts: int) -> Iterator[tuple[int, LayerGroup]]:
    """Per group, how many slots so many of the longest prompts need; never more than the device has."""
    size, longest = view.shape().block_size, engine.config.max_length
    for group, arena in zip(view.shape().groups, engine.pages.arenas, strict=True):
        lengths = range(max(1, longest - size + 1), longest + 1)  # a window may need one block more inside a block
        most = max(sum(map(len, group.needs_at(length, size))) for length in lengths)
        yield min(len(arena), prompts * most), group
