"""Opening a folder: on a full disk, with files that are gone or were cut, before and while it is open."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from quire import Scope, StateError, check
from quire.tiers import Bytes
from quire.tiers.disk import DiskLimits, OpenReport
from quire.tiers.disk.calls.files import REAL_FILES, File, RealFiles
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.fsck import examine
from quire.tiers.disk.log.frames import ManifestHead
from quire.tiers.disk.log.manifest import NEW_NAME, DamagedLog
from quire.tiers.disk.log.mark import MARK_NAME, DurableMark, read_mark
from quire.tiers.disk.log.read_manifest import NAME
from quire.tiers.disk.space import check_space

from .rig import FINGERPRINT, Kept
from .stand_ins import Faults, FaultyFile, FaultyFiles, FullFiles
from .test_folder import CHAIN, PAGES, opened, stored
from .test_ranks import filled
from .test_ranks import opened as opened_on_ranks
from .test_tier import flip
from .world import FINGERPRINT as NODES_PRINT
from .world import changes, places_of


class NoRoom(FullFiles):
    """A disk without one free byte, on which files of these names may not grow."""

    def free_bytes(self, folder: Path) -> int:
        return 0


def full(*names: str) -> NoRoom:
    return NoRoom(NAME, NEW_NAME, MARK_NAME, *names)


def test_a_clean_folder_opens_on_a_full_disk(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
    with opened(tmp_path, files=NoRoom()) as again:
        assert places_of(again.contents) == PAGES and again.report == OpenReport()


def test_so_does_one_whose_pages_are_on_ranks(tmp_path: Path) -> None:
    filled(tmp_path)
    with opened_on_ranks(tmp_path) as full_one:  # which has no other files than its own manifest
        page_bytes, slots = full_one.folder.tier.info().page_bytes, full_one.folder.tier.info().num_slots
        head = ManifestHead(FINGERPRINT, page_bytes)
        check_space(NoRoom(), full_one.folder.folder, head, slots, DiskLimits())
        with pytest.raises(StateError, match="more would be needed"):
            check_space(NoRoom(), full_one.folder.folder, head, [4 * slots[0]], DiskLimits())


def test_so_does_one_with_records_to_tidy_up(tmp_path: Path) -> None:
    """They are tidied up where they lie: a block whose number a new one may have is not found again."""
    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
        folder.record(changes(freed=[(0, 7)]))
    again = opened(tmp_path, files=full())
    assert places_of(again.contents) == PAGES[:3] and again.contents.nodes.number.tolist() == [1, 2, 3]
    with pytest.raises(StateError, match="ENOSPC"):
        again.close()  # a fence takes a record more
    with opened(tmp_path) as last:
        assert places_of(last.contents) == PAGES[:3] and last.contents.last_number == 3


def test_so_does_one_whose_process_was_killed(tmp_path: Path) -> None:
    with opened(tmp_path / "disk") as folder:
        stored(folder, CHAIN[:2], PAGES[:2])
        folder.fence()
        stored(folder, CHAIN[2:], PAGES[2:])
        shutil.copytree(tmp_path / "disk", tmp_path / "killed")
    model = model_folder(tmp_path / "killed", NODES_PRINT)
    flip(model / "pages-1", 9)  # a page that no fence covered, and that was not written
    with (model / NAME).open("ab") as log:
        log.write(b"half a record")
    again = opened(tmp_path / "killed", files=full())
    assert (again.report.unfinished, again.report.unfenced, again.report.unwritten) == (13, 1, 1)
    kept = [PAGES[0], PAGES[1], PAGES[3]]
    assert places_of(again.contents) == kept
    with pytest.raises(StateError, match="ENOSPC"):
        again.close()
    assert not examine(model).damaged
    with opened(tmp_path / "killed") as last:
        assert places_of(last.contents) == kept and not last.report.gaps


def test_more_slots_than_there_is_room_for_are_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"more would be needed, and 0 MB are free"):
        opened(tmp_path, files=NoRoom())


@pytest.mark.parametrize("left", [None, 0, 4096 * 4])
def test_page_files_that_are_gone_or_cut_are_seen(
    tmp_path: Path, left: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
    pages = model_folder(tmp_path, NODES_PRINT) / "pages-0"
    pages.unlink() if left is None else os.truncate(pages, left)
    with caplog.at_level(logging.WARNING, "quire.tiers"), opened(tmp_path) as again:
        kept = [PAGES[1], PAGES[2]] if left else [PAGES[2]]
        assert again.report == OpenReport(missing=4 - len(kept)) and places_of(again.contents) == kept
    assert "not all of it is there any more" in caplog.text
    with opened(tmp_path) as last:
        assert last.report == OpenReport() and places_of(last.contents) == kept


@pytest.mark.parametrize("fences", [3, 4])
def test_a_manifest_that_is_gone_is_seen_and_the_next_one_is_sound(tmp_path: Path, fences: int) -> None:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
        for _ in range(fences):  # the last mark is in either place
            folder.fence()
    model = model_folder(tmp_path, NODES_PRINT)
    (model / NAME).unlink()
    assert examine(model).damaged
    with opened(tmp_path) as again:
        assert again.report.gaps == 1 and not places_of(again.contents)
        shutil.copytree(model, tmp_path / "killed" / model.name)
        assert not examine(tmp_path / "killed" / model.name).damaged, "nothing of the old log is waited for"
        stored(again, CHAIN[:1], PAGES[:1])
    assert not examine(model).findings
    with opened(tmp_path) as last:
        assert last.report == OpenReport() and places_of(last.contents) == PAGES[:1]


@pytest.mark.parametrize("way", ["cut", "flipped"])
def test_a_log_that_was_damaged_while_open_is_not_written_anew(tmp_path: Path, way: str) -> None:
    kept = Kept(tmp_path)
    kept.compute(1, Scope(salt="mine"))
    kept.compute(2)
    assert kept.keeper.flush()
    log = model_folder(tmp_path, FINGERPRINT) / NAME
    damaged = log.stat().st_size - 100
    os.truncate(log, damaged) if way == "cut" else flip(log, damaged)
    with pytest.raises(DamagedLog, match="changed while it was open"):
        kept.folder.manifest.compact()
    with pytest.raises(OSError, match="not yet off the disk"):
        kept.keeper.forget(Scope(salt="mine"))
    assert "changed while it was open" in kept.keeper.report().broken
    assert not kept.keeper.flush() and kept.found(2) == 16
    check(kept.cache)
    with pytest.raises(StateError, match="the last fence failed") if way == "cut" else nullcontext():
        kept.close()
    assert examine(log.parent).damaged


def test_a_rename_that_may_not_be_on_the_disk_makes_nothing_durable(tmp_path: Path) -> None:
    """The process goes on with the file that has the name, and says that no fence holds."""

    class Forgetful(FaultyFiles):
        fails = False

        def sync_folder(self, folder: Path) -> None:
            if self.fails:
                raise OSError(errno.EIO, "sync of a folder")
            super().sync_folder(folder)

    files = Forgetful(Faults())
    folder = opened(tmp_path, files=files)
    stored(folder, CHAIN, PAGES)
    folder.fence()
    folder.record(changes(freed=[(0, 7)]))
    folder.fence()
    files.fails = True
    with pytest.raises(OSError, match="sync of a folder"):
        folder.manifest.compact()
    files.fails = False
    stored(folder, [(5, 1)], [(0, 8, 5)])
    with pytest.raises(OSError, match="sync of a folder"):
        folder.fence()
    with pytest.raises(StateError, match="the last fence failed"):
        folder.close()
    with opened(tmp_path) as again:
        assert places_of(again.contents) == [*PAGES[:3], (0, 8, 5)], "what was appended went where it is read"


class TornFile(FaultyFile):
    """Writes the beginning of what it is given, and then there is no room."""

    torn = False

    def write(self, offset: int, parts: Sequence[Bytes]) -> int:
        if not self.torn:
            return super().write(offset, parts)
        super().write(offset, [parts[0][:80]])
        raise OSError(errno.ENOSPC, "No space left on device")


class TornFiles(FaultyFiles):
    log: TornFile

    def open(self, path: Path, create: bool = False) -> File:
        file = TornFile(path.name, RealFiles.open(self, path, create), self.faults)
        if path.name == NAME:
            self.log = file
        return file


def test_what_a_failed_append_has_written_does_not_show_again(tmp_path: Path) -> None:
    opened(tmp_path).close()
    files = TornFiles(Faults())
    with opened(tmp_path, files=files) as folder:
        stored(folder, CHAIN[:2], PAGES[:2])
        end = folder.manifest.size
        files.log.torn = True
        with pytest.raises(OSError, match="No space left"):
            folder.record(changes(nodes=CHAIN[2:], pages=[]))
        assert (folder.folder / NAME).stat().st_size == end == folder.manifest.size
        files.log.torn = False
    with opened(tmp_path) as again:
        assert places_of(again.contents) == PAGES[:2] and again.report == OpenReport()


def test_the_mark_only_goes_up(tmp_path: Path) -> None:
    mark = DurableMark(REAL_FILES, tmp_path, 1, None)
    for number in (5, 7, 6, 7):  # two fences at once, and a compaction, may end in another order
        mark.write(number)
    raw = bytearray((tmp_path / MARK_NAME).read_bytes())
    raw[16] ^= 1  # one place is damaged: the other says the same
    (tmp_path / MARK_NAME).write_bytes(raw)
    assert read_mark(REAL_FILES, tmp_path, 1).number == 7
    mark.close()


def test_a_block_told_again_behind_a_record_that_names_it_keeps_its_page(tmp_path: Path) -> None:
    """Compaction leaves the log as it is: the next one might begin between the two records."""
    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
        folder.record(changes(freed=[(0, 7)]))
        folder.fence()
        stored(folder, [], [(0, 8, 4)])  # nothing else rests on block 4
        stored(folder, [CHAIN[3]], [(1, 2, 4)])
        assert folder.manifest.compact() == 0
        folder.fence()
        assert folder.manifest.compact() > 0
    with opened(tmp_path) as again:
        assert places_of(again.contents) == [*PAGES[:3], (0, 8, 4), (1, 2, 4)] and again.report == OpenReport()
