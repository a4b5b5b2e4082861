"""What is forgotten is off the disk when `forget` returns, on a full disk too; else it says so, and does it later."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from quire import Scope, check
from quire.core.records.lasting import LastingPages
from quire.tiers.disk import DiskIO
from quire.tiers.disk.fsck import examine
from quire.tiers.disk.log.manifest import NEW_NAME
from quire.tiers.disk.log.read_manifest import NAME

from .rig import DISK, Kept, page_of, prompt
from .stand_ins import FullFiles, MemoryFiles
from .test_folder import CHAIN, PAGES, opened, stored
from .world import APART, POOLED, Shape, World, changes, places_of, tokens_of
from .world import page_of as page_of_node

MINE, THEIRS = Scope(salt="mine"), Scope(salt="theirs")


def on_disk(kept: Kept, number: int) -> tuple[bool, bool]:
    """Whether tokens of a prompt are in the manifest, and bytes of its first page among the pages."""
    model = kept.folder.folder
    tokens = prompt(number)[:4]
    page = page_of(tokens).tobytes()
    return tokens.tobytes() in (model / NAME).read_bytes(), page in (model / "pages-0").read_bytes()


def both(folder: Path, files: FullFiles) -> Kept:
    Kept(folder).close()  # so that the log is open under its own name
    kept = Kept(folder, files=files)
    kept.compute(1, MINE)
    kept.compute(2, THEIRS)
    assert kept.keeper.flush() and on_disk(kept, 1) == (True, True)
    return kept


@pytest.mark.parametrize("full", [(NEW_NAME,), (NAME, NEW_NAME)])
def test_a_full_disk_forgets_in_place(tmp_path: Path, full: tuple[str, ...]) -> None:
    """With room for a record and none for a compacted log; and with no room at all."""
    files = FullFiles()
    kept = both(tmp_path / "disk", files)
    files.full |= {*full}
    assert kept.keeper.forget(MINE) == 4
    assert on_disk(kept, 1) == (False, False) and on_disk(kept, 2) == (True, True)
    shutil.copytree(tmp_path / "disk", tmp_path / "killed")
    killed = Kept(tmp_path / "killed")
    assert (killed.fetched(1, MINE), killed.fetched(2, THEIRS)) == (0, 16)
    killed.close()
    files.full.clear()
    kept.compute(1, MINE)
    kept.compute(3)
    assert kept.keeper.flush() and not kept.keeper.report().broken and not kept.keeper.report().stalled
    check(kept.cache)
    kept.close()
    assert not examine(kept.folder.folder).findings
    again = Kept(tmp_path / "disk")
    assert (again.fetched(1, MINE), again.fetched(2, THEIRS), again.fetched(3)) == (16, 16, 16)
    again.close()


def test_what_is_still_to_be_recorded_is_told_and_erased_when_there_is_room(tmp_path: Path) -> None:
    files = FullFiles()
    kept = both(tmp_path, files)
    kept.compute(3, MINE)
    files.full.add(NAME)
    assert not kept.keeper.flush()  # its bytes are there, and its record waits
    with pytest.raises(
        OSError, match=r"forgetting a scope: it is out of the cache, and not yet off the disk: .*ENOSPC"
    ):
        kept.keeper.forget(MINE)
    assert on_disk(kept, 1) == on_disk(kept, 3) == (False, False), "what could be done is done"
    files.full.clear()
    kept.compute(4)
    assert kept.keeper.run(kept.cache.copy_down(8)).result() == []
    assert on_disk(kept, 3) == (False, False) and on_disk(kept, 4) == (True, True)
    assert kept.keeper.flush() and on_disk(kept, 4) == (True, True), "its slots are somebody else's now"
    kept.close()
    again = Kept(tmp_path)
    assert [again.fetched(1, MINE), again.fetched(3, MINE), again.fetched(4)] == [0, 0, 16]
    again.close()


def test_a_slot_is_erased_once(tmp_path: Path) -> None:
    """Every slot of the disk is taken again after a scope was forgotten: new pages there stay."""
    kept = Kept(tmp_path)
    kept.compute(1, MINE)
    assert kept.keeper.flush() and kept.keeper.forget(MINE) == 4
    others = range(2, 2 + DISK // 4)
    for number in others:
        kept.compute(number)
        assert kept.keeper.flush()
    kept.close()
    again = Kept(tmp_path)
    assert [again.fetched(number) for number in others] == [16] * len(others)
    again.close()


def test_a_fence_without_room_breaks_nothing(tmp_path: Path) -> None:
    files = FullFiles()
    kept = both(tmp_path, files)
    files.full.add(NAME)
    with pytest.raises(OSError, match="No space left"):
        kept.keeper.fence()
    assert "ENOSPC" in kept.keeper.report().stalled and not kept.keeper.report().broken
    files.full.clear()
    kept.keeper.fence()
    assert not kept.keeper.report().stalled
    kept.close()


def test_a_block_that_was_cleared_is_recorded_when_it_is_told_again(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
        gone = changes(pages=PAGES).pages
        folder.manifest.clear(gone)
        folder.tier.write(0, [0], [page_of_node(3, 0)])
        unknown = changes(pages=[(0, 0, 3)])
        assert len(folder.record(unknown).slot) == 1, "nothing in the log says what its block is"
        assert not len(folder.record(changes(nodes=CHAIN[:3], pages=[(0, 0, 3)])).slot)
    with opened(tmp_path) as again:
        assert places_of(again.contents) == [(0, 0, 3)] and not again.report.orphans
        assert again.contents.nodes.tokens.tolist() == [token for node in (1, 2, 3) for token in tokens_of(node)]


@pytest.mark.parametrize("shape", [APART, POOLED])
@pytest.mark.parametrize("seed", range(12))
def test_a_log_cleared_in_place_says_the_same_of_the_rest(seed: int, shape: Shape) -> None:
    dice = np.random.default_rng(seed)
    files, world = MemoryFiles(), World(shape)
    folder = shape.open("folder", DiskIO(num_threads=1), files)
    for _ in range(2):
        for _ in range(15):
            world.step(folder, dice)
        free = [place for place in world.pages if dice.random() < 0.3]
        world.drop(free)
        group, slot = np.array(free, np.int32).reshape(-1, 2).T
        before = folder.manifest.size
        folder.manifest.clear(LastingPages(group, slot, np.empty(0, np.int64)))
        assert folder.manifest.size == before
    world.fence(folder)
    folder.close()
    again = shape.open("folder", DiskIO(num_threads=1), files)
    assert not again.report.gaps and not again.report.orphans
    assert sorted(places_of(again.contents)) == sorted((*place, node) for place, node in world.pages.items())
    world.judge(again)
    again.close()
