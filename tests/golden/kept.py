"""Write what a cache keeps on the disks of two ranks, for later versions to find: python -m tests.golden.kept FOLDER

Two prompts, one of two blocks and one of a tenant; a page's bytes follow from its prompt, its block and the rank.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from quire import Cache, CacheConfig, LayerGroup, Refusal, Request, Scope, TierConfig
from quire.core.outside.prefetch import Prefetch
from quire.tiers import ArenaTier, PageLayout
from quire.tiers.disk import DiskFolder, DiskKeeper, KeeperPace, LocalRank

FINGERPRINT = bytes(range(150, 182))
BLOCK, PART, HOST, DISK = 4, 32, 4, 4
PROMPTS = {"plain": (np.arange(8, dtype=np.int32), Scope()), "tenant": (np.arange(4, dtype=np.int32), Scope(salt="t"))}
BY_HAND = KeeperPace(look_seconds=600, scrub_bytes_per_second=0)


def part_of(name: str, block: int, rank: int) -> np.ndarray:
    return np.full(PART, 100 * (name == "tenant") + 10 * block + rank + 1, np.uint8)


class KeptOnRanks:
    """A cache, the host memory of two ranks, their folder and its keeper."""

    def __init__(self, folder: Path) -> None:
        tiers = (TierConfig("device", 0), TierConfig("host", HOST), TierConfig("disk", DISK, slow=True))
        groups = (LayerGroup("full", page_bytes=2 * PART),)
        self.cache = Cache(CacheConfig(tiers, BLOCK, groups, max_length=64, lasting=True))
        self.hosts = [ArenaTier("host", (HOST,), (PART,)) for _ in range(2)]
        ranks = [
            LocalRank(
                folder, FINGERPRINT, rank, [ArenaTier("device", (0,), (PART,)), host], [PageLayout(PART)], (DISK,),
                block_size=BLOCK,
            )
            for rank, host in enumerate(self.hosts)
        ]  # fmt: skip
        self.disk = DiskFolder(folder, FINGERPRINT, (2 * PART,), (DISK,), ranks=ranks)
        self.keeper = DiskKeeper(self.cache, self.disk, [], [PageLayout(2 * PART)], pace=BY_HAND)

    def compute(self, name: str) -> None:
        tokens, scope = PROMPTS[name]
        writer = self.cache.writer(Request(name, tokens, scope), tier=1)
        assert not isinstance(writer, Refusal)
        with writer:
            self.cache.finish(writer.plan)
            for block, slot in zip(writer.blocks(), writer.slots(), strict=True):
                for rank, host in enumerate(self.hosts):
                    host.view(0)[slot] = part_of(name, int(block), rank)
            writer.written(len(tokens))

    def found(self, name: str) -> int:
        """Leading tokens that come back, every byte of them right."""
        tokens, scope = PROMPTS[name]
        prefetch = self.keeper.prefetch(Request(name, tokens, scope))
        assert isinstance(prefetch, Prefetch)
        self.keeper.idle()
        with prefetch, self.cache.find(Request(name, tokens, scope)) as found:
            for block, slot in zip(found.blocks(), found.slots(), strict=True):
                for rank, host in enumerate(self.hosts):
                    assert np.array_equal(host.view(0)[slot], part_of(name, int(block), rank))
            return found.end

    def close(self) -> None:
        self.keeper.close()


def main(folder: Path) -> None:
    kept = KeptOnRanks(folder)
    for name in PROMPTS:
        kept.compute(name)
    assert kept.keeper.flush()
    kept.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
