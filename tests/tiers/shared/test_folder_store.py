"""A folder as a shared store: the suite, failing file calls, and its quota beside other processes."""

from __future__ import annotations

import errno
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.core.records.errors import InputError
from quire.tiers.shared import FolderStore, SharedStore, StoreError, StoreMiss
from quire.tiers.shared.stores.file_calls import FileCalls
from quire.tiers.shared.stores.folder_sweep import LOCK, TEMPORARY, AbandonedFiles, sweep
from quire.tiers.shared.stores.value import HEADER_BYTES
from tests.tiers.shared.store_suite import SIZE, StoreSuite, empty, got, name, page, soon
from tests.waits import PATIENCE


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)


class TestFolderStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SharedStore]:
        store = FolderStore(tmp_path / "pages")
        yield store
        store.close()

    def damage(self, store: SharedStore, of: bytes, change: str) -> None:
        assert isinstance(store, FolderStore)
        path = store._path(of)
        raw = bytearray(path.read_bytes())
        match change:
            case "flip":
                raw[-3] ^= 1
            case "cut":
                del raw[-1:]
            case "lengthen":
                raw += b"\0"
            case "empty":
                raw.clear()
            case "newer":
                raw[4:6] = struct.pack("<H", 2)
            case "magic":
                raw[0] ^= 0xFF
            case "swap":
                raw[:] = store._path(name(0)).read_bytes()
        path.write_bytes(raw)


class FailingCalls(FileCalls):
    """The operating system, with one call that fails."""

    def __init__(self) -> None:
        self.fails: dict[str, int] = {}  # call -> errno
        self.short = 0  # bytes that reads lack

    def _check(self, call: str) -> None:
        if call in self.fails:
            raise OSError(self.fails[call], os.strerror(self.fails[call]))

    def size(self, path: Path) -> int:
        self._check("size")
        return super().size(path)

    def open_read(self, path: Path) -> int:
        self._check("open")
        return super().open_read(path)

    def create(self, path: Path) -> int:
        self._check("create")
        return super().create(path)

    def read(self, number: int, into: object) -> int:
        self._check("read")
        return super().read(number, into) - self.short  # type: ignore[arg-type]

    def write(self, number: int, data: object) -> None:
        super().write(number, list(data)[:1])  # type: ignore[call-overload]  # a part of it is there when it fails
        self._check("write")
        super().write(number, list(data)[1:])  # type: ignore[call-overload]

    def rename(self, old: Path, new: Path) -> None:
        self._check("rename")
        super().rename(old, new)


@pytest.mark.parametrize(
    ("call", "number", "reason"),
    [
        ("write", errno.ENOSPC, StoreMiss.FULL), ("write", errno.EDQUOT, StoreMiss.FULL),
        ("create", errno.ENOSPC, StoreMiss.FULL), ("write", errno.EIO, StoreMiss.FAILED),
        ("create", errno.EACCES, StoreMiss.FAILED), ("rename", errno.EIO, StoreMiss.FAILED),
    ],
)  # fmt: skip
def test_a_page_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, call: str, number: int, reason: StoreMiss
) -> None:
    calls = FailingCalls()
    store = FolderStore(tmp_path, files=calls)
    store.put_many([name(0)], [page(0)], soon())
    calls.fails[call] = number
    assert store.put_many([name(1), name(2)], [page(1), page(2)], soon()) == [reason, reason]
    calls.fails.clear()
    assert store.exists_many([name(0), name(1), name(2)], soon()) == [True, False, False]
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("call", ["open", "read"])
def test_a_page_that_cannot_be_read_is_a_miss_with_a_reason(tmp_path: Path, call: str) -> None:
    calls = FailingCalls()
    store = FolderStore(tmp_path, files=calls)
    store.put_many([name(0)], [page(0)], soon())
    calls.fails[call] = errno.EIO
    assert store.get_many([name(0)], empty(1), soon()) == [StoreMiss.FAILED]
    calls.fails.clear()
    calls.short = 1
    assert store.get_many([name(0)], empty(1), soon()) == [StoreMiss.SIZE]


@pytest.mark.parametrize("call", ["open", "size", "create"])
def test_a_file_system_that_is_gone_is_unreachable(tmp_path: Path, call: str) -> None:
    calls = FailingCalls()
    store = FolderStore(tmp_path, files=calls)
    calls.fails[call] = errno.ESTALE
    acts: dict[str, Callable[[], object]] = {
        "open": lambda: store.get_many([name(0)], empty(1), soon()),
        "size": lambda: store.exists_many([name(0)], soon()),
        "create": lambda: store.put_many([name(0)], [page(0)], soon()),
    }  # fmt: skip
    with pytest.raises(StoreError) as caught:
        acts[call]()
    assert caught.value.miss is StoreMiss.UNREACHABLE


def test_a_folder_that_is_not_mounted_is_not_filled(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "mount")
    (tmp_path / "mount").rmdir()
    with pytest.raises(StoreError) as caught:
        store.put_many([name(0)], [page(0)], soon())
    assert caught.value.miss is StoreMiss.UNREACHABLE
    assert not (tmp_path / "mount").exists()


def test_files_are_for_their_owner_and_lie_in_many_folders(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "new" / "pages")
    store.put_many([name(n) for n in range(40)], [page(n) for n in range(40)], soon())
    assert len(files(tmp_path)) == 40 and len({path.parent for path in files(tmp_path)}) == 40
    modes = {stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new" / "pages").rglob("*") if path.is_dir()}
    assert modes == {0o600} and folders == {0o700}


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        FolderStore(tmp_path / "file")
    with pytest.raises(InputError, match="quota"):
        FolderStore(tmp_path, quota=0)


# -- quota -----------------------------------------------------------------------------------------------------------


def aged(store: FolderStore, number: int, minutes: float) -> None:
    """A page that was written so long ago."""
    store.put_many([name(number)], [page(number)], soon())
    then = time.time() - 60 * minutes
    os.utime(store._path(name(number)), (then, then))


def test_the_oldest_go_first_and_a_tenth_is_left_free(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for number in range(20):
        aged(store, number, minutes=5 * (number + 1))
    whole = SIZE + HEADER_BYTES
    assert sweep(tmp_path, 20 * whole, soon()) == 0
    assert sweep(tmp_path, 10 * whole, soon()) == 11 * whole
    assert store.exists_many([name(n) for n in range(20)], soon()) == [True] * 9 + [False] * 11


def test_of_pages_of_one_minute_only_as_many_go_as_must(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for number in range(20):
        aged(store, number, minutes=600)
    whole = SIZE + HEADER_BYTES
    assert sweep(tmp_path, 10 * whole, soon()) == 11 * whole
    assert sum(store.exists_many([name(n) for n in range(20)], soon())) == 9


def test_a_page_that_is_read_is_young_again(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for number in range(10):
        aged(store, number, minutes=100 - number)
    got(store, [name(0)])
    sweep(tmp_path, 5 * (SIZE + HEADER_BYTES), soon())
    assert store.exists_many([name(0), name(1)], soon()) == [True, False]


def test_what_was_given_up_while_it_was_written_is_swept(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    aged(store, 1, minutes=1)
    old, new = (store._path(name(1)).parent / f"{TEMPORARY}{word}" for word in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"part")
    os.utime(old, (1, 1))
    sweep(tmp_path, 1 << 30, soon())
    assert not old.exists() and new.exists() and store.exists_many([name(1)], soon()) == [True]


def test_what_killed_writers_left_goes_without_a_quota_too(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for number in range(40):
        aged(store, number, minutes=1)
    left = [store._path(name(number)).parent / f"{TEMPORARY}old" for number in range(40)]
    young = store._path(name(1)).parent / f"{TEMPORARY}young"
    for path in (*left, young):
        path.write_bytes(b"part")
        if path is not young:
            os.utime(path, (1, 1))
    again = FolderStore(tmp_path)
    again.put_many([name(50)], [page(50)], time.monotonic() - 1)  # no time: nothing is looked at
    assert all(path.exists() for path in left)
    while any(path.exists() for path in left):  # some with every put
        assert again.put_many([name(50)], [page(50)], soon()) == [None]
    assert young.exists() and all(again.exists_many([name(number) for number in range(40)], soon()))
    fresh = left[0]
    fresh.write_bytes(b"part")
    os.utime(fresh, (1, 1))
    assert again.put_many([name(51)], [page(51)], soon()) == [None]
    assert fresh.exists(), "the next look is in an hour"


def test_empty_folders_go_and_come_back(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    aged(store, 1, minutes=1)
    store._path(name(1)).unlink()
    sweep(tmp_path, 1, soon())
    assert not store._path(name(1)).parent.parent.exists()
    assert store.put_many([name(1)], [page(1)], soon()) == [None]


def test_a_folder_stays_near_its_quota_while_one_writes(tmp_path: Path) -> None:
    quota = 40 * (SIZE + HEADER_BYTES)
    store = FolderStore(tmp_path, quota=quota)
    for number in range(200):
        store.put_many([name(number)], [page(number)], soon())
        assert number % 5 or sum(path.stat().st_size for path in files(tmp_path)) <= quota * 17 // 16
    assert store.put_many([name(1)], [page(1, 2 * quota)], soon()) == [StoreMiss.FULL]


WORKER = """
import sys, numpy as np
from quire.tiers.shared import FolderStore, StoreMiss
from tests.tiers.shared.store_suite import SIZE, name, page, soon, empty
store = FolderStore(sys.argv[1], quota=int(sys.argv[2]))
random, wrong = np.random.default_rng(int(sys.argv[3])), 0
for turn in range(100):
    some = [int(n) for n in random.integers(0, 120, 4)]
    store.put_many([name(n) for n in some], [page(n) for n in some], soon())
    into = empty(4)
    for n, one, answer in zip(some, into, store.get_many([name(n) for n in some], into, soon())):
        wrong += answer not in (None, StoreMiss.ABSENT) or (answer is None and not np.array_equal(one, page(n)))
print("wrong", wrong)
"""


def test_several_processes_write_read_and_sweep_one_folder(tmp_path: Path) -> None:
    quota = 40 * (SIZE + HEADER_BYTES)
    command = [sys.executable, "-c", WORKER, str(tmp_path), str(quota)]
    crew = [subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, text=True) for seed in range(2)]
    assert [one.communicate(timeout=240)[0] for one in crew] == ["wrong 0\n"] * 2
    assert sum(path.stat().st_size for path in files(tmp_path)) <= quota * 19 // 16
    left = [path for path in files(tmp_path) if path.name.startswith(TEMPORARY)]
    assert not left


def test_pages_are_compared_by_name_and_not_by_place(tmp_path: Path) -> None:
    """Two scopes may have equal digests: a folder that somebody moved serves nothing under its new name."""
    store = FolderStore(tmp_path)
    store.put_many([name(1, 1)], [page(1)], soon())
    (tmp_path / name(1, 1)[:16].hex()).rename(tmp_path / name(1, 2)[:16].hex())
    assert got(store, [name(1, 2)]) == [StoreMiss.DAMAGED]
    assert store._path(name(1, 2)).read_bytes()[HEADER_BYTES:] == page(1).tobytes()


def test_two_threads_may_clean_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one looks into a folder while the other begins; a file of a dead writer goes all the same."""
    part = tmp_path / "scope" / "part"
    part.mkdir(parents=True)
    left = part / f"{TEMPORARY}dead"
    left.write_bytes(b"")
    os.utime(left, (0, 0))
    abandoned, inside, go_on, faults = AbandonedFiles(tmp_path), threading.Event(), threading.Event(), []
    scandir = os.scandir

    def slow(path: str) -> Any:
        inside.set()
        assert go_on.wait(PATIENCE)
        return scandir(path)

    def clean() -> None:
        try:
            abandoned.clean(soon())
        except ValueError as wrong:
            faults.append(wrong)

    monkeypatch.setattr(os, "scandir", slow)
    first = threading.Thread(target=clean)
    first.start()
    assert inside.wait(PATIENCE)
    clean()
    go_on.set()
    first.join(PATIENCE)
    assert not faults and not first.is_alive()
    for _ in range(100):
        abandoned.clean(soon())
    assert not left.exists()
