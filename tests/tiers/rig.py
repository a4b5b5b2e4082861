"""Four tiers with a mover over them, filled, for tests of the mover. Knows no plan in particular."""

from __future__ import annotations

import numpy as np

from quire.core.records.plan import Kind
from quire.tiers import ArenaTier, Bytes, Mover, PageLayout, Tier

from .stand_ins import FlakyTier, Place, Row

ON, OFF, COPY, SWAP = Kind.ONBOARD, Kind.OFFLOAD, Kind.COPY, Kind.EXCHANGE
BLOCK = 4
LAYOUTS = (PageLayout(24, planes=3), PageLayout(10), PageLayout(32, planes=2))
SIZES = tuple(layout.page_bytes for layout in LAYOUTS)
SLOTS = ((4, 3, 2), (3, 2, 3), (3, 3, 2), (2, 3, 3))  # by tier
DEVICE, HOST, DISK, REMOTE = range(4)


def arena_of(tier: Tier) -> ArenaTier:
    if isinstance(tier, FlakyTier):
        return tier.arena
    assert isinstance(tier, ArenaTier)
    return tier


class Rig:
    """Two tiers of memory, two without a view, every byte filled, and a mover over them."""

    def __init__(self, staging_bytes: int = 1 << 20, disk: type[FlakyTier] = FlakyTier) -> None:
        self.disk = disk("disk", SLOTS[DISK], SIZES)
        self.remote = FlakyTier("remote", SLOTS[REMOTE], SIZES)
        memory = [ArenaTier("device", SLOTS[DEVICE], SIZES), ArenaTier("host", SLOTS[HOST], SIZES)]
        self.tiers: list[Tier] = [*memory, self.disk, self.remote]
        dice = np.random.default_rng(1)
        for tier in self.tiers:
            for group, size in enumerate(SIZES):
                arena = arena_of(tier).view(group)
                arena[:] = dice.integers(0, 256, (len(arena), size), np.uint8)
        self.mover = Mover(self.tiers, LAYOUTS, BLOCK, staging_bytes=staging_bytes)

    def pages(self) -> dict[Place, Bytes]:
        """A copy of every page."""
        return {
            (group, number, slot): held.copy()
            for number, tier in enumerate(self.tiers)
            for group in range(len(SIZES))
            for slot, held in enumerate(arena_of(tier).view(group))
        }

    def page(self, tier: int, slot: int, group: int = 0) -> list[int]:
        return [int(byte) for byte in arena_of(self.tiers[tier]).view(group)[slot]]


def copy(source: tuple[int, int], target: tuple[int, int], tokens: int = BLOCK, group: int = 0) -> Row:
    return COPY, group, source, target, tokens
