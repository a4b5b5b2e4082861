"""One process per folder, on any disk: a full one, one that cannot be written, and names that are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire import InputError, QuireError, StateError
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.process import LOCK_NAME, FolderLock

from ...full_disk import full_disk
from .test_folder import CHAIN, PAGES, opened, stored
from .world import FINGERPRINT, places_of


def test_a_full_disk_is_locked_without_a_word_and_given_back(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
    with full_disk(0):
        again = opened(tmp_path)
        with pytest.raises(StateError, match="another process has it open"):
            opened(tmp_path)
    assert places_of(again.contents) == PAGES
    again.close()
    opened(tmp_path).close()


def test_what_fails_behind_the_lock_gives_it_back(tmp_path: Path) -> None:
    with full_disk(0), pytest.raises(StateError, match="EFBIG"):
        opened(tmp_path)
    opened(tmp_path).close()


def test_two_may_look_and_nobody_writes_meanwhile(tmp_path: Path) -> None:
    FolderLock(tmp_path, look=True).close()
    assert not list(tmp_path.iterdir()), "it makes nothing"
    FolderLock(tmp_path).close()
    one, two = FolderLock(tmp_path, look=True), FolderLock(tmp_path, look=True)
    with pytest.raises(StateError, match="has it open"):
        FolderLock(tmp_path)
    one.close()
    two.close()
    owner = FolderLock(tmp_path)
    with pytest.raises(StateError, match=f"process {os.getpid()} on .* has it open"):
        FolderLock(tmp_path, look=True)
    owner.close()


def test_names_that_are_no_folder_are_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name, words in (
        ("file", "ENOTDIR|EEXIST"),
        ("file/sub", "ENOTDIR"),
        ("x" * 300, "ENAMETOOLONG"),
        ("a\0b", "no folder can be called that"),
    ):
        with pytest.raises(QuireError, match=words) as told:
            opened(tmp_path / name)
        assert isinstance(told.value, InputError if "\0" in name else StateError)


def test_a_lock_that_is_no_file_is_refused_in_words(tmp_path: Path) -> None:
    for folder in (tmp_path / "link", tmp_path / "folder"):
        model_folder(folder, FINGERPRINT).mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    (model_folder(tmp_path / "link", FINGERPRINT) / LOCK_NAME).symlink_to(elsewhere)
    (model_folder(tmp_path / "folder", FINGERPRINT) / LOCK_NAME).mkdir()
    for name, words in (("link", "ELOOP"), ("folder", "EISDIR")):
        with pytest.raises(StateError, match=f"it cannot be locked: .*{words}"):
            opened(tmp_path / name)
    assert not elsewhere.exists(), "a link is not followed"
