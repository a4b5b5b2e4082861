"""Manifest: which page lies in which slot, as a log that is only appended to. Owns the file, the order to disk of its
frames, fences, and compaction. Knows no page's bytes: whoever appends a page has written it, and says its checksum.

    append ... append ... fence: sync the pages, sync the log, then a frame that says so      durable: before the last
    compact: a new file from what the last fence covers, the frames since then as they are; then it takes the name
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import StateError, say
from quire.core.records.lasting import LastingChanges, LastingPages
from quire.tiers.base import Bytes
from quire.tiers.disk.checksum import checksum
from quire.tiers.disk.files import File, Files, read_all, write_all
from quire.tiers.disk.known import KnownBlocks
from quire.tiers.disk.log.clear import clear_log, packed
from quire.tiers.disk.log.frames import (
    CHANGES,
    FENCE,
    FIRST_NUMBER,
    FORMAT,
    HEAD,
    HEAD_BYTES,
    POOLED,
    Log,
    ManifestHead,
    format_of,
    pack_fence,
    pack_frame,
    scan,
    seed_of,
    unpack_head,
)  # fmt: skip
from quire.tiers.disk.log.load import Contents, read_log
from quire.tiers.disk.log.records import NO_NODES, NO_PAGES, NO_SUMS, payloads, unpack_changes
from quire.tiers.disk.slots import Sums

NAME, NEW_NAME = "manifest", "manifest.new"
MARK_NAME = "durable"  # how far the log is on disk for certain; it tells a log that was cut from a short one
MARK_BYTES = 16
COPY_BYTES = 1 << 20  # what compaction copies at once while others append
EMPTY = Contents(NO_NODES, NO_PAGES, NO_SUMS, np.empty(0, bool), 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """A manifest's file, read and not changed: its head, None when damaged beyond use, and all that is sound."""

    head: ManifestHead | None
    head_damaged: bool
    log: Log
    size: int
    mark: int | None  # frames below this number were on disk; None: what says so is damaged
    mark_is_second: bool = False  # of its two places the second one says so

    @property
    def cut(self) -> bool:
        """Whether frames are missing at the end that were on disk."""
        last = self.log.frames[-1].number if self.log.frames else 0
        return self.mark is not None and last + 1 < self.mark

    def contents(self, pool_of: Sequence[int]) -> Contents:
        """What it says, of groups with such pools."""
        return read_log(self.log, pool_of)


def read_manifest(files: Files, folder: Path, fingerprint: bytes) -> ReadManifest | None:
    """Read the manifest of a model; None when there is none. A format that is not ours is a StateError."""
    try:
        file = files.open(folder / NAME)
    except FileNotFoundError:
        return None
    try:
        raw: Bytes = np.empty(file.size(), np.uint8)
        raw = raw[: read_all(file, 0, raw)]
    finally:
        file.close()
    mark, mark_is_second = _read_mark(files, folder, seed_of(fingerprint))
    log = scan(raw, seed_of(fingerprint), HEAD_BYTES, mark or 0)
    start = raw[:HEAD_BYTES].tobytes()
    head = unpack_head(start)
    copies = [unpack_head(frame.payload.tobytes()) for frame in log.frames[:1] if frame.kind == HEAD]
    claimed = format_of(start)
    if head is None and not log.frames and len(raw) >= HEAD_BYTES and claimed not in (FORMAT, POOLED):
        known = f"{FORMAT} and {POOLED}"
        fact = "it is no manifest" if claimed is None else f"it has format {claimed}, and this version reads {known}"
        cure = "open it with the version that wrote it, or name another folder; nothing was changed"
        raise StateError(say(f"manifest in {str(folder)!r}", fact, cure))
    found = head or next(iter(copies), None)
    if found is not None and found.fingerprint != fingerprint:
        fact = f"it belongs to model {found.fingerprint.hex()[:16]}"
        raise StateError(say(f"manifest in {str(folder)!r}", fact, "give the folder its name back"))
    return ReadManifest(found, head is None, log, len(raw), mark, mark_is_second)


class Manifest:
    """The open log of one model. Others may append and fence while one compacts."""

    def __init__(self, files: Files, folder: Path, head: ManifestHead, read: ReadManifest | None) -> None:
        """Go on behind what was read there; None: start an empty one. Whoever found damage rewrites it first."""
        self._files = files
        self._folder = folder
        self._head = head
        self._writing = Lock()  # guards all below
        self._swapping = Lock()  # held while the file is synced or replaced; taken before the other
        self._compacting = Lock()
        self.known = KnownBlocks()
        self._named: list[NDArray[np.int64]] | None = None  # what records name, while it is compacted
        self._marked = read is None or read.mark_is_second  # the second place of the mark has the last sound one
        try:
            self._mark = files.open(folder / MARK_NAME)
        except FileNotFoundError:
            self._mark = files.open(folder / MARK_NAME, create=True)
        if read is None:
            self._file = self._write_new(EMPTY, FIRST_NUMBER + 2)
            self._take_name(FIRST_NUMBER + 2)
            self._end = self._covered_end = self._file.size()
            self._number = self._covered = FIRST_NUMBER + 2
        else:
            self._file = files.open(folder / NAME)
            log = read.log
            self._end = log.end
            self._number = max(log.frames[-1].number + 1 if log.frames else 0, read.mark or 0, FIRST_NUMBER + 2)
            self._covered = log.covered
            covered = [frame.end for frame in log.frames if frame.number < log.covered]
            self._covered_end = max(covered, default=self._end)
        self._compact_end = self._end

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return self._end

    @property
    def grown(self) -> int:
        """Bytes that were appended since it was last compact."""
        return self._end - self._compact_end

    def append(self, changes: LastingChanges, sums: Sums) -> None:
        """Record changes. Requires: the pages were written, and have these checksums. OSError: none of it counts."""
        with self._writing:
            end, number, frames = self._end, self._number, []
            for payload in payloads(changes, sums):
                frames.append(np.frombuffer(pack_frame(number, CHANGES, payload, self._head.seed), np.uint8))
                number += 1
            write_all(self._file, end, frames)
            if self._named is not None:
                self._named.append(_names(changes))
            self._end, self._number = end + sum(map(len, frames)), number

    def sync(self) -> None:
        """All that was appended is on the disk."""
        with self._swapping:
            self._file.sync()

    def fence(self, sync_pages: Callable[[], None]) -> None:
        """Everything appended before is durable when this returns; OSError: it is not."""
        with self._writing:
            number, end = self._number, self._end
        sync_pages()
        self.sync()
        self._write_mark(number)
        with self._writing:
            frame = np.frombuffer(pack_frame(self._number, FENCE, pack_fence(number), self._head.seed), np.uint8)
            write_all(self._file, self._end, [frame])
            self._end += len(frame)
            self._number += 1
            self._covered, self._covered_end = number, end

    def compact(self) -> int:
        """Leave out what says nothing any more; bytes saved. Appends go on meanwhile. OSError: the old file stays.

        It does nothing, until it is tried again, when a record that came meanwhile names a block that was left out.
        """
        with self._compacting:
            with self._writing:
                covered, covered_end, end = self._covered, self._covered_end, self._end
                self._named = []
            try:
                raw: Bytes = np.empty(end, np.uint8)
                raw = raw[: read_all(self._file, 0, raw)]
                log = scan(raw, self._head.seed, HEAD_BYTES)
                tail = [frame for frame in log.frames if frame.start >= covered_end and frame.kind == CHANGES]
                told = [unpack_changes(frame.payload) for frame in tail]
                self._named += [_names(each.changes) for each in told if each is not None]
                before = [frame for frame in log.frames if frame.end <= covered_end]
                contents = read_log(Log(before, log.gaps, covered, covered_end), self._head.pool_of)
                return self._replace(contents, covered, covered_end)
            finally:
                with self._writing:  # somebody who appends has looked at it
                    self._named = None

    def clear(self, free: LastingPages) -> None:
        """As `compact`, and of these slots nothing is recorded; in place, so that it needs no room: what says nothing
        any more is zeros, on the disk. OSError: some of it may be left.

        Where the power fails meanwhile a frame may be damaged, and what rests on it is lost.
        """
        with self._compacting, self._swapping, self._writing:
            raw: Bytes = np.empty(self._end, np.uint8)
            raw = raw[: read_all(self._file, 0, raw)]
            contents, changed = clear_log(scan(raw, self._head.seed, HEAD_BYTES), free, self._head.pool_of)
            self.known.compacted(contents.nodes.number, contents.last_number)
            for frame in changed:
                write_all(self._file, frame.start, [np.frombuffer(packed(frame, self._head.seed), np.uint8)])
            if self._file.size() > self._end:  # of a write that there was no room for
                self._file.resize(self._end)
            self._file.sync()

    def rewrite(self, contents: Contents) -> None:
        """Start again with these pages only. Requires: they are on the disk, and nobody appends meanwhile."""
        self._replace(contents, self._number, self._end)

    def close(self) -> None:
        """Let go of the file."""
        with self._swapping, self._writing:
            self._file.close()
            self._mark.close()

    def _replace(self, contents: Contents, number: int, tail: int) -> int:
        """A new file with these contents, and behind them the old file's bytes from `tail` on."""
        new = self._write_new(contents, number)
        try:
            compact = end = new.size()
            while self._end - tail > COPY_BYTES:
                tail, end = self._copy(new, end, tail, COPY_BYTES)
            new.sync()
            with self._swapping, self._writing:
                if not self._still_named(contents):
                    self._discard(new)
                    return 0
                tail, end = self._copy(new, end, tail, self._end - tail)
                new.sync()
                self._take_name(max(self._covered, number))
                old, self._file = self._file, new
                saved, self._end, self._compact_end = tail - end, end, compact
                self._covered = max(self._covered, number)
                self._covered_end = max(self._covered_end - saved, compact)
                self.known.compacted(contents.nodes.number, contents.last_number)
                old.close()
        except BaseException:
            self._discard(new)
            raise
        return saved

    def _still_named(self, contents: Contents) -> bool:
        """Whether every block that records since the fence name is among those kept, or came later itself."""
        named = np.concatenate([np.empty(0, np.int64), *(self._named or ())])
        after = KnownBlocks()
        after.compacted(contents.nodes.number, contents.last_number)
        return bool(after.has(named).all())

    def _write_mark(self, number: int) -> None:
        """In the place that has not the last sound one: a process that dies meanwhile leaves the other."""
        raw = number.to_bytes(8, "little")
        raw += checksum(raw, self._head.seed).to_bytes(8, "little")
        second = not self._marked
        write_all(self._mark, MARK_BYTES * second, [np.frombuffer(raw, np.uint8)])
        self._marked = second

    def _copy(self, new: File, end: int, tail: int, size: int) -> tuple[int, int]:
        raw: Bytes = np.empty(size, np.uint8)
        raw = raw[: read_all(self._file, tail, raw)]
        write_all(new, end, [raw])
        return tail + len(raw), end + len(raw)

    def _write_new(self, contents: Contents, number: int) -> File:
        """A new file under another name, on the disk: the frame behind it will have this number."""
        nothing = NO_PAGES.group, NO_PAGES.slot
        changes = LastingChanges(*nothing, contents.nodes, contents.pages)
        bodies: Iterable[bytes] = payloads(changes, contents.sums) if len(contents.sums) else ()
        said = [(HEAD, self._head.pack()), *((CHANGES, body) for body in bodies), (FENCE, pack_fence(number - 1))]
        first = number - len(said)
        file = self._files.open(self._folder / NEW_NAME, create=True)
        try:
            end = 0
            frames = (pack_frame(first + nth, kind, body, self._head.seed) for nth, (kind, body) in enumerate(said))
            for part in (self._head.pack(), *frames):
                write_all(file, end, [np.frombuffer(part, np.uint8)])
                end += len(part)
            file.sync()
        except BaseException:
            self._discard(file)
            raise
        return file

    def _discard(self, new: File) -> None:
        new.close()
        with suppress(OSError):
            self._files.remove(self._folder / NEW_NAME)

    def _take_name(self, number: int) -> None:
        """The new file is the manifest, and frames below the number are on disk."""
        self._files.replace(self._folder / NEW_NAME, self._folder / NAME)
        self._files.sync_folder(self._folder)
        self._write_mark(number)


def _read_mark(files: Files, folder: Path, seed: int) -> tuple[int | None, bool]:
    """The newest sound mark, None where there should be one; and whether it is in the second place."""
    try:
        file = files.open(folder / MARK_NAME)
    except FileNotFoundError:
        return 0, True
    try:
        raw: Bytes = np.zeros(2 * MARK_BYTES, np.uint8)
        size = read_all(file, 0, raw)
    finally:
        file.close()
    halves = [raw[start : start + MARK_BYTES].tobytes() for start in (0, MARK_BYTES)]
    sound = [
        (int.from_bytes(half[:8], "little"), second)
        for half, second in zip(halves, (False, True), strict=True)
        if checksum(half[:8], seed) == int.from_bytes(half[8:], "little")
    ]
    if not sound and size > MARK_BYTES:
        return None, True
    return max(sound, default=(0, True))


def _names(changes: LastingChanges) -> NDArray[np.int64]:
    """Numbers of the blocks that a record rests on."""
    return np.concatenate([changes.pages.node, changes.nodes.parent[changes.nodes.parent > 0]])
