"""A cache with host memory and a disk, kept by a keeper, and bytes that follow from tokens. Knows no one test."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quire import Cache, CacheConfig, LayerGroup, Refusal, Request, Scope, TierConfig
from quire.core.outside.prefetch import Prefetch
from quire.tiers import ArenaTier, Bytes, PageLayout
from quire.tiers.disk import DiskFolder, DiskIO, DiskKeeper, KeeperPace
from quire.tiers.disk.calls.files import REAL_FILES, Files

FINGERPRINT = bytes(range(32))
BLOCK, PAGE, HOST, DISK = 4, 64, 8, 32
GROUPS = (LayerGroup("full", page_bytes=PAGE),)
OFTEN = KeeperPace(look_seconds=0.001, fence_seconds=0.001, scrub_bytes_per_second=0)
PATIENT = DiskIO(2, 16, 120)
BY_HAND = KeeperPace(look_seconds=600, scrub_bytes_per_second=0)  # nothing happens that nobody has asked for


def prompt(number: int, blocks: int = 4) -> np.ndarray:
    """Tokens that no other number gives."""
    return (np.arange(blocks * BLOCK) + 1000 * number).astype(np.int32)


def page_of(tokens: np.ndarray) -> Bytes:
    """Bytes of a block's page, as if a model had computed them from all tokens up to there."""
    return np.random.default_rng(tokens.astype(np.uint32)).integers(0, 256, PAGE, np.uint8)


class Kept:
    """A process's worth: cache, host memory, folder and keeper."""

    def __init__(
        self, folder: Path, pace: KeeperPace = BY_HAND, files: Files = REAL_FILES, device: int = 0,
        *, events: bool = False, io: DiskIO = PATIENT,
    ) -> None:  # fmt: skip
        tiers = (TierConfig("device", device), TierConfig("host", HOST), TierConfig("disk", DISK, slow=True))
        config = CacheConfig(tiers, BLOCK, GROUPS, max_length=256, lasting=True, events=events)
        self.cache = Cache(config)
        self.host = ArenaTier("host", (HOST,), (PAGE,))
        self.device = ArenaTier("device", (device,), (PAGE,))
        self.folder = DiskFolder(folder, FINGERPRINT, (PAGE,), (DISK,), io=io, files=files)
        layouts = [PageLayout(PAGE)]
        self.keeper = DiskKeeper(self.cache, self.folder, [self.device, self.host], layouts, pace=pace)

    def compute(self, number: int, scope: Scope | None = None, blocks: int = 4) -> None:
        """The pages of a prompt come into host memory."""
        tokens = prompt(number, blocks)
        request = Request(f"w{number}", tokens, scope or Scope())
        while isinstance(writer := self.cache.writer(request, tier=1), Refusal):
            self.keeper.idle()  # what is being copied down cannot make way
        with writer:
            self.cache.finish(writer.plan)
            for block, slot in zip(writer.blocks(), writer.slots(), strict=True):
                self.host.view(0)[slot] = page_of(tokens[: (int(block) + 1) * BLOCK])
            writer.written(len(tokens))

    def found(self, number: int, scope: Scope | None = None, blocks: int = 4) -> int:
        """Leading tokens of a prompt that are in host memory, every byte of them right."""
        tokens = prompt(number, blocks)
        with self.cache.find(Request(f"f{number}", tokens, scope or Scope())) as found:
            assert set(found.tiers()) <= {1}
            for block, slot in zip(found.blocks(), found.slots(), strict=True):
                page = page_of(tokens[: (int(block) + 1) * BLOCK])
                assert np.array_equal(self.host.view(0)[slot], page), f"wrong bytes in block {block} of {number}"
            return found.end

    def fetched(self, number: int, scope: Scope | None = None, blocks: int = 4) -> int:
        """The same after a prefetch has done what it can."""
        prefetch = self.keeper.prefetch(Request(f"f{number}", prompt(number, blocks), scope or Scope()))
        if isinstance(prefetch, Prefetch):
            self.keeper.idle()
            end = self.found(number, scope, blocks)
            prefetch.close()
            return end
        return -1

    def close(self) -> None:
        self.keeper.close()
