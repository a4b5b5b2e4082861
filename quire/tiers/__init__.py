"""Tiers: the bytes of pages. Re-exports what a caller needs; knows nothing more."""

from quire.tiers.arena import ArenaTier
from quire.tiers.base import Bytes, MemoryTier, PageLayout, Tier, TierError, TierInfo
from quire.tiers.move_queue import Ticket
from quire.tiers.mover import Mover, MoverStats

__all__ = [
    "ArenaTier",
    "Bytes",
    "MemoryTier",
    "Mover",
    "MoverStats",
    "PageLayout",
    "Ticket",
    "Tier",
    "TierError",
    "TierInfo",
]
