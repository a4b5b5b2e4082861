"""DiskFolder: one model's pages on disk, opened. Owns the way from a folder to a tier, a manifest and what was found in
them; the lock, the sizes and what they may be. Knows no cache.

    FOLDER/                       what the user named
        3f9c.../                  one model's: its fingerprint in hex, so that another model's pages stay what they are
            lock   manifest   durable   pages-0   pages-1 ...
            rank-0/   rank-1/ ...     instead of pages, where several ranks have a part of each (ranks/rank.py)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, StateError, say
from quire.core.records.lasting import LastingChanges, LastingPages
from quire.core.records.reports.index_size import index_size
from quire.tiers.disk.files import REAL_FILES, Files, RealFiles, make_folder, reason
from quire.tiers.disk.log.frames import ManifestHead
from quire.tiers.disk.log.load import Contents, only
from quire.tiers.disk.log.manifest import EMPTY, NEW_NAME, Manifest
from quire.tiers.disk.log.read import ReadManifest, read_manifest
from quire.tiers.disk.owner import FolderLock, model_folder
from quire.tiers.disk.ranks.rank import DiskRank
from quire.tiers.disk.ranks.ranked_tier import RankedTier
from quire.tiers.disk.slots import page_file, slot_bytes
from quire.tiers.disk.tier import DiskIO, DiskTier

INDEX_BYTES = 200  # of memory per page on disk: its block, its tokens, its place; with blocks of 16 tokens
CHECKSUM_BYTES = 9 + 4  # of memory per page: its sum, and its block's number after the log was compacted
MANIFEST_BYTES = 256  # of disk per page, at most, with a block of 16 tokens: twice, while it is compacted
VERIFY_AT_ONCE = 1024  # pages


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """What a folder may take; None: as much as the slots ask for, or half of the memory that is free.

    `page_index`: memory that one page takes in the cache (`index_size(config).page`), and here. `pool_of`: by group the
    number of its pool (`CacheConfig.pool_of`), as groups of one pool have their slots together; (): none have.
    """

    disk_bytes: int | None = None
    index_bytes: int | None = None
    page_index: int = INDEX_BYTES
    pool_of: tuple[int, ...] = ()


@dataclass(slots=True)
class OpenReport:
    """What was found when a folder was opened; all zero after a clean end."""

    unfinished: int = 0  # bytes at the end of the log that are no whole record
    gaps: int = 0  # stretches of the log that are damaged, though a fence had covered them
    orphans: int = 0  # pages that were recorded under blocks which are lost
    unfenced: int = 0  # pages that no fence covered, and that turned out to be whole
    unwritten: int = 0  # pages that no fence covered, and whose bytes are not there
    beyond: int = 0  # pages in slots that there are no more


def slots_for(disk_bytes: int, page_bytes: Sequence[int]) -> int:
    """How many slots per layer group fit into so many bytes, manifest included."""
    each = sum(slot_bytes(size) for size in page_bytes) + MANIFEST_BYTES * len(page_bytes)
    return max(0, disk_bytes // each)


def page_index(config: CacheConfig) -> int:
    """Memory that a page on disk takes, in such a cache and here, at most."""
    return index_size(config).page + CHECKSUM_BYTES


class DiskFolder:
    """One model's pages, for one process: `tier`, `manifest`, and `contents`: what they held when it was opened."""

    def __init__(
        self, folder: str | Path, fingerprint: bytes, page_bytes: Sequence[int], num_slots: Sequence[int], *,
        io: DiskIO | None = None, limits: DiskLimits | None = None, files: Files = REAL_FILES,
        ranks: Sequence[DiskRank] = (),
    ) -> None:  # fmt: skip
        """`ranks`: they have the pages, each its part, and here is the manifest; `page_bytes` are of whole pages."""
        limits = limits or DiskLimits()
        head = ManifestHead(fingerprint, tuple(page_bytes), limits.pool_of)
        self.folder = model_folder(Path(folder), fingerprint)
        self.report = OpenReport()
        self._freed = False  # slots were freed, and the disk may not have it yet
        self._first_of = np.array(head.pool_of, np.int32)
        _check_index(_once(num_slots, head.pool_of), limits)
        with ExitStack() as opened:
            if isinstance(files, RealFiles):
                make_folder(self.folder)
                opened.callback(FolderLock(self.folder).close)
            try:
                read = read_manifest(files, self.folder, fingerprint)
                _check_pages(self.folder, read, head)
                _check_space(files, self.folder, head, num_slots, limits)
                files.remove(self.folder / NEW_NAME)
                self.tier: DiskTier | RankedTier = (
                    _joined_tier(num_slots, head, ranks)
                    if ranks
                    else DiskTier("disk", num_slots, page_bytes, self.folder, io=io, files=files, pool_of=head.pool_of)
                )
                opened.callback(self.tier.close)
                self.manifest = Manifest(files, self.folder, head, read)
                opened.callback(self.manifest.close)
                self.contents = self._restore(read, head)
                for names in (self.folder, self.folder.parent):  # an earlier process may have ended before it did so
                    files.sync_folder(names)
            except OSError as wrong:
                raise StateError(say(f"folder {str(self.folder)!r}", reason(wrong), "look at the disk")) from wrong
            self._opened: ExitStack | None = opened.pop_all()

    def record(self, changes: LastingChanges) -> LastingPages:
        """Put changes into the manifest; the pages that were left out: their bytes did not get there, or the manifest
        has their block no more.

        Requires: writes of these pages have ended. OSError: nothing was recorded.
        """
        pages = changes.pages
        sums = np.zeros(len(pages.slot), np.uint64)
        sound = np.zeros(len(pages.slot), bool)
        for group in np.unique(pages.group).tolist():
            ours = pages.group == group
            sums[ours], sound[ours] = self.tier.sums(group, pages.slot[ours])
        freed = changes.freed_group, changes.freed_slot
        told = LastingChanges(*freed, changes.nodes, only(pages, sound))
        sound[sound] = self.manifest.append(told, sums[sound])
        self._freed = self._freed or len(changes.freed_slot) > 0
        freed_pool, page_pool = self._first_of[changes.freed_group], self._first_of[pages.group]
        for pool in np.unique(freed_pool).tolist():  # where another page is by now, of whatever group, it stays known
            freed_now = changes.freed_slot[freed_pool == pool]
            self.tier.unlearn(pool, freed_now[~np.isin(freed_now, pages.slot[page_pool == pool])])
        return only(pages, ~sound)

    def before_writing(self) -> None:
        """What was freed is freed on the disk too. Call it after `record` and before slots are written again.

        So a record on disk never speaks of bytes that something else has replaced, wherever the power fails.
        """
        if self._freed:
            self._freed = False
            try:
                self.manifest.sync()
            except BaseException:
                self._freed = True
                raise

    def fence(self) -> None:
        """All that was recorded is durable when this returns; OSError: it is not."""
        freed, self._freed = self._freed, False  # what is freed meanwhile is not covered
        try:
            self.manifest.fence(self.tier.sync)
        except BaseException:
            self._freed = self._freed or freed
            raise

    def close(self) -> None:
        """Make all of it durable and let go; again: nothing. StateError: the last pages may not be durable."""
        if self._opened is None:
            return
        opened, self._opened = self._opened, None
        try:
            self.fence()
            self.manifest.sync()
        except OSError as wrong:
            fact = f"the last fence failed: {reason(wrong)}"
            raise StateError(say(f"folder {str(self.folder)!r}", fact, "look at the disk")) from wrong
        finally:
            opened.close()

    def __enter__(self) -> DiskFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _restore(self, read: ReadManifest | None, head: ManifestHead) -> Contents:
        """What is whole, known to the tier; the manifest says that and nothing else afterwards."""
        if read is None:
            return EMPTY
        contents, report = read.contents(head.pool_of), self.report
        report.orphans = contents.orphans
        report.gaps = sum(gap.fenced for gap in read.log.gaps) + read.head_damaged + contents.unreadable + read.cut
        report.unfinished = sum(gap.end - gap.start for gap in read.log.gaps if not gap.fenced)
        slots = np.array([*self.tier.info().num_slots, 0])  # the last for groups that there are no more
        group = np.minimum(contents.pages.group, len(slots) - 1)
        kept = contents.pages.slot < slots[group]
        report.beyond = int(np.count_nonzero(~kept))
        for number in range(len(slots) - 1):
            ours = kept & (contents.pages.group == number)
            self.tier.learn(number, contents.pages.slot[ours], contents.sums[ours])
            doubtful = np.flatnonzero(ours & ~contents.fenced)
            bad = self._verify(number, contents.pages.slot[doubtful])
            kept[doubtful] &= ~bad
            self.tier.unlearn(number, contents.pages.slot[doubtful[bad]])
            report.unfenced += int(np.count_nonzero(~bad))
            report.unwritten += int(np.count_nonzero(bad))
        if not kept.all():
            contents = contents.only(kept)
        if report != OpenReport() or contents.dead:
            self.tier.sync()  # an earlier process may have left pages that no fence covers
            self.manifest.rewrite(contents)
        return contents

    def _verify(self, group: int, slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        bad: set[int] = set()
        for start in range(0, len(slots), VERIFY_AT_ONCE):
            bad |= self.tier.verify(group, slots[start : start + VERIFY_AT_ONCE].tolist()).keys()
        return np.isin(slots, list(bad))


def check_index(config: CacheConfig) -> None:
    """Refuse a slow tier whose index may not fit into half of the free memory. Ask before the cache takes it."""
    slots = [config.tiers[-1].of_pool(pool) for pool in range(config.num_pools)]
    _check_index(slots, DiskLimits(page_index=page_index(config)))


def _check_index(num_slots: Sequence[int], limits: DiskLimits) -> None:
    need = limits.page_index * sum(num_slots)
    have = limits.index_bytes if limits.index_bytes is not None else _free_memory() // 2
    if need > have:
        fact = f"their index may take {_size(need)} of memory, and {_size(have)} may be used for it"
        raise InputError(say(f"{sum(num_slots)} pages on disk", fact, "use less disk, or longer blocks"))


def _once(num_slots: Sequence[int], pool_of: Sequence[int]) -> list[int]:
    """By group, those of a pool with its first group alone."""
    return [slots if pool_of[group] == group else 0 for group, slots in enumerate(num_slots)]


def _joined_tier(num_slots: Sequence[int], head: ManifestHead, ranks: Sequence[DiskRank]) -> RankedTier:
    tier = RankedTier("disk", num_slots, ranks, head.pool_of)
    sizes = tier.info().page_bytes
    if sizes != head.page_bytes:
        fact = f"their parts make pages of {list(sizes)} bytes, and {list(head.page_bytes)} were asked for"
        raise InputError(say(f"a disk of {len(ranks)} ranks", fact, "give the ranks of one model"))
    return tier


def _check_pages(folder: Path, read: ReadManifest | None, head: ManifestHead) -> None:
    if read is not None and read.head is not None and read.head.page_bytes != head.page_bytes:
        fact = f"it has pages of {list(read.head.page_bytes)} bytes, and {list(head.page_bytes)} were asked for"
        raise StateError(say(f"folder {str(folder)!r}", fact, "give another layout another fingerprint"))
    if read is not None and read.head is not None and read.head.pool_of != head.pool_of:
        fact = f"its groups have the pools {list(read.head.pool_of)}, and {list(head.pool_of)} were asked for"
        cure = "share the same pools as before, or use another folder; nothing was changed"
        raise StateError(say(f"folder {str(folder)!r}", fact, cure))


def _check_space(files: Files, folder: Path, head: ManifestHead, num_slots: Sequence[int], limits: DiskLimits) -> None:
    num_slots = _once(num_slots, head.pool_of)
    sizes = [slots * slot_bytes(size) for slots, size in zip(num_slots, head.page_bytes, strict=True)]
    total = sum(sizes) + MANIFEST_BYTES * sum(num_slots)
    if limits.disk_bytes is not None and total > limits.disk_bytes:
        fact = f"slots and manifest take {_size(total)}, and {_size(limits.disk_bytes)} is the limit"
        raise InputError(say(f"{sum(num_slots)} pages on disk", fact, "give it fewer slots or more disk"))
    there = sum(min(size, _size_of(files, folder / page_file(group))) for group, size in enumerate(sizes))
    free = files.free_bytes(folder)
    if total - there > free:
        fact = f"{_size(total - there)} more would be needed, and {_size(free)} are free"
        cure = "use less, or delete what other models left there: `quire fsck` lists it"
        raise StateError(say(f"folder {str(folder.parent)!r}", fact, cure))


def _size_of(files: Files, path: Path) -> int:
    try:
        file = files.open(path)
    except FileNotFoundError:
        return 0
    try:
        return file.size()
    finally:
        file.close()


def _free_memory() -> int:
    """Bytes that this machine could still use, as far as it tells."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 10**8 else f"{num_bytes / 1e6:.3g} MB"
