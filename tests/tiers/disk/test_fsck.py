"""fsck and the scrubber: what is damaged is named, and what is not is left alone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from quire import InputError
from quire.cli.tiers import fsck_command
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.fsck import examine, model_folders
from quire.tiers.disk.keep.scrub import Scrubber
from quire.tiers.disk.log.manifest import NEW_NAME
from quire.tiers.disk.log.read_manifest import NAME
from quire.tiers.disk.pages.slots import Failed
from quire.tiers.process import LOCK_NAME

from ...waits import until
from .test_folder import CHAIN, PAGES, opened, stored
from .test_tier import flip
from .world import FINGERPRINT, changes, page_of, places_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
    return model_folder(tmp_path, FINGERPRINT)


def test_a_sound_folder(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fsck_command.main([str(model.parent)]) == 0
    told = capsys.readouterr().out
    assert "4 pages of 4 blocks" in told and "every page is as it was written" in told
    assert fsck_command.main([str(model), "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["models"]
    assert (report["pages"], report["damaged"], report["findings"]) == (4, False, [])


def test_every_bad_page_is_named_and_repaired(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(model / "pages-0", 2 * 4096 + 50)
    os.truncate(model / "pages-1", 4999)
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.name != "lock"}
    assert fsck_command.main([str(model.parent)]) == 4
    told = capsys.readouterr().out
    assert "damage  slot 2 of group 0: its bytes do not match their checksum" in told
    assert "damage  slot 0 of group 1: the file ends before its page does" in told
    assert before == {path.name: path.read_bytes() for path in model.iterdir() if path.name != "lock"}, "it only looks"
    assert fsck_command.main([str(model.parent), "--repair"]) == 1
    assert "repaired" in capsys.readouterr().out
    assert fsck_command.main([str(model.parent)]) == 0
    with opened(model.parent) as again:
        assert places_of(again.contents) == [PAGES[0], PAGES[3]]


def test_damage_to_the_log_is_named(model: Path) -> None:
    flip(model / NAME, 1200)
    flip(model / NAME, 3)
    report = examine(model)
    assert {finding.kind for finding in report.findings if finding.damage} == {"record", "head"}
    os.truncate(model / NAME, 100)
    report = examine(model)
    assert report.damaged and "nothing in it can be used" in report.findings[0].text
    assert (examine(model, repair=True).repaired and not examine(model).damaged) or not (model / NAME).exists()
    with opened(model.parent) as again:
        assert places_of(again.contents) == []


def test_what_a_crash_leaves_is_a_note(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    stored(folder, CHAIN, PAGES)
    folder.tier.write(0, [5], [page_of(9, 0)])  # no fence covers any of it
    folder.manifest.close()
    folder.tier.close()
    folder._opened.close()  # type: ignore[union-attr]  # as a process that ends without a word
    model = folder.folder
    (model / NAME).write_bytes((model / NAME).read_bytes() + b"half a record")
    (model / NEW_NAME).write_bytes(b"half a file")
    (model / "notes.txt").write_bytes(b"somebody's")
    (model / NEW_NAME).chmod(0o600)
    report = examine(model)
    assert not report.damaged and report.num_pages == 4
    assert {finding.kind for finding in report.findings} == {"unfinished", "leftover", "stranger"}
    assert any("slot 5 of group 0" in finding.text for finding in report.findings)
    with opened(tmp_path) as again:
        assert (again.report.unwritten, again.report.unfenced, again.report.unfinished) == (1, 3, 13)
        assert places_of(again.contents) == PAGES[1:]


def test_who_else_may_read_it_is_damage(model: Path) -> None:
    (model / "pages-0").chmod(0o644)
    assert [finding.kind for finding in examine(model).findings] == ["permissions"]
    assert (model / "pages-0").stat().st_mode & 0o777 == 0o644, "it only looks"
    examine(model, repair=True)
    assert examine(model).findings == []


def test_a_folder_in_use_or_of_another_format_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(model.parent):
        assert fsck_command.main([str(model.parent)]) == 8
        assert f"process {os.getpid()}" in capsys.readouterr().out
    raw = bytearray((model / NAME).read_bytes()[:512])
    raw[8] = 9
    (model / NAME).write_bytes(raw)
    assert fsck_command.main([str(model.parent), "--repair"]) == 8
    assert "format 9" in capsys.readouterr().out and (model / NAME).read_bytes() == raw


def test_it_looks_without_writing_a_byte(model: Path) -> None:
    """So that a mount which cannot be written is examined too: nothing is opened for writing, the lock included."""
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in model.iterdir()}
    listed = ReadOnlyCalls()
    sys.addaudithook(listed)
    try:
        assert not examine(model).refused
    finally:
        listed.ends()
    assert listed.opened and not listed.written
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in model.iterdir()}
    (model / LOCK_NAME).unlink()
    assert not examine(model).refused and not (model / LOCK_NAME).exists()


class ReadOnlyCalls:
    """Opened files, by what Python tells whoever listens."""

    def __init__(self) -> None:
        self.opened, self.written = 0, list[object]()
        self._listens = True

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if self._listens and event == "open" and isinstance(args[2], int):
            self.opened += 1
            if args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.written.append(args[0])

    def ends(self) -> None:
        """A hook cannot be taken away."""
        self._listens = False


def test_what_is_no_folder_of_ours_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="no such folder"):
        model_folders(tmp_path / "none")
    with pytest.raises(InputError, match="ENAMETOOLONG"):
        model_folders(tmp_path / ("x" * 300))
    assert fsck_command.main([str(tmp_path)]) == 2
    assert "no model's pages are in it" in capsys.readouterr().err


def test_pages_without_a_manifest_are_damage(model: Path) -> None:
    (model / NAME).unlink()
    assert [finding.kind for finding in examine(model).findings] == ["manifest"]


def test_progress_counts_every_page(model: Path) -> None:
    ticks: list[tuple[int, int]] = []
    examine(model, tick=lambda done, total: ticks.append((done, total)))
    assert ticks == [(3, 4), (4, 4)]


def test_the_scrubber_goes_on_after_what_a_disk_can_cause(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    wrong = iter([OSError("the disk does not answer"), RuntimeError("a bug")])

    def hear(group: int, failed: Failed) -> None:
        raise next(wrong)

    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
        flip(folder.folder / "pages-0", 2 * 4096)
        scrubber = Scrubber(folder.tier, hear, bytes_per_second=1e9, seed=1).start(errors.append)
        until(lambda: scrubber.stopped == "its thread has ended")
        assert [type(error) for error in errors] == [OSError, RuntimeError]
        scrubber.close()


def test_the_scrubber_finds_a_bad_page(tmp_path: Path) -> None:
    bad: list[tuple[int, list[int]]] = []
    with opened(tmp_path) as folder:
        scrubber = Scrubber(folder.tier, lambda group, failed: bad.append((group, list(failed))), seed=1)
        assert scrubber.look() == 0, "nothing is there yet"
        stored(folder, CHAIN, PAGES)
        flip(folder.folder / "pages-0", 2 * 4096)
        for _ in range(20):
            scrubber.look()
        assert bad and set(map(str, bad)) == {"(0, [2])"} and scrubber.num_bad == len(bad)
        folder.tier.unlearn(0, changes(pages=PAGES[1:2]).pages.slot)
        found = scrubber.num_bad
        for _ in range(20):
            scrubber.look()
        assert scrubber.num_bad == found, "a page that is gone is not looked at"
        scrubber.start()
        scrubber.close()
        assert not scrubber.stopped
    with pytest.raises(InputError, match="above 0"):
        Scrubber(folder.tier, lambda group, failed: None, bytes_per_second=0)
