"""IndexSize: what it takes in memory to know where pages are and whose, whether their bytes are here or on a disk.

Owns the arithmetic, per slot and per block, of the compiled store's records (the other one takes more). Knows no cache.

    a slot     12   its place in the order of its tier
               16   the page: block, holders, claims, priority; and 4 for each tier
                4   who needs its colder copies
             + 12   in the adaptive order: when and how often it was used
            + 1/4   if what lasts is noted
    a block    32   parent, children, key; and 4 for each layer group
                4   for each token
           8 / 12   its number, if it lasts / its hash, if events are on
             + 4   in the adaptive order, for each tier of each group: children there
       9.3 to 9.9   its entry in the index, if it lasts: six sevenths of the index are full, or a sixteenth less; else
         12 to 32   of which a third to two thirds are full, and of a small one less
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from quire.core.records.config import CacheConfig

LARGE_INDEX = 1 << 21  # places from which it may be two thirds full; as in the store


@dataclass(frozen=True, slots=True)
class IndexSize:
    """Bytes of memory per slot, per block, and per block in the index at most."""

    slot: float
    block: int
    entry: int = 32
    dense: bool = False  # the index is as full as it may be, or nearly so

    @property
    def page(self) -> int:
        """A page with a block of its own, at most."""
        return ceil(self.slot) + self.block + self.entry


def index_size(config: CacheConfig) -> IndexSize:
    """Of the pages of a cache's coldest tier."""
    tiers, adaptive = len(config.tiers), config.order == "adaptive"
    page = 16 + 4 * tiers
    if adaptive:
        page = -(-(page + 12) // 8) * 8
    groups = len(config.groups)
    block = 32 + 4 * groups * (1 + tiers * adaptive) + 4 * config.block_size
    block += 8 * config.lasting + 12 * config.events
    slot = 12 + page + 4 * (tiers > 1) + 0.25 * config.lasting
    return IndexSize(slot, block, 10, dense=True) if config.lasting else IndexSize(slot, block)


def index_bytes(size: IndexSize, slots: int, blocks: int, all_blocks: int) -> int:
    """What so many slots and blocks take, in a tree of `all_blocks`."""
    places = 64
    while _is_full(size, places, all_blocks):
        places += places >> 4 if size.dense else places
    share = 8 * places * blocks // max(all_blocks, 1)
    return int(size.slot * slots) + size.block * blocks + share


def _is_full(size: IndexSize, places: int, blocks: int) -> bool:
    """As the store has it."""
    if size.dense:
        return 7 * blocks > 6 * places
    return 2 * blocks > places if places < LARGE_INDEX else 3 * blocks > 2 * places
