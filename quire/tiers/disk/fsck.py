"""Examine a folder of pages on disk: every record, every page. Owns what is called damage, how it is reported, and how
what is sound is kept. Reads and repairs; knows no cache and prints nothing.

note      what a crash leaves, and no more: an unfinished end of the log, pages that no fence covered
damage    what was on disk for certain and is not as it was
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, StateError, say
from quire.tiers.disk.calls.files import FOLDER_MODE, READ_ONLY_FILES, REAL_FILES
from quire.tiers.disk.calls.workers import DiskJob
from quire.tiers.disk.log.frames import ManifestHead
from quire.tiers.disk.log.manifest import NEW_NAME, Manifest
from quire.tiers.disk.log.manifest_contents import Contents
from quire.tiers.disk.log.mark import MARK_NAME
from quire.tiers.disk.log.read_manifest import NAME, ReadManifest, read_manifest
from quire.tiers.disk.pages.slots import WRONG, Failed, SlotFile, page_file
from quire.tiers.disk.ranks.rank import rank_folders
from quire.tiers.disk.ranks.ranked_tier import whole_sums
from quire.tiers.process import LOCK_NAME, FolderLock, reason

Tick = Callable[[int, int], None]  # pages looked at, of how many
AT_ONCE = 4096  # pages whose results are kept at a time


@dataclass(frozen=True, slots=True)
class DiskFinding:
    """One thing that is not as it should be."""

    kind: str
    text: str
    damage: bool


@dataclass(slots=True)
class ModelReport:
    """What was found of one model's pages."""

    fingerprint: str
    folder: Path
    num_pages: int = 0
    num_blocks: int = 0
    disk_bytes: int = 0
    refused: str = ""  # why it could not be examined
    repaired: bool = False
    findings: list[DiskFinding] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        """Whether anything that was on disk is lost."""
        return any(finding.damage for finding in self.findings)

    def note(self, kind: str, text: str) -> None:
        """Something that a crash explains."""
        self.findings.append(DiskFinding(kind, text, damage=False))

    def damage(self, kind: str, text: str) -> None:
        """Something that nothing explains."""
        self.findings.append(DiskFinding(kind, text, damage=True))


def model_folders(folder: Path) -> list[Path]:
    """The models in a folder; it may be one model's itself."""
    cure = "name one that a disk tier has used"
    try:
        if not folder.is_dir():
            raise InputError(say(f"folder {str(folder)!r}", "there is no such folder", cure))
        if _fingerprint(folder) is not None:
            return [folder]
        found = sorted(path for path in folder.iterdir() if path.is_dir() and _fingerprint(path) is not None)
    except OSError as error:
        raise InputError(say(f"folder {str(folder)!r}", reason(error), cure)) from error
    if not found:
        cure = "name a folder that has been used"
        raise InputError(say(f"folder {str(folder)!r}", "no model's pages are in it", cure))
    return found


def examine(folder: Path, repair: bool = False, tick: Tick = lambda done, total: None) -> ModelReport:
    """Look at every record and every page of one model; with `repair`, leave only what is sound, else write nothing."""
    fingerprint = _fingerprint(folder)
    assert fingerprint is not None, "of `model_folders`"
    report = ModelReport(fingerprint.hex(), folder)
    report.disk_bytes = sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))
    try:
        lock = FolderLock(folder, look=not repair)
    except StateError as taken:
        report.refused = str(taken)
        return report
    try:
        _examine(report, fingerprint, repair, tick)
    except StateError as unknown:
        report.refused = str(unknown)
    except OSError as error:
        report.refused = say(f"folder {str(folder)!r}", reason(error), "look at the disk and its permissions")
    finally:
        lock.close()
    return report


def _examine(report: ModelReport, fingerprint: bytes, repair: bool, tick: Tick) -> None:
    folder = report.folder
    _look_at_files(report)
    read = read_manifest(READ_ONLY_FILES, folder, fingerprint)
    if read is None:
        if _page_files(folder):
            report.damage("manifest", "there is no manifest, so what the pages are is unknown")
        return
    if read.head is None:
        report.damage("head", f"the manifest's first {read.size} bytes are damaged or cut; nothing in it can be used")
        kept, contents = np.zeros(0, bool), None
    else:
        contents = read.contents(read.head.pool_of)
        _look_at_log(report, read, contents)
        report.num_pages, report.num_blocks = len(contents.sums), len(contents.nodes.number)
        kept = _look_at_pages(report, contents, read.head, tick)
    if repair and report.findings:
        _repair(report, read, contents, kept)


def _look_at_files(report: ModelReport) -> None:
    known = {NAME, NEW_NAME, MARK_NAME, LOCK_NAME}
    ours = {report.folder, *rank_folders(report.folder), *_page_files(report.folder)}
    for path in [report.folder, *sorted(report.folder.rglob("*"))]:
        if path not in ours and path.name not in known:
            report.note("stranger", f"{path.name} is none of ours")
        elif path.lstat().st_mode & 0o077:
            report.damage("permissions", f"others may read {path.name}: mode {path.lstat().st_mode & 0o777:o}")
    if (report.folder / NEW_NAME).exists():
        report.note("leftover", "a compaction was not finished; what it began to write is of no use")


def _look_at_log(report: ModelReport, read: ReadManifest, contents: Contents) -> None:
    if read.head_damaged:
        report.damage("head", "the first 512 bytes of the manifest are damaged; the copy of them is sound")
    if read.mark is None:
        report.damage("mark", "the file that says how far the manifest was durable is damaged")
    if read.cut:
        report.damage("cut", "the manifest ends before records that were on disk: its end was cut off or is damaged")
    for gap in read.log.gaps:
        size = gap.end - gap.start
        missing = "" if gap.frames is None else f", {gap.frames} records"
        where = f"{size} bytes of the manifest from byte {gap.start} on{missing}"
        if gap.fenced:
            report.damage("record", f"{where}: damaged")
        else:
            report.note("unfinished", f"{where}: were being written when it ended")
    if contents.unreadable:
        report.damage("record", f"{contents.unreadable} records of the manifest make no sense")
    if contents.orphans:
        report.damage("orphans", f"{contents.orphans} pages belong to blocks whose records are lost")


def _look_at_pages(report: ModelReport, contents: Contents, head: ManifestHead, tick: Tick) -> NDArray[np.bool_]:
    """Read every page; which are sound."""
    pages, page_bytes = contents.pages, head.page_bytes
    kept = np.zeros(len(pages.slot), bool)
    done = 0
    for group in np.unique(pages.group).tolist():
        ours = np.flatnonzero(pages.group == group)
        ours = ours[np.argsort(pages.slot[ours], kind="stable")]
        if group >= len(page_bytes):
            report.damage("page", f"{len(ours)} pages of group {group}, and there are {len(page_bytes)} groups")
            continue
        file = page_file(head.pool_of[group])
        for places, failed in _verified(report.folder, file, page_bytes[group], (contents, ours)):
            for place in places.tolist():
                slot = int(pages.slot[place])
                kept[place] = slot not in failed
                if slot in failed:
                    _tell_page(report, group, slot, failed[slot], bool(contents.fenced[place]))
            done += len(places)
            tick(done, len(kept))
    return kept


def _verified(
    folder: Path, name: str, page_bytes: int, which: tuple[Contents, NDArray[np.intp]]
) -> Iterator[tuple[NDArray[np.intp], Failed]]:
    """Pages of a group in the order of the file, some at a time, and what is wrong with them."""
    contents, ours = which
    slots, ranks = contents.pages.slot[ours], rank_folders(folder)
    sizes = int(slots.max()) + 1, page_bytes // max(len(ranks), 1)
    with ExitStack() as opened:
        try:
            files = [READ_ONLY_FILES.open(place / name) for place in ranks or [folder]]
        except OSError as error:
            yield ours, dict.fromkeys(slots.tolist(), f"its file cannot be opened: {reason(error)}")
            return
        for file in files:
            opened.callback(file.close)
        parts = [SlotFile(file, *sizes, learns=bool(ranks)) for file in files]
        if not ranks:
            parts[0].learn(slots, contents.sums[ours])
        for start in range(0, len(ours), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            failed: Failed = {}
            for part in parts:
                for run in part.runs(slots[some].tolist()):
                    failed |= part.read([(slot, []) for slot in run], DiskJob(lambda job: None))
            if ranks:
                whole = whole_sums([part.sums[slots[some]] for part in parts], len(slots[some]))
                wrong_ones = slots[some][whole != contents.sums[ours[some]]].tolist()
                failed = dict.fromkeys(wrong_ones, WRONG) | failed
            yield ours[some], failed


def _tell_page(report: ModelReport, group: int, slot: int, why: str, fenced: bool) -> None:
    where = f"slot {slot} of group {group}: {why}"
    if fenced:
        report.damage("page", where)
    else:
        report.note("unfinished", f"{where}; it was being written when it ended")


def _repair(report: ModelReport, read: ReadManifest, contents: Contents | None, kept: NDArray[np.bool_]) -> None:
    """Leave what is sound, in a manifest of its own."""
    folder = report.folder
    folder.chmod(FOLDER_MODE)
    REAL_FILES.remove(folder / NEW_NAME)
    for rank in rank_folders(folder):
        rank.chmod(FOLDER_MODE)
    for path in _page_files(folder):
        file = REAL_FILES.open(path)  # which mends its permissions
        with suppress(OSError):
            file.sync()
        file.close()
    if read.head is None or contents is None:
        REAL_FILES.remove(folder / NAME)
        REAL_FILES.remove(folder / MARK_NAME)
        REAL_FILES.sync_folder(folder)
    else:
        manifest = Manifest(REAL_FILES, folder, read.head, read)
        manifest.rewrite(contents.only(kept))
        manifest.fence(lambda: None)  # the pages were synced above
        manifest.close()
        report.num_pages = int(np.count_nonzero(kept))
    report.repaired = True


def _page_files(folder: Path) -> list[Path]:
    return [path for place in (folder, *rank_folders(folder)) for path in sorted(place.glob("pages-*"))]


def _fingerprint(folder: Path) -> bytes | None:
    try:
        found = bytes.fromhex(folder.resolve().name)
    except ValueError:
        return None
    return found if len(found) == 32 else None
