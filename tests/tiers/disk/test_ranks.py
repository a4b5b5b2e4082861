"""A disk of two ranks: each has its part of every page in files of its own, one process has the manifest."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, LayerGroup, Request, Scope, StateError, TierConfig, check
from quire.core.outside.prefetch import Prefetch
from quire.core.state.claim import Refusal
from quire.tiers import ArenaTier, Bytes, PageLayout
from quire.tiers.disk import DiskFolder, DiskKeeper, LocalRank
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.fsck import examine
from quire.tiers.disk.ranks.ranked_tier import RankedTier

from .rank_worker import PART, OneRank, RemoteRank
from .rig import BLOCK, BY_HAND, DISK, FINGERPRINT, HOST, prompt
from .test_tier import flip

WORLD = 2
SLOT = 4096


def part_of(tokens: np.ndarray, rank: int) -> Bytes:
    """What a rank has computed from all tokens up to there."""
    return np.random.default_rng([rank, *tokens.tolist()]).integers(0, 256, PART, np.uint8)


class Ranked:
    """The scheduler's process: cache, manifest and keeper; and its ranks, here or in processes of their own."""

    def __init__(self, folder: Path, apart: bool = False) -> None:
        tiers = (TierConfig("device", 0), TierConfig("host", HOST), TierConfig("disk", DISK, slow=True))
        groups = (LayerGroup("full", page_bytes=WORLD * PART),)
        self.cache = Cache(CacheConfig(tiers, BLOCK, groups, max_length=256, lasting=True))
        self.ranks: Sequence[OneRank | RemoteRank] = [
            RemoteRank(folder, rank) if apart else OneRank(folder, rank) for rank in range(WORLD)
        ]
        self.folder = DiskFolder(folder, FINGERPRINT, (WORLD * PART,), (DISK,), ranks=[r.disk for r in self.ranks])
        self.keeper = DiskKeeper(self.cache, self.folder, [], [PageLayout(WORLD * PART)], pace=BY_HAND)

    def compute(self, number: int, scope: Scope | None = None) -> None:
        """The pages of a prompt come into the host memory of every rank."""
        tokens = prompt(number)
        writer = self.cache.writer(Request(f"w{number}", tokens, scope or Scope()), tier=1)
        assert not isinstance(writer, Refusal)
        with writer:
            self.cache.finish(writer.plan)
            for block, slot in zip(writer.blocks(), writer.slots(), strict=True):
                for rank, memory in enumerate(self.ranks):
                    memory.put(int(slot), part_of(tokens[: (int(block) + 1) * BLOCK], rank))
            writer.written(len(tokens))

    def fetched(self, number: int, scope: Scope | None = None) -> int:
        """Leading tokens that a prefetch brings, every byte of every rank right."""
        tokens = prompt(number)
        request = Request(f"f{number}", tokens, scope or Scope())
        prefetch = self.keeper.prefetch(request)
        assert isinstance(prefetch, Prefetch)
        self.keeper.idle()
        with prefetch, self.cache.find(request) as found:
            for block, slot in zip(found.blocks(), found.slots(), strict=True):
                for rank, memory in enumerate(self.ranks):
                    page = part_of(tokens[: (int(block) + 1) * BLOCK], rank)
                    assert np.array_equal(memory.get(int(slot)), page), f"wrong bytes of rank {rank} in block {block}"
            return found.end

    def close(self) -> None:
        self.keeper.close()


@contextmanager
def opened(folder: Path, apart: bool = False) -> Iterator[Ranked]:
    ranked = Ranked(folder, apart)
    try:
        yield ranked
        check(ranked.cache)
    finally:
        with suppress(StateError):  # of ranks that were killed
            ranked.close()
        for rank in ranked.ranks:
            if isinstance(rank, RemoteRank):
                rank.end()


def filled(folder: Path, apart: bool = False) -> None:
    with opened(folder, apart) as ranked:
        ranked.compute(1)
        ranked.compute(2, Scope(salt="tenant"))
        assert ranked.keeper.flush() and ranked.keeper.report().copied_down == 8


def pages_of(folder: Path, rank: int) -> Path:
    return model_folder(folder, FINGERPRINT) / f"rank-{rank}" / "pages-0"


@pytest.mark.parametrize("apart", [False, True], ids=["one process", "a process each"])
def test_new_processes_find_what_the_last_ones_computed(tmp_path: Path, apart: bool) -> None:
    filled(tmp_path, apart)
    assert pages_of(tmp_path, 0).read_bytes() != pages_of(tmp_path, 1).read_bytes()
    with opened(tmp_path, apart) as ranked:
        assert ranked.keeper.report().restored == 8 and ranked.keeper.report().index_bytes > 0
        assert ranked.fetched(1) == 16 and ranked.fetched(2, Scope(salt="tenant")) == 16 and ranked.fetched(2) == 0
        counts = ranked.folder.tier.counts()
        assert (counts.pages_read, counts.failed) == (8, 0)
    assert not examine(model_folder(tmp_path, FINGERPRINT)).findings


@pytest.mark.parametrize("rank", range(WORLD))
def test_a_page_counts_only_if_every_part_is_sound(tmp_path: Path, rank: int) -> None:
    filled(tmp_path)
    flip(pages_of(tmp_path, rank), 2 * SLOT + 5)
    with opened(tmp_path) as ranked:
        ends = [ranked.fetched(1), ranked.fetched(2, Scope(salt="tenant"))]
        assert sorted(ends) in ([0, 16], [4, 16], [8, 16], [12, 16]) and ranked.keeper.report().failed >= 1
    with opened(tmp_path) as again:
        assert again.keeper.report().restored == 7, "a bad page is out of the manifest"


def test_parts_of_different_times_are_no_page(tmp_path: Path) -> None:
    """A rank whose disk has lost its last writes: each part is sound by itself."""
    filled(tmp_path)
    shutil.copy(pages_of(tmp_path, 1), tmp_path / "old")
    with opened(tmp_path) as ranked:
        ranked.cache.clear()
        ranked.compute(3)
        assert ranked.keeper.flush()
    shutil.copy(tmp_path / "old", pages_of(tmp_path, 1))
    with opened(tmp_path) as again:
        assert again.keeper.report().restored == 4 and again.fetched(3) == 0
        check(again.cache)


def test_what_no_fence_covered_is_looked_at_on_all_ranks(tmp_path: Path) -> None:
    filled(tmp_path)
    place = model_folder(tmp_path, FINGERPRINT)
    with opened(tmp_path) as ranked:
        ranked.compute(3)
        ranked.keeper.run(ranked.cache.copy_down(8)).result()
        shutil.copytree(place, tmp_path / "cut" / place.name)  # as the files were when the process was killed
    copied = pages_of(tmp_path / "cut", 1)
    raw = bytearray(copied.read_bytes())
    raw[8 * SLOT : 9 * SLOT] = bytes(SLOT)
    copied.write_bytes(bytes(raw))
    with opened(tmp_path / "cut") as again:
        assert again.folder.report.unfenced == 3 and again.folder.report.unwritten == 1
        assert again.keeper.report().restored == 11


def test_a_rank_that_dies_costs_its_pages_and_nothing_else(tmp_path: Path) -> None:
    filled(tmp_path)
    with opened(tmp_path, apart=True) as ranked:
        assert ranked.fetched(1) == 16
        dead = ranked.ranks[1]
        assert isinstance(dead, RemoteRank)
        ranked.compute(3)
        dead.process.kill()
        dead.process.wait()
        assert not ranked.keeper.flush()
        request = Request("f", prompt(2), Scope(salt="tenant"))
        prefetch = ranked.keeper.prefetch(request)
        assert isinstance(prefetch, Prefetch)
        ranked.keeper.idle()
        with prefetch, ranked.cache.find(request) as found:
            assert found.end == 0
        report = ranked.keeper.report()
        assert report.broken.startswith("rank 1: ")
        assert (report.failed, report.given_up) == (0, 8), "nobody knows that a page is bad"
    with opened(tmp_path) as again:
        assert again.fetched(1) == 16 and again.fetched(3) == 0, "what was durable is"
        assert again.fetched(2, Scope(salt="tenant")) == 16


def test_fsck_reads_every_part(tmp_path: Path) -> None:
    filled(tmp_path)
    place = model_folder(tmp_path, FINGERPRINT)
    flip(pages_of(tmp_path, 1), 3 * SLOT)
    report = examine(place)
    assert [finding.text for finding in report.findings] == [
        "slot 3 of group 0: its bytes do not match their checksum"
    ] and report.damaged
    pages_of(tmp_path, 0).chmod(0o644)
    assert examine(place, repair=True).num_pages == 7
    assert not examine(place).findings
    with opened(tmp_path) as ranked:
        assert ranked.keeper.report().restored == 7


def test_forgotten_pages_are_overwritten_on_every_rank(tmp_path: Path) -> None:
    filled(tmp_path)
    with opened(tmp_path) as ranked:
        assert ranked.keeper.forget(Scope(salt="tenant")) == 4
    for rank in range(WORLD):
        raw = pages_of(tmp_path, rank).read_bytes()
        for block in range(4):
            assert part_of(prompt(2)[: (block + 1) * BLOCK], rank).tobytes() not in raw
            assert part_of(prompt(1)[: (block + 1) * BLOCK], rank).tobytes() in raw


def test_ranks_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    def rank(number: int, size: int) -> LocalRank:
        memory = ArenaTier("host", (2,), (size,))
        return LocalRank(tmp_path, FINGERPRINT, number, [memory], [PageLayout(size)], (4,), block_size=BLOCK)

    one, other = rank(0, 64), rank(1, 32)
    with pytest.raises(InputError, match="ranks of equal parts"):
        DiskFolder(tmp_path, FINGERPRINT, (96,), (4,), ranks=[one, other])
    with pytest.raises(StateError, match="in the memory of its ranks"):
        RankedTier("disk", (4,), [one]).read(0, [0], [np.zeros((1, 64), np.uint8)])
    with pytest.raises(InputError, match="pages of \\[64\\] bytes, and \\[96\\]"):
        DiskFolder(tmp_path, FINGERPRINT, (96,), (4,), ranks=[one])
    with pytest.raises(StateError, match="has it open"):
        rank(1, 32)
    one.close()
    other.close()
    with pytest.raises(InputError, match="no memory above"):
        LocalRank(tmp_path, FINGERPRINT, 0, [], [PageLayout(64)], (4,), block_size=BLOCK)


def test_a_folder_that_cannot_be_synced_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def rank() -> LocalRank:
        tiers, layouts = [ArenaTier("host", (4,), (64,))], [PageLayout(64)]
        return LocalRank(tmp_path, FINGERPRINT, 0, tiers, layouts, (4,), block_size=BLOCK)

    with monkeypatch.context() as broken, pytest.raises(StateError, match=r"rank-0.*EIO.*look at the disk"):
        broken.setattr(os, "fsync", fails)
        rank()
    rank().close()  # nothing was left open or locked
