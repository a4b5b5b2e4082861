"""A disk whose groups share their slots: one file, one record that counts per slot, nobody erases another's page."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, LayerGroup, Refusal, Request, Scope, StateError, TierConfig, check
from quire.core.outside.prefetch import Prefetch
from quire.tiers import ArenaTier, PageLayout, TierError
from quire.tiers.disk import DiskFolder, DiskIO, DiskKeeper, DiskLimits, DiskTier, KeeperPace
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.fsck import examine
from quire.tiers.disk.log.frames import HEAD_BYTES, ManifestHead, unpack_head
from quire.tiers.disk.log.read_manifest import NAME
from quire.tiers.disk.pages.slots import slot_bytes
from quire.tiers.disk.ranks.rank import LocalRank

from .rig import BY_HAND
from .stand_ins import Faults, FaultyFiles
from .test_tier import flip
from .world import APART, FINGERPRINT, POOLED, World, changes, page_of, places_of

IO = DiskIO(num_threads=1, deadline=60)
BLOCK, PAGE, HOST, DISK = 4, 64, 18, 26
GROUPS = (LayerGroup("full", page_bytes=PAGE, pool="kv"), LayerGroup("near", page_bytes=PAGE, window=9, pool="kv"))
POOLS = (0, 0)
CHAIN = [(1, -1), (2, 1), (3, 2), (4, -2)]


def written(folder: DiskFolder, *pages: tuple[int, int, int]) -> None:
    for group, slot, node in pages:
        folder.tier.write(group, [slot], [page_of(node, group, POOLED.page_bytes)])


def test_groups_of_a_pool_have_one_file(tmp_path: Path) -> None:
    with POOLED.open(tmp_path, IO) as folder:
        written(folder, (0, 5, 1), (1, 7, 2))
        assert not len(folder.record(changes(nodes=CHAIN, pages=[(0, 5, 1), (1, 7, 2)])).slot)
        one = folder.tier.index_bytes
        folder.manifest.compact()
    model = model_folder(tmp_path, FINGERPRINT)
    assert sorted(path.name for path in model.glob("pages-*")) == ["pages-0"]
    assert (model / "pages-0").stat().st_size == 12 * slot_bytes(96)
    assert one == 12 * 9
    with POOLED.open(tmp_path, IO) as again:
        assert places_of(again.contents) == [(0, 5, 1), (1, 7, 2)]
        World(POOLED, parents=dict(CHAIN), durable={(0, 5): 1, (1, 7): 2}).judge(again)
    assert not examine(model).findings
    flip(model / "pages-0", 7 * slot_bytes(96) + 3)
    assert [finding.text for finding in examine(model).findings if "slot 7 of group 1" in finding.text]


def test_a_slot_that_goes_to_another_group_in_one_record_is_known(tmp_path: Path) -> None:
    with POOLED.open(tmp_path, IO) as folder:
        written(folder, (0, 5, 1))
        folder.record(changes(nodes=CHAIN, pages=[(0, 5, 1)]))
        written(folder, (1, 5, 2))
        assert not len(folder.record(changes(freed=[(0, 5)], pages=[(1, 5, 2)])).slot)
        assert folder.tier.known(0)[5] and not folder.tier.verify(1, [5])
        folder.fence()
        folder.manifest.compact()
    with POOLED.open(tmp_path, IO) as again:
        assert places_of(again.contents) == [(1, 5, 2)]
        World(POOLED, parents=dict(CHAIN), durable={(1, 5): 2}).judge(again)


def test_the_last_record_of_a_slot_counts_whichever_groups_it_is(tmp_path: Path) -> None:
    """The record that freed it for the other is lost, in a damaged frame."""
    with POOLED.open(tmp_path, IO) as folder:
        written(folder, (0, 5, 1))
        folder.record(changes(nodes=CHAIN, pages=[(0, 5, 1)]))
        before = folder.manifest.size
        folder.record(changes(freed=[(0, 5)]))
        written(folder, (1, 5, 2))
        folder.record(changes(pages=[(1, 5, 2)]))
    flip(model_folder(tmp_path, FINGERPRINT) / NAME, before + 60)
    with POOLED.open(tmp_path, IO) as again:
        assert again.report.gaps == 1 and places_of(again.contents) == [(1, 5, 2)]
        World(POOLED, parents=dict(CHAIN), durable={(1, 5): 2}).judge(again)


def test_other_pools_than_before_are_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    sizes, slots = POOLED.page_bytes, POOLED.num_slots
    with POOLED.open(tmp_path, IO) as folder:
        written(folder, (1, 5, 2))
        folder.record(changes(nodes=CHAIN, pages=[(1, 5, 2)]))
    fact = r"its groups have the pools \[0, 0\], and \[0, 1\] were asked for; share the same pools as before"
    with pytest.raises(StateError, match=fact):
        DiskFolder(tmp_path, FINGERPRINT, sizes, slots, io=IO)
    with POOLED.open(tmp_path, IO) as again:
        assert places_of(again.contents) == [(1, 5, 2)]
    DiskFolder(tmp_path / "apart", FINGERPRINT, sizes, slots, io=IO).close()
    with pytest.raises(StateError, match=r"its groups have the pools \[0, 1\], and \[0, 0\] were asked for"):
        POOLED.open(tmp_path / "apart", IO)


def test_who_shares_nothing_writes_what_was_written_before() -> None:
    apart = ManifestHead(FINGERPRINT, APART.page_bytes)
    assert apart.pack()[8] == 1 and not any(apart.pack()[72 : HEAD_BYTES - 8])
    pooled = ManifestHead(FINGERPRINT, (96, 96, 32, 96), (7, 7, 2, 7))
    assert pooled.pack()[8] == 2 and unpack_head(pooled.pack()) == pooled and pooled.pool_of == (0, 0, 2, 0)
    assert unpack_head(apart.pack()) == apart and apart.pool_of == (0, 1) and not apart.pooled
    with pytest.raises(InputError, match="pools of 1 groups, pages of 2"):
        ManifestHead(FINGERPRINT, (96, 96), (0,))


def test_the_disk_is_asked_for_once_per_pool(tmp_path: Path) -> None:
    room = DiskLimits(disk_bytes=12 * (slot_bytes(96) + 256), pool_of=POOLS)
    DiskFolder(tmp_path, FINGERPRINT, (96, 96), (12, 12), io=IO, limits=room).close()
    with pytest.raises(InputError, match="24 pages on disk: slots and manifest take"):
        DiskFolder(tmp_path / "b", FINGERPRINT, (96, 96), (12, 12), io=IO, limits=DiskLimits(room.disk_bytes))


def test_a_slot_that_hangs_for_one_group_does_so_for_the_other(tmp_path: Path) -> None:
    faults = Faults()
    io = DiskIO(num_threads=2, depth=4, deadline=0.05)
    tier = DiskTier("disk", (4, 4), (96, 96), tmp_path, io=io, files=FaultyFiles(faults), pool_of=POOLS)
    faults.gate = Event()
    with pytest.raises(TierError, match="did not answer"):
        tier.write(0, [2], [page_of(1, 0, POOLED.page_bytes)])
    with pytest.raises(TierError, match="an earlier write to it hangs in the disk"):
        tier.write(1, [2], [page_of(1, 1, POOLED.page_bytes)])
    tier._io = IO
    faults.gate.set()
    tier.close()


# -- with a cache ------------------------------------------------------------------------------------------------------


def config_of(groups: tuple[LayerGroup, ...] = GROUPS) -> CacheConfig:
    tiers = (TierConfig("device", 0), TierConfig("host", HOST), TierConfig("disk", DISK, slow=True))
    return CacheConfig(tiers, BLOCK, groups, max_length=64, lasting=True)


def bytes_of(tokens: np.ndarray, group: int) -> np.ndarray:
    """Of a block's page, as if a model had computed them from all tokens up to there."""
    return np.random.default_rng([group, *tokens.tolist()]).integers(0, 256, PAGE, np.uint8)


def prompt(number: int, blocks: int = 4) -> np.ndarray:
    return (np.arange(blocks * BLOCK) + 1000 * number).astype(np.int32)


class KeptPool:
    """Two groups in one pool of a cache, host memory, folder and keeper."""

    def __init__(self, folder: Path, pace: KeeperPace = BY_HAND, ranks: int = 0) -> None:
        self.cache = Cache(config_of())
        self.device, self.host = (ArenaTier(name, (n, n), (PAGE, PAGE), POOLS) for name, n in (("d", 0), ("h", HOST)))
        limits, tiers, layouts = DiskLimits(pool_of=POOLS), [self.device, self.host], [PageLayout(PAGE)] * 2
        parts = [
            LocalRank(folder, FINGERPRINT, rank, tiers, layouts, (DISK, DISK), block_size=BLOCK, io=IO)
            for rank in range(ranks)
        ]
        sizes = (PAGE * max(1, ranks),) * 2
        self.folder = DiskFolder(folder, FINGERPRINT, sizes, (DISK, DISK), io=IO, limits=limits, ranks=parts)
        self.keeper = DiskKeeper(self.cache, self.folder, [] if ranks else tiers, layouts, pace=pace)

    def compute(self, number: int, scope: Scope, blocks: int = 4) -> None:
        tokens = prompt(number, blocks)
        request = Request(f"w{number}", tokens, scope)
        while isinstance(writer := self.cache.writer(request, tier=1), Refusal):
            self.keeper.idle()
        with writer:
            self.cache.finish(writer.plan)
            for group in range(2):
                for block, slot in zip(writer.blocks(group), writer.slots(group), strict=True):
                    self.host.view(group)[slot] = bytes_of(tokens[: (int(block) + 1) * BLOCK], group)
            writer.written(len(tokens))

    def fetched(self, number: int, scope: Scope, blocks: int = 4) -> int:
        """Leading tokens that a prefetch brings, every byte of both groups right."""
        tokens = prompt(number, blocks)
        request = Request(f"f{number}", tokens, scope)
        prefetch = self.keeper.prefetch(request)
        self.keeper.idle()
        with self.cache.find(request) as found:
            for group in range(2):
                for block, slot in zip(found.blocks(group), found.slots(group), strict=True):
                    page = bytes_of(tokens[: (int(block) + 1) * BLOCK], group)
                    assert np.array_equal(self.host.view(group)[slot], page), f"wrong bytes: {number} {group} {block}"
            end = found.end
        if isinstance(prefetch, Prefetch):
            prefetch.close()
        return end

    def close(self) -> None:
        check(self.cache)
        self.keeper.close()


@pytest.mark.parametrize("ranks", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_pages_of_both_groups_come_and_go_through_the_same_slots(seed: int, ranks: int, tmp_path: Path) -> None:
    """Random prompts of some tenants on a small disk: computed, copied down, brought up, forgotten; some restarts."""
    dice = np.random.default_rng(seed)
    scopes = [Scope(salt=f"tenant {nth}") for nth in range(3)]
    owners: set[tuple[int, int]] = set()  # group, slot of the disk, ever
    brought = 0
    for _ in range(3):
        kept = KeptPool(tmp_path, ranks=ranks)
        for _ in range(14):
            number, blocks = int(dice.integers(9)), int(dice.integers(2, 5))
            what = dice.random()
            if what < 0.45:
                kept.compute(number, scopes[number % 3], blocks)
                kept.keeper.flush()
            elif what < 0.9:
                brought += kept.fetched(number, scopes[number % 3], blocks) > 0
            else:
                kept.keeper.forget(scopes[number % 3])
                assert kept.fetched(number, scopes[number % 3]) == 0
            check(kept.cache)
        kept.close()
        with reopened(tmp_path, ranks) as folder:
            owners |= {place[:2] for place in places_of(folder.contents)}
        assert not examine(kept.folder.folder).findings
    assert brought and {slot for group, slot in owners if group == 0} & {slot for group, slot in owners if group == 1}


def reopened(folder: Path, ranks: int) -> DiskFolder:
    """The folder once more, to look at."""
    tiers = [ArenaTier("h", (1, 1), (PAGE, PAGE), POOLS)]
    layouts = [PageLayout(PAGE)] * 2
    parts = [
        LocalRank(folder, FINGERPRINT, rank, tiers, layouts, (DISK, DISK), block_size=BLOCK) for rank in range(ranks)
    ]
    limits = DiskLimits(pool_of=POOLS)
    return DiskFolder(folder, FINGERPRINT, (PAGE, PAGE), (DISK, DISK), io=IO, limits=limits, ranks=parts)


def test_what_the_scrubber_finds_is_lost_whichever_groups_it_is(tmp_path: Path) -> None:
    scope = Scope(salt="one")
    kept = KeptPool(tmp_path)
    kept.compute(1, scope)
    kept.keeper.flush()
    kept.close()
    with reopened(tmp_path, 0) as folder:
        slot = next(slot for group, slot, _ in places_of(folder.contents) if group == 1)
    flip(model_folder(tmp_path, FINGERPRINT) / "pages-0", slot * slot_bytes(PAGE) + 3)
    again = KeptPool(tmp_path, KeeperPace(look_seconds=600, scrub_bytes_per_second=1e9))
    restored = again.keeper.report().restored
    while not again.keeper.report().scrubbed_bad:
        again.keeper.idle()
    assert again.cache.usage(2).empty == DISK - restored + 1
    again.fetched(1, scope)
    again.close()


def test_a_folder_and_tiers_must_share_what_the_cache_shares(tmp_path: Path) -> None:
    device, host = (ArenaTier(name, (n, n), (PAGE, PAGE), POOLS) for name, n in (("d", 0), ("h", HOST)))
    sizes, slots, layouts = (PAGE, PAGE), (DISK, DISK), [PageLayout(PAGE)] * 2
    with DiskFolder(tmp_path / "a", FINGERPRINT, sizes, slots, io=IO) as apart:
        fact = (
            r"the cache has the pools \[0, 0\], and in the folder no group shares its slots; give DiskLimits\(pool_of="
        )
        with pytest.raises(InputError, match=fact):
            DiskKeeper(Cache(config_of()), apart, [device, host], layouts)
        own = Cache(config_of((LayerGroup("full", page_bytes=PAGE), LayerGroup("near", page_bytes=PAGE, window=9))))
        with pytest.raises(InputError, match="tier 'd', groups 0 and 1: they have the same slots here, and pools of"):
            DiskKeeper(own, apart, [device, host], layouts)
    with (
        DiskFolder(tmp_path / "b", FINGERPRINT, sizes, slots, io=IO, limits=DiskLimits(pool_of=POOLS)) as pooled,
        pytest.raises(InputError, match="tier 'disk', groups 0 and 1: they have the same slots here"),
    ):
        DiskKeeper(own, pooled, [device, host], layouts)
