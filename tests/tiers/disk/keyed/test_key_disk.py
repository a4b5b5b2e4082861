"""KeyDisk: what was written is found, bounded and checked, across restarts and faults of the disk."""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from quire import InputError, StateError
from quire.tiers import Bytes
from quire.tiers.disk import DiskIO
from quire.tiers.disk.calls.files import READ_ONLY_FILES, REAL_FILES, Files
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.fsck import examine
from quire.tiers.disk.keyed import KeyDisk
from quire.tiers.disk.keyed.key_place import THERE
from quire.tiers.disk.log.read_manifest import read_manifest
from tests.effort import cases
from tests.tiers.disk.dying import DeadlyFiles, Tell, until_killed
from tests.tiers.disk.stand_ins import Faults, FaultyFiles, FullFiles, MemoryFiles, PowerCut
from tests.waits import PATIENCE

PRINT, PAGE = bytes(range(32)), 5000
PATIENT = DiskIO(2, 16, 120)


def key(number: int, text: str = "a") -> bytes:
    return f"{text}{number}".encode().ljust(32, b".") + bytes(4)


def page(one: bytes) -> Bytes:
    """What lies under a key, and under no other."""
    return np.random.default_rng(list(one)).integers(0, 256, PAGE, np.uint8)


def opened(
    folder: Path, slots: int = 8, files: Files = REAL_FILES, io: DiskIO = PATIENT, fence: float = 1000.0
) -> KeyDisk:
    return KeyDisk(folder, PRINT, PAGE, slots, io=io, files=files, fence_seconds=fence)


def write(disk: KeyDisk, *keys: bytes) -> list[str]:
    return disk.write(keys, [page(one) for one in keys])


def right(disk: KeyDisk, *keys: bytes) -> list[bool]:
    """Whether each came; a wrong byte is an error."""
    pages = [np.zeros(PAGE, np.uint8) for _ in keys]
    came = [answer == THERE for answer in disk.read(keys, pages)]
    assert all(np.array_equal(got, page(one)) for got, one, good in zip(pages, keys, came, strict=True) if good)
    return came


def test_what_was_written_is_read_again_after_a_restart_too(tmp_path: Path) -> None:
    keys = [key(nth) for nth in range(5)]
    disk = opened(tmp_path)
    assert write(disk, *keys) == [THERE] * 5 and write(disk, keys[0]) == [THERE]
    assert right(disk, *keys, key(9)) == [True] * 5 + [False]
    assert disk.counts().pages_written == 5
    disk.close()
    again = opened(tmp_path)
    assert len(again) == 5 and right(again, *keys) == [True] * 5
    again.close()
    assert not examine(model_folder(tmp_path, PRINT)).findings


def test_no_more_pages_than_slots_and_a_text_goes_from_its_end(tmp_path: Path) -> None:
    disk = opened(tmp_path, 4)
    write(disk, key(0), key(1), key(2), key(3))
    assert write(disk, key(0, "b"), key(1, "b")) == [THERE] * 2
    assert [key(nth) in disk for nth in range(4)] == [True, True, False, False] and len(disk) == 4
    assert write(disk, *[key(nth, "c") for nth in range(5)])[-1].startswith("no slot is free")
    assert right(disk, *[key(nth, "c") for nth in range(4)]) == [True] * 4
    disk.close()


def test_by_age_alone_a_text_goes_from_its_end_too(tmp_path: Path) -> None:
    disk = KeyDisk(tmp_path, PRINT, PAGE, 4, eviction="lru", io=PATIENT)
    write(disk, *map(key, range(4)))
    write(disk, key(9))
    assert [key(nth) in disk for nth in range(4)] == [True, True, True, False]
    disk.close()


def test_what_was_read_stays_and_after_a_restart_ends_go_first(tmp_path: Path) -> None:
    disk = opened(tmp_path, 4)
    write(disk, key(0), key(1))
    write(disk, key(0, "b"), key(1, "b"))
    disk.use([key(0), key(1)], {key(0), key(1)})
    write(disk, key(0, "c"))
    assert key(1, "b") not in disk and key(1) in disk
    disk.close()
    again = opened(tmp_path, 4)
    write(again, key(0, "d"))
    assert [one in again for one in (key(0), key(1), key(0, "b"), key(0, "c"))] == [True, False, True, True]
    again.close()


def test_a_flipped_bit_is_a_miss_and_the_page_is_gone(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    write(disk, key(0), key(1))
    file = model_folder(tmp_path, PRINT) / "pages-0"
    raw = bytearray(file.read_bytes())
    raw[100] ^= 4
    file.write_bytes(raw)
    assert sorted(right(disk, key(0), key(1))) == [False, True] and len(disk) == 1
    assert write(disk, key(0), key(1)) == [THERE] * 2 and right(disk, key(0), key(1)) == [True] * 2
    disk.close()
    assert not examine(model_folder(tmp_path, PRINT)).damaged


def test_a_slot_is_not_taken_while_its_page_is_read(tmp_path: Path) -> None:
    faults = Faults()
    disk = opened(tmp_path, 1, FaultyFiles(faults))
    write(disk, key(0))
    faults.gate = Event()
    came: list[bool] = []
    reader = Thread(target=lambda: came.extend(right(disk, key(0))))
    reader.start()
    assert faults.reached.wait(PATIENCE)
    answers = write(disk, key(1))
    faults.gate.set()
    reader.join()
    assert came == [True] and answers[0].startswith("no slot is free")
    assert write(disk, key(1)) == [THERE] and right(disk, key(0), key(1)) == [False, True]
    disk.close()


def test_what_is_stored_again_does_not_go_for_what_is_stored_with_it(tmp_path: Path) -> None:
    disk = opened(tmp_path, 4)
    for nth in range(4):
        write(disk, key(nth))
    assert write(disk, key(0), key(9)) == [THERE, THERE] and right(disk, key(0), key(9)) == [True, True]
    there = [one for one in map(key, range(10)) if one in disk]
    answers = write(disk, *there, key(7), key(8))
    assert answers[:4] == [THERE] * 4 and THERE not in answers[4:] and all(right(disk, *there)), "no room, and said so"
    disk.close()


def test_what_is_held_stays_as_often_as_it_was_held_and_what_goes_is_told(tmp_path: Path) -> None:
    disk, keys, told = opened(tmp_path, 4), [key(nth) for nth in range(4)], list[bytes]()
    disk.tell_gone = told.extend
    write(disk, *keys)
    assert disk.hold(keys[:2]) and disk.hold(keys[:1]) and not disk.hold([keys[3], key(9)]), "none of those is held"
    disk.remove([keys[0], keys[3], key(9)])
    assert (told, keys[0] in disk) == ([keys[3]], True), "it goes when nobody holds it"
    assert not disk.hold(keys[:1]), "it is going"
    write(disk, *(key(nth, "b") for nth in range(4)))
    assert told == [keys[3], keys[2]] and right(disk, *keys[:2]) == [True, True]
    disk.let_go(keys[:1])
    assert keys[0] in disk
    disk.let_go(keys[:2])
    assert told[2:] == [keys[0]] and keys[1] in disk
    disk.close()
    again = opened(tmp_path, 4)
    assert right(again, *keys) == [False, True, False, False]
    again.close()


def test_a_full_disk_says_so_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    files = FullFiles()
    disk = opened(tmp_path, 4, files)
    write(disk, key(0), key(1))
    files.full = {"manifest", "manifest.new"}  # slots are there from the beginning; records are not
    for _ in range(3):
        answers = write(disk, *[key(nth, "b") for nth in range(4)])
        assert all("ENOSPC" in answer for answer in answers) and "ENOSPC" in disk.stalled
    assert all(right(disk, *[one for one in (key(0), key(1)) if one in disk])) and not disk.broken
    files.full = set()
    assert write(disk, key(5), key(6)) == [THERE] * 2 and right(disk, key(5), key(6)) == [True] * 2
    disk.close()
    assert not examine(model_folder(tmp_path, PRINT)).damaged


def test_a_page_that_cannot_be_written_leaves_room_for_others(tmp_path: Path) -> None:
    faults = Faults(write_errors={("pages-0", 10): errno.EIO})
    disk = opened(tmp_path, 3, FaultyFiles(faults))
    answers = write(disk, key(0), key(1))
    assert sorted(answer == THERE for answer in answers) == [False, True]
    assert any("EIO" in answer for answer in answers)
    assert write(disk, key(2)) == [THERE]
    disk.close()


def test_a_sync_that_failed_ends_writing_and_not_reading(tmp_path: Path) -> None:
    faults = Faults()
    disk = opened(tmp_path, 4, FaultyFiles(faults))
    write(disk, key(0))
    faults.sync_errors["pages-0"] = errno.EIO
    assert not disk.fence() and "EIO" in disk.broken
    assert write(disk, key(0), key(1)) == [THERE, disk.broken] and right(disk, key(0)) == [True]
    disk.close()


def test_a_disk_that_hangs_costs_a_miss_and_no_page(tmp_path: Path) -> None:
    faults = Faults()
    disk = opened(tmp_path, 2, FaultyFiles(faults), DiskIO(1, 4, 0.5))
    write(disk, key(0))
    faults.gate = Event()
    out = np.zeros(PAGE, np.uint8)
    (answer,) = disk.read([key(0)], [out])
    assert "did not answer" in answer and not out.any() and key(0) in disk
    assert write(disk, key(1))[0] not in (THERE, "")
    faults.gate.set()
    late = time.monotonic() + PATIENCE
    while not disk.fence():  # until the thread that hung is back
        assert time.monotonic() < late
    disk.close()
    again = opened(tmp_path, 2)
    assert right(again, key(0), key(1)) == [True, False]
    again.close()


def test_a_fence_comes_in_its_time_among_writes_too(tmp_path: Path) -> None:
    often, seldom = opened(tmp_path / "often", fence=0), opened(tmp_path / "seldom")
    for disk, waits in ((often, False), (seldom, True)):
        write(disk, key(0))
        assert (disk.tidy() is not None) == waits
        folder = next(disk._folder.folder.parent.iterdir())
        read = read_manifest(READ_ONLY_FILES, folder, PRINT)
        assert read is not None and read.contents([0]).fenced.tolist() == [not waits]
        disk.close()


def test_a_write_whose_caller_has_given_up_leaves_nothing(tmp_path: Path) -> None:
    """Its memory may hold something else by the time that the bytes are read."""
    disk = opened(tmp_path, 4)
    for answers in ([False], [True, False]):
        asked = iter(answers)
        assert disk.write([key(0)], [page(key(0))], lambda asked=asked: next(asked)) == ["its caller has given up"]  # type: ignore[misc]
        assert key(0) not in disk and len(disk) == 0
    assert write(disk, *map(key, range(4))) == [THERE] * 4
    disk.close()


def test_two_processes_models_and_sizes_keep_apart(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    write(disk, key(0))
    with pytest.raises(StateError, match="has it open"):
        opened(tmp_path)
    other = KeyDisk(tmp_path, PRINT[::-1], PAGE, 4)
    assert key(0) not in other
    other.close()
    disk.close()
    with pytest.raises(StateError, match="pages of \\[5000\\] bytes"):
        KeyDisk(tmp_path, PRINT, PAGE + 1, 4)
    with pytest.raises(InputError, match="no room for one"):
        opened(tmp_path, 0)
    smaller = opened(tmp_path, 1)
    assert len(smaller) == 1
    smaller.close()


def test_a_key_that_is_too_long_or_empty_is_left_out(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    long = b"x" * 1025
    assert disk.write([b"", long, key(0)], [page(key(0))] * 3) == ["a key of 0 bytes", "a key of 1025 bytes", THERE]
    disk.close()


def _live(folder: Path, files: DeadlyFiles, tell: Tell) -> None:
    disk = opened(folder, 12, files)
    for _ in range(400):
        first = int(files.dice.integers(60))
        keys = [key(first + nth) for nth in range(int(files.dice.integers(1, 6)))]
        write(disk, *keys)
        if files.dice.random() < 0.4 and disk.fence():
            tell(sorted(disk._slots))
        right(disk, *[one for one in keys if one in disk])
        tell(None)  # from now on what was durable may go again


@pytest.mark.parametrize("seed", range(cases(4, 300)))
def test_a_kill_loses_nothing_durable_and_mixes_no_bytes(tmp_path: Path, seed: int) -> None:
    dice = np.random.default_rng(seed)
    for life in range(2):
        files = DeadlyFiles(int(dice.integers(10, 400)), np.random.default_rng([seed, life]))
        told = until_killed(lambda tell, files=files: _live(tmp_path, files, tell))  # type: ignore[misc]
        if not told:
            continue
        report = examine(model_folder(tmp_path, PRINT))
        assert not report.damaged, report.findings
        disk = opened(tmp_path, 12)
        assert not disk.report.damaged
        assert len(disk) <= 12 and all(right(disk, *disk._slots))
        if told[-1] is not None:
            assert set(told[-1]) <= set(disk._slots), "durable pages are lost"
        disk.close()


@pytest.mark.parametrize("seed", range(cases(6, 600)))
def test_a_power_cut_leaves_no_record_of_bytes_that_are_others(tmp_path: Path, seed: int) -> None:
    """What is freed is freed on the disk before its slot is written again; what a fence covers is there."""
    dice, files = np.random.default_rng(seed), MemoryFiles()
    files.fuse.left = int(dice.integers(30, 150))
    with suppress(PowerCut, StateError, InputError):
        disk = opened(tmp_path, 6, files)
        while files.fuse.left >= 0:
            first = int(dice.integers(30))
            write(disk, *[key(first + nth) for nth in range(int(dice.integers(1, 4)))])
            if dice.random() < 0.4:
                disk.fence()
    again = opened(tmp_path, 6, files.power_cut(dice))
    assert not again.report.damaged
    assert all(right(again, *again._slots)), "a record speaks of bytes that are others"
    again.close()
