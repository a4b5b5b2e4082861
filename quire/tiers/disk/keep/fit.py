"""What a keeper is made of: whether a cache, a folder and the tiers above it fit together, and what moves pages between
them. Keeps nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.cache import Cache
from quire.core.records.errors import InputError, say
from quire.tiers.base import PageLayout, Tier, check_pools, first_of
from quire.tiers.disk.folder import DiskFolder
from quire.tiers.disk.ranks.ranked_tier import RankedTier, RanksMover
from quire.tiers.mover import Mover


def mover_for(
    cache: Cache, folder: DiskFolder, tiers: Sequence[Tier], layouts: Sequence[PageLayout]
) -> Mover | RanksMover:
    """What moves pages: here, or every rank its part."""
    if isinstance(folder.tier, RankedTier):
        return folder.tier.mover()
    return Mover([*tiers, folder.tier], layouts, cache.config.block_size)


def check_fit(cache: Cache, folder: DiskFolder, tiers: Sequence[Tier]) -> None:
    """Refuse a cache, a folder and tiers above it that cannot be kept together."""
    config, info = cache.config, folder.tier.info()
    if not config.tiers[-1].slow or not config.lasting:
        fact = f"slow={config.tiers[-1].slow}, lasting={config.lasting}"
        cure = "give the last tier slow=True and the cache lasting=True"
        raise InputError(say("a keeper for this cache", fact, cure))
    slots = tuple(config.slots_of(-1, group) for group in range(len(config.groups)))
    above = 0 if isinstance(folder.tier, RankedTier) else len(config.tiers) - 1  # ranks have their own
    if slots != info.num_slots or len(tiers) != above:
        fact = f"the cache has {slots} slots in it, the folder {info.num_slots}; tiers above it: {len(tiers)}"
        raise InputError(say("a keeper for this cache", fact, "open the folder with the slots of the cache"))
    check_pools(info, config.pool_of)
    if info.first_of != first_of(config.pool_of):
        fact = f"the cache has the pools {list(config.pool_of)}, and in the folder no group shares its slots"
        raise InputError(say("a keeper for this cache", fact, "give DiskLimits(pool_of=config.pool_of)"))
    for tier in tiers:
        check_pools(tier.info(), config.pool_of)
