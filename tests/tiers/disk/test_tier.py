"""DiskTier: the suites that every tier passes, what disks do to one, and threads that no disk may stop."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from quire import InputError, StateError
from quire.tiers import ArenaTier, Mover, PageLayout, Tier, TierError
from quire.tiers.disk import DiskIO, DiskTier
from quire.tiers.disk.calls.files import REAL_FILES

from ..conformance import NUM_SLOTS, PAGE_BYTES, FailureSuite, contents, fill, page
from ..rig import COPY
from ..stand_ins import plan_of
from .stand_ins import Faults, FaultyFiles

SLOT = 4096  # bytes of a small page on disk
PATIENT = DiskIO(num_threads=2, depth=4, deadline=120)
IMPATIENT = DiskIO(num_threads=2, depth=4, deadline=0.05)


def flip(path: Path, offset: int) -> None:
    """Turn one bit round."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


class TestDiskTier(FailureSuite):
    beside = frozenset(
        {"counts", "erase", "index_bytes", "known", "learn", "missing", "stopped", "sums", "sync", "unlearn", "verify"}
    )  # fmt: skip

    @pytest.fixture
    def tier(self, tmp_path: Path) -> Iterator[Tier]:
        tier = self.make(NUM_SLOTS, PAGE_BYTES, tmp_path)
        yield tier
        tier.close()

    def make(self, num_slots: tuple[int, ...], page_bytes: tuple[int, ...], folder: Path) -> Tier:
        self.folder = folder
        return DiskTier("disk", num_slots, page_bytes, folder)

    def damage(self, tier: Tier, group: int, slot: int) -> None:
        flip(self.folder / f"pages-{group}", slot * SLOT + 7)


@pytest.mark.parametrize("size", [600_000, 6_000_000])  # smaller and larger than what is read at once
def test_large_pages_come_whole_and_in_parts(tmp_path: Path, size: int, faults: Faults) -> None:
    tier = DiskTier("disk", (3,), (size,), tmp_path, io=PATIENT, files=FaultyFiles(faults))
    pages, strip = fill(tier, 0), size // 12 + 1
    assert np.array_equal(contents(tier, 0), pages)
    part = np.zeros((6, strip), np.uint8)
    tier.read(0, [1], [part])
    assert np.array_equal(part, pages[1].reshape(6, -1)[:, :strip])
    twice = np.zeros((2, 1, size), np.uint8)
    tier.read(0, [2, 2], list(twice))
    assert np.array_equal(twice[0], pages[2]) and np.array_equal(twice[1], pages[2])
    data = page(4, size // 10).reshape(6, -1)
    tier.write(0, [1], [data])
    pages[1].reshape(6, -1)[:, : data.shape[1]] = data
    assert np.array_equal(contents(tier, 0), pages)
    flip(tmp_path / "pages-0", 2 * -(-size // SLOT) * SLOT + size - 1)
    with pytest.raises(TierError, match="do not match their checksum"):
        tier.read(0, [2], [np.zeros((1, 10), np.uint8)])
    tier.close()


def test_few_calls_wait_for_the_disk(tmp_path: Path, faults: Faults) -> None:
    """Beside a busy thread of the engine each of them comes back late; what is damaged reaches no caller's memory."""
    size = 2 << 20
    tier = DiskTier("disk", (5,), (size,), tmp_path, io=DiskIO(1, 4, PATIENT.deadline), files=FaultyFiles(faults))
    pages = fill(tier, 0)
    faults.calls.clear()
    assert np.array_equal(contents(tier, 0), pages)
    assert faults.calls == [("read", "pages-0", 2 * size), ("read", "pages-0", 2 * size), ("read", "pages-0", size)]
    flip(tmp_path / "pages-0", 3 * size + 5)
    out = np.full((2, 1, size), 7, np.uint8)
    with pytest.raises(TierError, match="do not match their checksum") as caught:
        tier.read(0, [2, 3], list(out))
    assert list(caught.value.failed) == [3] and np.array_equal(out[0], pages[2]) and (out[1] == 7).all()
    tier.close()


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def faulty(tmp_path: Path, faults: Faults) -> Iterator[DiskTier]:
    tier = DiskTier("disk", (8,), (1000,), tmp_path, io=PATIENT, files=FaultyFiles(faults))
    yield tier
    if faults.gate is not None:
        faults.gate.set()
    tier.close()


def test_neighbours_go_in_one_call(faulty: DiskTier, faults: Faults) -> None:
    pages = [page(slot, 1000) for slot in range(8)]
    faulty.write(0, [3, 1, 2, 6, 7], pages[:5])
    assert sorted(faults.calls) == [("write", "pages-0", 2 * SLOT), ("write", "pages-0", 3 * SLOT)]
    faults.calls.clear()
    out = np.zeros((6, 1, 1000), np.uint8)
    faulty.read(0, [7, 2, 1, 6, 3, 2], list(out))
    assert sorted(faults.calls) == [("read", "pages-0", 2 * SLOT), ("read", "pages-0", 3 * SLOT)]
    assert np.array_equal(out, np.stack([pages[nth] for nth in (4, 2, 1, 3, 0, 2)]))


def test_small_pages_that_are_no_neighbours_share_a_job(tmp_path: Path) -> None:
    tier = DiskTier("disk", (600,), (64,), tmp_path, io=PATIENT)
    pages = fill(tier, 0)
    assert [sum(map(len, runs)) for runs in tier._slots[0].jobs(range(0, 600, 2), 2)] == [256, 44]
    out = np.zeros((300, 1, 64), np.uint8)
    tier.read(0, range(0, 600, 2), list(out))
    assert np.array_equal(out, pages[::2])
    tier.close()


def test_many_pages_are_two_jobs_for_each_thread(tmp_path: Path) -> None:
    """To hand a job over is not free; nor may one be so long that nobody else gets a turn."""
    tier = DiskTier("disk", (100,), (1 << 20,), tmp_path, io=PATIENT)
    slots = range(0, 100, 2)
    assert [sum(map(len, runs)) for runs in tier._slots[0].jobs(slots, 2)] == [13, 13, 13, 11]
    assert [sum(map(len, runs)) for runs in tier._slots[0].jobs(slots, 1)] == [16, 16, 16, 2]
    assert [sum(map(len, runs)) for runs in tier._slots[0].jobs(slots[:3], 2)] == [1, 1, 1]
    tier.close()


@pytest.mark.parametrize("most", [100, 999, 5000])
def test_short_calls_are_gone_on_with(faulty: DiskTier, faults: Faults, most: int) -> None:
    faults.most_bytes = most
    pages = fill(faulty, 0)
    assert np.array_equal(contents(faulty, 0), pages)


@pytest.mark.parametrize(("number", "word"), [(errno.EIO, "EIO"), (errno.ENOSPC, "ENOSPC")])
def test_a_write_that_fails_costs_its_slot_and_no_other(
    faulty: DiskTier, faults: Faults, number: int, word: str
) -> None:
    fill(faulty, 0)
    faults.write_errors[("pages-0", 3 * SLOT + 5)] = number
    with pytest.raises(TierError) as caught:
        faulty.write(0, range(8), [page(slot + 50, 1000) for slot in range(8)])
    assert list(caught.value.failed) == [3] and word in caught.value.reason
    faults.write_errors.clear()
    assert faulty.verify(0, range(8)) == {3: "no page is known to be there"}
    out = np.zeros((1, 1000), np.uint8)
    faulty.read(0, [4], [out])
    assert np.array_equal(out, page(54, 1000))


def test_a_failed_read_costs_its_slot_and_no_other(faulty: DiskTier, faults: Faults) -> None:
    pages = fill(faulty, 0)
    faults.read_errors[("pages-0", 3 * SLOT)] = errno.EIO
    out = np.zeros((8, 1, 1000), np.uint8)
    with pytest.raises(TierError, match="EIO") as caught:
        faulty.read(0, range(8), list(out))
    assert list(caught.value.failed) == [3]
    assert np.array_equal(np.delete(out, 3, 0), np.delete(pages, 3, 0))
    with pytest.raises(TierError, match="EIO"):  # a part of a page is written over what is there
        faulty.write(0, [3], [np.ones((1, 4), np.uint8)])


def test_a_file_that_ends_early_misses_its_last_pages(faulty: DiskTier, tmp_path: Path) -> None:
    fill(faulty, 0)
    with open(tmp_path / "pages-0", "r+b") as file:
        file.truncate(6 * SLOT + 500)
    assert set(faulty.verify(0, range(8))) == {6, 7}


def test_what_was_never_written_is_not_served(faulty: DiskTier) -> None:
    with pytest.raises(TierError, match="no page is known"):
        faulty.read(0, [0], [np.zeros((1, 1000), np.uint8)])
    faulty.write(0, [0], [np.full((1, 4), 9, np.uint8)])
    assert contents_of(faulty, 0)[:6] == [9, 9, 9, 9, 0, 0]


def contents_of(tier: DiskTier, slot: int) -> list[int]:
    out = np.ones((1, 1000), np.uint8)
    tier.read(0, [slot], [out])
    return [int(byte) for byte in out[0]]


@pytest.fixture
def hanging(faulty: DiskTier, faults: Faults, tmp_path: Path) -> Iterator[DiskTier]:
    """A second tier over the same pages; the disk hangs whenever it is asked."""
    fill(faulty, 0)
    tier = DiskTier("disk", (8,), (1000,), tmp_path, io=PATIENT, files=FaultyFiles(faults))
    slots = np.arange(8, dtype=np.int32)
    tier.learn(0, slots, faulty.sums(0, slots)[0])
    faults.gate = Event()
    yield tier
    tier._io = PATIENT
    faults.gate.set()
    tier.close()


def test_a_disk_that_hangs_stops_nobody(hanging: DiskTier, faults: Faults) -> None:
    hanging._io = IMPATIENT
    out = np.full((2, 1, 1000), 7, np.uint8)
    with pytest.raises(TierError, match=r"did not answer in 0\.05 s"):
        hanging.read(0, [0, 4], list(out))
    with pytest.raises(TierError, match="did not answer"):
        hanging.read(0, [1], [out[0]])
    assert hanging.counts().given_up == 3
    hanging._io = PATIENT
    faults.gate.set()  # type: ignore[union-attr]
    hanging.close()  # waits for the threads
    assert (out == 7).all(), "a late answer went into memory that the caller has back"


def test_what_the_system_has_in_memory_waits_for_no_disk(hanging: DiskTier, faulty: DiskTier, faults: Faults) -> None:
    """While the disk hangs, and verified as ever."""
    faults.ready = frozenset(slot * SLOT for slot in (1, 2, 5))
    hanging.learn(0, np.array([5], np.int32), faulty.sums(0, np.array([6], np.int32))[0])
    out = np.zeros((3, 1, 1000), np.uint8)
    with pytest.raises(TierError, match="do not match their checksum") as caught:
        hanging.read(0, [1, 2, 5], list(out))
    assert list(caught.value.failed) == [5] and hanging.counts().pages_read == 2
    assert np.array_equal(out[:2], np.stack([page(1, 1000), page(2, 1000)]))
    hanging._io = IMPATIENT  # only what hangs may be given up: a busy machine is as slow
    with pytest.raises(TierError, match="did not answer"):
        hanging.read(0, [4], [out[0]])


@pytest.mark.parametrize("size", [1000, 600_000])
def test_a_page_that_is_partly_in_memory_is_read_from_the_disk(tmp_path: Path, faults: Faults, size: int) -> None:
    tier = DiskTier("disk", (4,), (size,), tmp_path, io=PATIENT, files=FaultyFiles(faults))
    pages = fill(tier, 0)
    faults.ready, faults.most_bytes = frozenset(range(0, 4 * 602_112, SLOT)), size - 1
    faults.calls.clear()
    assert np.array_equal(contents(tier, 0), pages)
    assert {what for what, *_ in faults.calls} == {"read"}
    faults.most_bytes = None
    faults.calls.clear()
    assert np.array_equal(contents(tier, 0), pages) and not faults.calls
    part, twice = np.zeros((2, 30), np.uint8), np.zeros((2, 1, size), np.uint8)
    tier.read(0, [3, 1, 1], [part, *twice])  # no buffer that takes the page as it lies on the disk
    assert np.array_equal(part, pages[3].reshape(2, -1)[:, :30]) and np.array_equal(twice[0], twice[1])
    assert np.array_equal(twice[0], pages[1]) and faults.calls
    tier.close()


def test_a_file_reads_what_is_in_memory_or_nothing(tmp_path: Path) -> None:
    """Whether it is depends on the system; that the bytes are right, and that no error is raised, does not."""
    file = REAL_FILES.open(tmp_path / "file", create=True)
    data = page(1, 5000)[0]
    file.write(0, [data])
    out = np.zeros(6000, np.uint8)
    got = file.read_ready(1000, out)
    assert got in (0, 4000) and np.array_equal(out[:got], data[1000 : 1000 + got]) and not out[got:].any()
    assert file.read_ready(5000, out) == 0
    file.close()
    assert file.read_ready(0, out) == 0


def test_a_write_that_hangs_keeps_its_slot(hanging: DiskTier, faults: Faults) -> None:
    hanging._io = IMPATIENT
    with pytest.raises(TierError, match="did not answer"):
        hanging.write(0, [2], [page(1, 1000)])
    for _ in range(2):
        with pytest.raises(TierError, match="an earlier write to it hangs"):
            hanging.write(0, [2], [page(2, 1000)])
        with pytest.raises(TierError, match="an earlier write to it hangs"):
            hanging.read(0, [2], [np.zeros((1, 1000), np.uint8)])
    hanging._io = PATIENT
    faults.gate.set()  # type: ignore[union-attr]
    while "hangs" in (why := hanging.verify(0, [2]).get(2, "")):
        pass
    assert why == "no page is known to be there", "nobody was told that the page is there"


def test_closing_with_work_in_flight(tmp_path: Path) -> None:
    faults = Faults()
    size = 1 << 20  # so that each page is a job of its own
    tier = DiskTier("disk", (8,), (size,), tmp_path, io=DiskIO(1, 1, PATIENT.deadline), files=FaultyFiles(faults))
    fill(tier, 0)
    faults.gate = Event()
    caught: list[TierError] = []

    def read() -> None:
        try:
            tier.read(0, [0, 2, 4, 6], list(np.zeros((4, 1, size), np.uint8)))
        except TierError as error:
            caught.append(error)

    reader = Thread(target=read)
    reader.start()
    assert faults.reached.wait(PATIENT.deadline)
    closer = Thread(target=tier.close)
    closer.start()
    while not tier._closed:
        pass
    faults.gate.set()
    closer.join()
    reader.join()
    assert caught and set(caught[0].failed) >= {4, 6}
    assert set(caught[0].failed.values()) == {"the tier was closed meanwhile"}
    with pytest.raises(StateError, match="closed"):
        tier.verify(0, [0])


def test_a_sync_that_failed_is_not_forgotten(faulty: DiskTier, faults: Faults) -> None:
    faulty.sync()
    fill(faulty, 0)
    faults.sync_errors["pages-0"] = errno.EIO
    for _ in range(2):
        with pytest.raises(OSError, match="sync"):
            faulty.sync()


def test_pages_of_an_earlier_process_are_known_by_their_checksum(tmp_path: Path) -> None:
    before = DiskTier("disk", (4,), (1000,), tmp_path)
    pages = fill(before, 0)
    slots = np.arange(4, dtype=np.int32)
    sums, known = before.sums(0, slots)
    assert known.all() and len(set(sums.tolist())) == 4
    before.close()
    after = DiskTier("disk", (4,), (1000,), tmp_path)
    assert len(after.verify(0, range(4))) == 4
    after.learn(0, slots, sums)
    assert np.array_equal(contents(after, 0), pages)
    after.learn(0, slots[:1], sums[1:2])
    assert list(after.verify(0, range(4))) == [0]
    after.unlearn(0, slots[1:2])
    assert list(after.verify(0, range(4))) == [0, 1]
    after.close()


def test_erased_bytes_are_gone(tmp_path: Path) -> None:
    tier = DiskTier("disk", (4,), (1000,), tmp_path)
    fill(tier, 0)
    tier.erase(0, [2])
    raw = (tmp_path / "pages-0").read_bytes()
    assert not any(raw[2 * SLOT : 3 * SLOT]) and any(raw[3 * SLOT :])
    assert list(tier.verify(0, range(4))) == [2]
    tier.close()


def test_files_are_for_their_owner(tmp_path: Path) -> None:
    tier = DiskTier("disk", (4, 0), (1000, 10), tmp_path)
    tier.close()
    assert [(path.stat().st_mode & 0o777, path.stat().st_size) for path in sorted(tmp_path.iterdir())] == [
        (0o600, 4 * SLOT),
        (0o600, 0),
    ]


def test_sizes_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for slots, sizes in (((1, 2), (3,)), ((-1,), (3,)), ((1,), (0,))):
        with pytest.raises(InputError, match="slots >= 0"):
            DiskTier("disk", slots, sizes, tmp_path)
    for wrong in ((0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0)):
        with pytest.raises(InputError, match="above 0"):
            DiskIO(*wrong)


def test_a_mover_carries_pages_down_and_up(tmp_path: Path) -> None:
    disk = DiskTier("disk", (8,), (1000,), tmp_path)
    host = ArenaTier("host", (8,), (1000,))
    pages = fill(host, 0)
    with Mover([host, disk], [PageLayout(1000)], 4) as mover:
        down = [(COPY, 0, (0, slot), (1, 7 - slot), 4) for slot in range(8)]
        up = [(COPY, 0, (1, 7 - slot), (0, slot), 4) for slot in range(8)]
        assert mover.run(plan_of(1, *down)) == []
        host.view(0)[:] = 0
        flip(tmp_path / "pages-0", 2 * SLOT)
        assert mover.run(plan_of(2, *up)) == [5]
        assert np.array_equal(np.delete(contents(host, 0), 5, 0), np.delete(pages, 5, 0))
    disk.close()
