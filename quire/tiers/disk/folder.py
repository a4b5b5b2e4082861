"""DiskFolder: one model's pages on disk, opened. Owns the way from a folder to a tier, a manifest and what was found in
them, and the lock. What it may take is `space.py`'s. Knows no cache.

    FOLDER/                       what the user named
        3f9c.../                  one model's: its fingerprint in hex, so that another model's pages stay what they are
            lock   manifest   durable   pages-0   pages-1 ...
            rank-0/   rank-1/ ...     instead of pages, where several ranks have a part of each (ranks/rank.py)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, StateError, say
from quire.core.records.lasting import LastingChanges, LastingPages
from quire.tiers.disk.calls.disk_watch import DiskWatch, WatchedFiles
from quire.tiers.disk.calls.files import NO_ROOM, REAL_FILES, Files, RealFiles, make_folder
from quire.tiers.disk.calls.opening import open_within
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.log.frames import ManifestHead
from quire.tiers.disk.log.manifest import EMPTY, NEW_NAME, Manifest
from quire.tiers.disk.log.manifest_contents import Contents, only
from quire.tiers.disk.log.mark import NO_MARK, read_mark
from quire.tiers.disk.log.read_manifest import ReadManifest, read_manifest
from quire.tiers.disk.pages.slots import Unanswered
from quire.tiers.disk.pages.tier import DiskIO, DiskTier
from quire.tiers.disk.ranks.rank import DiskRank
from quire.tiers.disk.ranks.ranked_tier import RankedTier
from quire.tiers.disk.space import DiskLimits, check_slots_index, check_space, slots_once
from quire.tiers.process import FolderLock, check_process, reason

_log = logging.getLogger("quire.tiers")
VERIFY_AT_ONCE = 1024  # pages


@dataclass(slots=True)
class OpenReport:
    """What was found when a folder was opened; all zero after a clean end."""

    unfinished: int = 0  # bytes at the end of the log that are not a whole record
    gaps: int = 0  # stretches of the log that are damaged, though a fence had covered them
    orphans: int = 0  # pages that were recorded under blocks which are lost
    unfenced: int = 0  # pages that no fence covered, and that turned out to be whole
    unwritten: int = 0  # pages that no fence covered, and whose bytes are not there
    beyond: int = 0  # pages in slots that there are no more
    missing: int = 0  # pages that a fence had covered, in files that are gone or end before them

    @property
    def damaged(self) -> bool:
        """Whether something is lost that was on disk for certain."""
        return bool(self.gaps or self.orphans or self.missing)


class DiskFolder:
    """One model's pages, for one process: `tier`, `manifest`, and `contents`: what they held when it was opened."""

    def __init__(
        self, folder: str | Path, fingerprint: bytes, page_bytes: Sequence[int], num_slots: Sequence[int], *,
        io: DiskIO | None = None, limits: DiskLimits | None = None, files: Files = REAL_FILES,
        ranks: Sequence[DiskRank] = (),
    ) -> None:  # fmt: skip
        """`ranks`: they have the pages, each its part, and here is the manifest; `page_bytes` are of whole pages."""
        limits, io = limits or DiskLimits(), io or DiskIO()
        head = ManifestHead(fingerprint, tuple(page_bytes), limits.pool_of)
        self.folder = model_folder(Path(folder), fingerprint)
        self.report = OpenReport()
        self.watch = DiskWatch(io.deadline)
        self._pid = os.getpid()
        self._freed = False  # slots were freed, and the disk may not have it yet
        self._first_of = np.array(head.pool_of, np.int32)
        check_slots_index(slots_once(num_slots, head.pool_of), limits)
        self._opened: ExitStack | None = open_within(
            self.watch, lambda: self._open(head, num_slots, (limits, io, files, ranks))
        )

    def _open(
        self, head: ManifestHead, num_slots: Sequence[int], how: tuple[DiskLimits, DiskIO, Files, Sequence[DiskRank]]
    ) -> ExitStack:
        limits, io, files, ranks = how
        watched, pools = WatchedFiles(files, self.watch), head.pool_of
        with ExitStack() as opened:
            if isinstance(files, RealFiles):
                make_folder(self.folder)
                opened.callback(FolderLock(self.folder).close)
            try:
                read = read_manifest(watched, self.folder, head.fingerprint)
                lost = read is None and read_mark(watched, self.folder, head.seed) != NO_MARK
                _check_pages(self.folder, read, head)
                check_space(watched, self.folder, head, num_slots, limits)
                watched.remove(self.folder / NEW_NAME)
                self.tier: DiskTier | RankedTier = (
                    _joined_tier(num_slots, head, ranks, self.watch)
                    if ranks
                    else DiskTier("disk", num_slots, head.page_bytes, self.folder, io=io, files=files, pool_of=pools)
                )
                opened.callback(self.tier.close)
                self.manifest = Manifest(watched, self.folder, head, read)
                opened.callback(self.manifest.close)
                self.contents = EMPTY if read is None else self._restore(read, pools)
                self.report.gaps += lost
                for names in (self.folder, self.folder.parent):  # an earlier process may have ended before it did so
                    watched.sync_folder(names)
            except OSError as error:
                raise StateError(say(f"folder {str(self.folder)!r}", reason(error), "look at the disk")) from error
            if self.report.damaged:
                _log.warning("folder %s: not all of it is there any more: %s", self.folder, self.report)
            return opened.pop_all()

    def record(self, changes: LastingChanges) -> LastingPages:
        """Put changes into the manifest; the pages that were left out: their bytes did not get there, or the manifest
        has their block no more.

        Requires: writes of these pages have ended. OSError: nothing was recorded.
        """
        check_process(self._pid, f"folder {str(self.folder)!r}")
        pages = changes.pages
        sums = np.zeros(len(pages.slot), np.uint64)
        sound = np.zeros(len(pages.slot), bool)
        for group in np.unique(pages.group).tolist():
            ours = pages.group == group
            sums[ours], sound[ours] = self.tier.sums(group, pages.slot[ours])
        freed = changes.freed_group, changes.freed_slot
        recorded = LastingChanges(*freed, changes.nodes, only(pages, sound))
        sound[sound] = self.manifest.append(recorded, sums[sound])
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
        check_process(self._pid, f"folder {str(self.folder)!r}")
        freed, self._freed = self._freed, False  # what is freed meanwhile is not covered
        try:
            self.manifest.fence(self.tier.sync)
        except BaseException:
            self._freed = self._freed or freed
            raise

    def close(self, fence: bool = True) -> None:
        """Make all of it durable and let go; again: nothing. StateError: the last pages may not be durable.

        In a fork of the process that opened it nothing is done: it is that one's.
        """
        if self._opened is None or os.getpid() != self._pid:
            return
        opened, self._opened = self._opened, None
        try:
            if fence:
                self.fence()
                self.manifest.sync()
        except OSError as error:
            fact = f"the last fence failed: {reason(error)}"
            raise StateError(say(f"folder {str(self.folder)!r}", fact, "look at the disk")) from error
        finally:
            opened.close()

    def __enter__(self) -> DiskFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _restore(self, read: ReadManifest, pool_of: Sequence[int]) -> Contents:
        """What is whole, known to the tier; the manifest says that and nothing else afterwards."""
        contents, report = read.contents(pool_of), self.report
        report.orphans = contents.orphans
        report.gaps = sum(gap.fenced for gap in read.log.gaps) + read.head_damaged + contents.unreadable + read.cut
        report.unfinished = sum(gap.end - gap.start for gap in read.log.gaps if not gap.fenced)
        slots = np.array([*self.tier.info().num_slots, 0])  # the last for groups that there are no more
        group = np.minimum(contents.pages.group, len(slots) - 1)
        kept = contents.pages.slot < slots[group]
        report.beyond = int(np.count_nonzero(~kept))
        for number in range(len(slots) - 1):
            self._restore_group(number, contents, kept)
        whole = contents if kept.all() else contents.only(kept)
        if report != OpenReport() or contents.dead:
            self.tier.sync()  # an earlier process may have left pages that no fence covers
            try:
                self.manifest.rewrite(whole)
            except OSError as full:
                if full.errno not in NO_ROOM or report.gaps or report.orphans:
                    raise
                self.manifest.clear(only(contents.pages, ~kept))  # in place, which needs no room
        return whole

    def _restore_group(self, group: int, contents: Contents, kept: NDArray[np.bool_]) -> None:
        """Which of its pages are there: those that a fence covers, unless their file has lost them, and others that
        turn out to be whole."""
        ours = np.flatnonzero(kept & (contents.pages.group == group))
        lost = self.tier.missing(group, contents.pages.slot[ours])
        kept[ours[lost]] = False
        fenced = contents.fenced[ours]
        self.report.missing += int(np.count_nonzero(lost & fenced))
        self.report.unwritten += int(np.count_nonzero(lost & ~fenced))
        here = ours[~lost]
        self.tier.learn(group, contents.pages.slot[here], contents.sums[here])
        doubtful = ours[~lost & ~fenced]
        bad = self._verify(group, contents.pages.slot[doubtful])
        kept[doubtful] &= ~bad
        self.tier.unlearn(group, contents.pages.slot[doubtful[bad]])
        self.report.unfenced += int(np.count_nonzero(~bad))
        self.report.unwritten += int(np.count_nonzero(bad))

    def _verify(self, group: int, slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        bad: set[int] = set()
        for start in range(0, len(slots), VERIFY_AT_ONCE):
            failed = self.tier.verify(group, slots[start : start + VERIFY_AT_ONCE].tolist())
            if late := [why for why in failed.values() if isinstance(why, Unanswered)]:
                raise TimeoutError(late[0])
            bad |= failed.keys()
        return np.isin(slots, list(bad))


def _joined_tier(
    num_slots: Sequence[int], head: ManifestHead, ranks: Sequence[DiskRank], watch: DiskWatch
) -> RankedTier:
    tier = RankedTier("disk", num_slots, ranks, head.pool_of, watch)
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
