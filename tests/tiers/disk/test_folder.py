"""DiskFolder and its manifest: what is found again, by whom, and what is refused."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quire import CacheConfig, InputError, StateError, TierConfig
from quire.core.records.config import Eviction
from quire.tiers.disk import DiskFolder, DiskIO, DiskLimits, OpenReport, slots_for
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.log.frames import HEAD_BYTES
from quire.tiers.disk.log.manifest import NEW_NAME
from quire.tiers.disk.log.mark import MARK_NAME
from quire.tiers.disk.log.read_manifest import NAME
from quire.tiers.disk.log.records import PIECE, payloads, unpack_changes
from quire.tiers.disk.space import page_index

from .stand_ins import Faults, FaultyFiles
from .test_tier import flip
from .world import FINGERPRINT, NUM_SLOTS, PAGE_BYTES, World, changes, page_of, places_of

OTHER = bytes(32)
ROOT = Path(__file__).resolve().parents[3]


def opened(folder: Path, fingerprint: bytes = FINGERPRINT, **more: object) -> DiskFolder:
    options: dict[str, object] = {"io": DiskIO(num_threads=1, deadline=60), **more}
    return DiskFolder(folder, fingerprint, PAGE_BYTES, NUM_SLOTS, **options)  # type: ignore[arg-type]


def stored(folder: DiskFolder, nodes: list[tuple[int, int]], pages: list[tuple[int, int, int]]) -> None:
    for group, slot, node in pages:
        folder.tier.write(group, [slot], [page_of(node, group)])
    assert not len(folder.record(changes(nodes=nodes, pages=pages)).slot)


CHAIN = [(1, -1), (2, 1), (3, 2), (4, -2)]
PAGES = [(0, 5, 1), (0, 2, 2), (1, 0, 3), (0, 7, 4)]


def test_what_was_written_is_found_in_order(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        assert not len(folder.contents.sums)
        stored(folder, CHAIN[:2], PAGES[:2])
        folder.fence()
        stored(folder, CHAIN[2:], PAGES[2:])
    with opened(tmp_path) as again:
        assert again.report == OpenReport()
        assert places_of(again.contents) == PAGES and again.contents.nodes.number.tolist() == [1, 2, 3, 4]
        world = World(parents=dict(CHAIN), durable={(group, slot): node for group, slot, node in PAGES})
        world.judge(again)
        words = again.contents.nodes
        assert words.words.tolist() == changes(nodes=CHAIN).nodes.words.tolist() and len(words.words)
        assert words.word_at.tolist() == changes(nodes=CHAIN).nodes.word_at.tolist()


def test_freed_slots_are_free_and_their_blocks_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
        folder.record(changes(freed=[(1, 0), (0, 5)]))
        before = folder.manifest.size
        folder.fence()
        folder.manifest.compact()
        assert folder.manifest.size < before
    with opened(tmp_path) as again:
        assert places_of(again.contents) == [PAGES[1], PAGES[3]]
        assert again.contents.nodes.number.tolist() == [1, 2, 4], "1 is needed by 2, and nobody needs 3"
        assert not again.tier.known(0)[5]


def test_a_slot_written_again_belongs_to_the_later_page(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN[:1], PAGES[:1])
        stored(folder, CHAIN[3:], [(0, 5, 4)])
    with opened(tmp_path) as again:
        assert places_of(again.contents) == [(0, 5, 4)]


def test_a_page_whose_bytes_did_not_get_there_is_left_out(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        left = folder.record(changes(nodes=CHAIN, pages=PAGES[:1]))
        assert (left.group.tolist(), left.slot.tolist()) == ([0], [5])
    with opened(tmp_path) as again:
        assert places_of(again.contents) == []


def test_another_model_finds_nothing_and_loses_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as ours, opened(tmp_path, OTHER) as theirs:
        stored(ours, CHAIN, PAGES)
        stored(theirs, CHAIN[:1], PAGES[:1])
    with opened(tmp_path) as ours, opened(tmp_path, OTHER) as theirs:
        assert places_of(ours.contents) == PAGES and places_of(theirs.contents) == PAGES[:1]
    model_folder(tmp_path, OTHER).rename(tmp_path / bytes([1] * 32).hex())
    with pytest.raises(StateError, match="belongs to model 0000"):
        opened(tmp_path, bytes([1] * 32))


def test_one_owner_at_a_time_who_is_named(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(StateError, match=f"process {os.getpid()} on .* has it open"):
        opened(tmp_path)
    opened(tmp_path).close()


def test_folder_and_files_are_for_one_user(tmp_path: Path) -> None:
    opened(tmp_path / "new" / "deep").close()
    model = model_folder(tmp_path / "new" / "deep", FINGERPRINT)
    assert model.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in model.iterdir()} == {0o600}
    assert {path.name for path in model.iterdir()} == {"lock", "manifest", "durable", "pages-0", "pages-1"}


def test_an_unknown_format_is_refused_and_not_touched(tmp_path: Path) -> None:
    opened(tmp_path).close()
    model = model_folder(tmp_path, FINGERPRINT)
    raw = bytearray((model / NAME).read_bytes()[:HEAD_BYTES])
    raw[8] = 3
    (model / NAME).write_bytes(raw + bytes(5000))
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.name != "lock"}
    with pytest.raises(StateError, match="it has format 3, and this version reads 1 and 2"):
        opened(tmp_path)
    assert {path.name: path.read_bytes() for path in model.iterdir() if path.name != "lock"} == before
    (model / NAME).write_bytes(b"something else" * 100)
    with pytest.raises(StateError, match="it is not a manifest"):
        opened(tmp_path)


def test_a_manifest_of_our_format_without_a_sound_byte_is_started_again(tmp_path: Path) -> None:
    opened(tmp_path).close()
    log = model_folder(tmp_path, FINGERPRINT) / NAME
    for place in (100, HEAD_BYTES + 100, log.stat().st_size - 4):  # the head, its copy, the fence
        flip(log, place)
    with opened(tmp_path) as again:
        assert again.report.gaps and places_of(again.contents) == []
        stored(again, CHAIN, PAGES)
    with opened(tmp_path) as last:
        assert places_of(last.contents) == PAGES


def test_a_damaged_head_has_a_copy(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
    flip(model_folder(tmp_path, FINGERPRINT) / NAME, 9)
    with opened(tmp_path) as again:
        assert again.report.gaps == 1 and places_of(again.contents) == PAGES
    with opened(tmp_path) as mended:
        assert mended.report == OpenReport()


def test_a_damaged_record_loses_what_rests_on_it(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN[:1], PAGES[:1])
        start = folder.manifest.size
        stored(folder, CHAIN[1:2], PAGES[1:2])
        stored(folder, CHAIN[2:], PAGES[2:])
    flip(model_folder(tmp_path, FINGERPRINT) / NAME, start + 100)
    with opened(tmp_path) as again:
        assert (again.report.gaps, again.report.orphans) == (1, 1)
        assert places_of(again.contents) == [PAGES[0], PAGES[3]]


def test_a_page_that_moved_behind_a_damaged_record_is_there_once(tmp_path: Path) -> None:
    """The record that freed slot 5 is lost, and the page is in slot 6 by now."""
    with opened(tmp_path) as folder:
        stored(folder, CHAIN[:1], PAGES[:1])
        start = folder.manifest.size
        folder.record(changes(freed=[(0, 5)]))
        stored(folder, [], [(0, 6, 1)])
    flip(model_folder(tmp_path, FINGERPRINT) / NAME, start + 20)
    with opened(tmp_path) as again:
        assert places_of(again.contents) == [(0, 6, 1)]


def test_fewer_slots_lose_the_pages_beyond(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN, PAGES)
    smaller = DiskFolder(tmp_path, FINGERPRINT, PAGE_BYTES, (6, 0))
    assert smaller.report.beyond == 2 and places_of(smaller.contents) == PAGES[:2]
    smaller.close()
    with opened(tmp_path) as again:
        assert places_of(again.contents) == PAGES[:2] and again.report == OpenReport()


def test_other_page_sizes_are_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(StateError, match="another layout another fingerprint"):
        DiskFolder(tmp_path, FINGERPRINT, (96, 6000), NUM_SLOTS)


@pytest.mark.parametrize("eviction", ["lru", "release_order", "adaptive"])
def test_a_page_on_disk_takes_at_most_200_bytes_of_memory(eviction: Eviction) -> None:
    tiers = (TierConfig("device", 8), TierConfig("host", 8), TierConfig("disk", 1000, slow=True))
    assert page_index(CacheConfig(tiers, 16, max_length=64, eviction=eviction, lasting=True)) <= 200


def test_sizes_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="index may take"):
        opened(tmp_path, limits=DiskLimits(index_bytes=1000))
    pages = sum(NUM_SLOTS)
    with pytest.raises(InputError, match="longer blocks"):
        opened(tmp_path, limits=DiskLimits(index_bytes=300 * pages - 1, page_index=300))
    opened(tmp_path / "fits", limits=DiskLimits(index_bytes=300 * pages, page_index=300)).close()
    with pytest.raises(InputError, match="is the limit"):
        opened(tmp_path, limits=DiskLimits(disk_bytes=100_000))
    with pytest.raises(StateError, match=r"more would be needed, and 0\.001 MB are free"):
        opened(tmp_path, files=FaultyFiles(Faults(free_bytes=1000)))
    with pytest.raises(InputError, match="it has 5 bytes"):
        opened(tmp_path, b"short")
    fits = slots_for(1_000_000, PAGE_BYTES)
    DiskFolder(tmp_path, FINGERPRINT, PAGE_BYTES, (fits, fits), limits=DiskLimits(disk_bytes=1_000_000)).close()
    with pytest.raises(InputError, match="is the limit"):
        more = (fits + 1, fits + 1)
        DiskFolder(tmp_path, FINGERPRINT, PAGE_BYTES, more, limits=DiskLimits(disk_bytes=1_000_000))


def test_an_append_that_fails_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    faults = Faults()
    opened(tmp_path).close()
    with opened(tmp_path, files=FaultyFiles(faults)) as folder:
        stored(folder, CHAIN[:1], PAGES[:1])
        faults.write_errors[(NAME, folder.manifest.size + 60)] = errno.ENOSPC
        with pytest.raises(OSError, match="ENOSPC"):
            folder.record(changes(nodes=CHAIN[1:2]))
        faults.write_errors.clear()
        stored(folder, CHAIN[3:], PAGES[3:])
    with opened(tmp_path) as again:
        assert places_of(again.contents) == [PAGES[0], PAGES[3]] and again.report == OpenReport()


def test_a_compaction_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    faults = Faults()
    with opened(tmp_path, files=FaultyFiles(faults)) as folder:
        stored(folder, CHAIN, PAGES)
        folder.fence()
        faults.write_errors[(NEW_NAME, 600)] = errno.ENOSPC
        with pytest.raises(OSError, match="ENOSPC"):
            folder.manifest.compact()
        assert not (folder.folder / NEW_NAME).exists()
        folder.record(changes(freed=[(0, 7)]))
    with opened(tmp_path) as again:
        assert places_of(again.contents) == PAGES[:3]


def test_a_last_fence_that_fails_is_told(tmp_path: Path) -> None:
    faults = Faults()
    folder = opened(tmp_path, files=FaultyFiles(faults))
    stored(folder, CHAIN, PAGES)
    faults.sync_errors["pages-0"] = errno.EIO
    with pytest.raises(StateError, match="the last fence failed"):
        folder.close()
    folder.close()
    opened(tmp_path).close()  # the lock was given back


def test_appends_and_fences_while_it_compacts(tmp_path: Path) -> None:
    """The tail that is written meanwhile is the tail of the new file."""
    with opened(tmp_path) as folder:
        dice, world = np.random.default_rng(5), World()
        for _ in range(30):
            world.store(folder, dice)
            if dice.random() < 0.3:
                world.fence(folder)
            if dice.random() < 0.3:
                folder.manifest.compact()
        world.fence(folder)
    with opened(tmp_path) as again:
        assert again.report == OpenReport()
        world.judge(again)
        assert set(places_of(again.contents)) == {(group, slot, node) for (group, slot), node in world.pages.items()}


def test_many_blocks_are_cut_into_frames() -> None:
    told = changes(nodes=[(node, node - 1 or -1) for node in range(1, PIECE + 100)])
    many = replace(told, freed_group=np.zeros(PIECE + 5, np.int32), freed_slot=np.arange(PIECE + 5, dtype=np.int32))
    pieces = [unpack_changes(np.frombuffer(payload, np.uint8)) for payload in payloads(many, np.empty(0, np.uint64))]
    assert len(pieces) == 4 and all(piece is not None for piece in pieces)
    found = [piece.changes for piece in pieces if piece is not None]
    assert np.array_equal(np.concatenate([piece.freed_slot for piece in found]), many.freed_slot)
    assert np.array_equal(np.concatenate([piece.nodes.number for piece in found]), many.nodes.number)
    assert np.array_equal(np.concatenate([piece.nodes.tokens for piece in found]), many.nodes.tokens)
    assert np.array_equal(np.concatenate([piece.nodes.words for piece in found]), many.nodes.words)


def test_bytes_that_make_no_sense_are_no_changes() -> None:
    (sound,) = payloads(changes(nodes=CHAIN, pages=[]), np.empty(0, np.uint64))
    raw = np.frombuffer(sound, np.uint8)
    assert unpack_changes(raw) is not None
    assert unpack_changes(raw[:40]) is None and unpack_changes(raw[:-8]) is None
    wild = raw.copy()
    wild[24] += 1
    assert unpack_changes(wild) is None
    wild[:] = 255
    assert unpack_changes(wild) is None
    with pytest.raises(InputError, match="a checksum per page"):
        list(payloads(changes(nodes=CHAIN, pages=PAGES), np.empty(0, np.uint64)))


def test_a_log_that_was_cut_is_told_from_a_short_one(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        stored(folder, CHAIN[:1], PAGES[:1])
        folder.fence()
        whole = folder.manifest.size
        stored(folder, CHAIN[3:], PAGES[3:])
    with open(model_folder(tmp_path, FINGERPRINT) / NAME, "r+b") as log:
        log.truncate(whole)
    with opened(tmp_path) as again:
        assert again.report.gaps == 1 and places_of(again.contents) == PAGES[:1]
    (model_folder(tmp_path, FINGERPRINT) / MARK_NAME).write_bytes(b"nonsense" * 4)
    with opened(tmp_path) as again:
        assert places_of(again.contents) == PAGES[:1]


def test_without_xxhash_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['xxhash'] = None; import quire.tiers; import quire.tiers.disk"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "MissingExtra: a disk tier: it needs xxhash" in ran.stderr
    assert "pip install 'quire-kv[disk]'" in ran.stderr


@pytest.mark.parametrize("fences", [1, 2])
def test_a_process_that_dies_at_its_first_fence_leaves_the_mark_of_the_last_one(tmp_path: Path, fences: int) -> None:
    with opened(tmp_path) as folder:
        for _ in range(fences):
            folder.fence()
    path = model_folder(tmp_path, FINGERPRINT) / MARK_NAME
    raw = bytearray(path.read_bytes())
    numbers = [int.from_bytes(raw[start : start + 8], "little") for start in (0, 16)]
    newest = numbers.index(max(numbers))
    raw[16 * (1 - newest) + 8] ^= 1  # the process had begun to write the other place when it was killed
    path.write_bytes(raw)
    again = opened(tmp_path)
    assert again.report == OpenReport()
    again.fence()
    assert path.read_bytes()[16 * newest :][:16] == raw[16 * newest :][:16], "it would have been torn as well"
    again.close()


def test_a_mark_that_could_not_be_written_is_tried_again_in_its_place(tmp_path: Path) -> None:
    faults = Faults()
    with opened(tmp_path, files=FaultyFiles(faults)) as folder:
        folder.fence()
        path = model_folder(tmp_path, FINGERPRINT) / MARK_NAME
        before = path.read_bytes()
        newest = 0 if before[:8] > before[16:24] else 16  # small numbers, lowest byte first
        faults.write_errors = {(MARK_NAME, 16 - newest): errno.ENOSPC}
        with pytest.raises(OSError, match="ENOSPC"):
            folder.fence()
        faults.write_errors = {}
        folder.fence()
        after = path.read_bytes()
        assert after[newest:][:16] == before[newest:][:16] and after != before
