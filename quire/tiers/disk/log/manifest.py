"""Manifest: which page lies in which slot, as a log that is only appended to. Owns the file, the order to disk of its
frames, fences, and compaction. Knows no page's bytes: the caller has written a page before it appends it, and gives its
checksum.

    append ... append ... fence: sync the pages, sync the log, then a frame that says so      durable: before the last
    compact: a new file from what the last fence covers, the frames since then as they are; then it takes the name

Where a fence ends is kept as a place in the whole log, as if nothing had ever been left out (`_base` bytes have been):
a compaction may replace the file between the beginning and the end of a fence.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import say
from quire.core.records.lasting import LastingChanges, LastingPages
from quire.tiers.base import Bytes
from quire.tiers.disk.calls.files import File, Files, read_all, write_all
from quire.tiers.disk.log.clear import clear_log, packed
from quire.tiers.disk.log.frames import (
    CHANGES,
    FENCE,
    FIRST_NUMBER,
    HEAD,
    HEAD_BYTES,
    Log,
    ManifestHead,
    pack_fence,
    pack_frame,
    scan,
    unpack_head,
)  # fmt: skip
from quire.tiers.disk.log.known import KnownBlocks
from quire.tiers.disk.log.manifest_contents import Contents, only, read_log, some_nodes
from quire.tiers.disk.log.mark import DurableMark
from quire.tiers.disk.log.read_manifest import NAME, ReadManifest
from quire.tiers.disk.log.records import NO_NODES, NO_PAGES, NO_SUMS, payloads, unpack_changes
from quire.tiers.disk.pages.slots import Sums

NEW_NAME = "manifest.new"
COPY_BYTES = 1 << 20  # what compaction copies at once while others append
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
EMPTY = Contents(NO_NODES, NO_PAGES, NO_SUMS, np.empty(0, bool), 0, 0, 0, 0)


class DamagedLog(OSError):
    """The file is not what was written to it: another process has cut or overwritten it while it was open."""


class Manifest:
    """The open log of one model. One thread may append while others fence and compact."""

    def __init__(self, files: Files, folder: Path, head: ManifestHead, read: ReadManifest | None) -> None:
        """Go on behind what was read there; None: start an empty one. A caller that found damage rewrites it first."""
        self._files = files
        self._folder = folder
        self._head = head
        self._writing = Lock()  # guards all below
        self._swapping = Lock()  # held while the file is synced or replaced; taken before the other
        self._compacting = Lock()  # taken before both
        self._known = KnownBlocks()
        self._since: _Since | None = None  # what records say, while it is compacted
        self._base = 0  # bytes of the whole log that compaction has left out before this file
        self._unsynced: OSError | None = None  # why the name of the file may not be on the disk
        self._mark = DurableMark(files, folder, head.seed, read.read_mark if read is not None else None)
        if read is None:
            self._file = self._write_new(EMPTY, FIRST_NUMBER + 2)
            self._files.replace(folder / NEW_NAME, folder / NAME)
            self._sync_name(FIRST_NUMBER + 2)
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

    @property
    def index_bytes(self) -> int:
        """Memory that knowing its blocks takes."""
        return self._known.index_bytes

    def append(self, changes: LastingChanges, sums: Sums) -> Mask:
        """Record changes; which pages could be recorded: those whose block it has. OSError: none of it counts.

        Requires: the pages were written, and have these checksums.
        """
        with self._writing:  # from the look at what is known on: compaction may leave out a block at any other time
            nodes = some_nodes(changes.nodes, self._known.take(changes.nodes))
            named = self._known.has(changes.pages.node)
            recorded = LastingChanges(changes.freed_group, changes.freed_slot, nodes, only(changes.pages, named))
            if named.any() or len(recorded.freed_slot) or len(nodes.number):
                self._write(CHANGES, payloads(recorded, sums[named]))
                if self._since is not None:
                    self._since.add(recorded)
            return named

    def sync(self) -> None:
        """All that was appended is on the disk."""
        with self._swapping:
            self._sync()

    def fence(self, sync_pages: Callable[[], None]) -> None:
        """Everything appended before is durable when this returns; OSError: it is not."""
        with self._writing:
            number, end = self._number, self._base + self._end
        sync_pages()
        with self._swapping:
            self._sync()
            self._mark.write(number)
            with self._writing:
                self._write(FENCE, [pack_fence(number)])
                if number > self._covered:
                    self._covered, self._covered_end = number, end - self._base

    def compact(self) -> int:
        """Leave out what says nothing any more; bytes saved. Appends go on meanwhile. OSError: the old file stays.

        It does nothing, until it is tried again, when a record that came meanwhile names a block that was left out.
        """
        with self._compacting:
            with self._writing:
                covered, covered_end, end = self._covered, self._covered_end, self._end
                self._since = _Since()
            try:
                log = self._whole_log(end)
                for frame in log.frames:
                    recorded = unpack_changes(frame.payload) if frame.kind == CHANGES else None
                    if recorded is not None and frame.start >= covered_end:
                        self._since.add(recorded.changes)
                before = [frame for frame in log.frames if frame.end <= covered_end]
                contents = read_log(Log(before, [], covered, covered_end), self._head.pool_of)
                return self._replace(contents, covered, covered_end)
            finally:
                with self._writing:  # the thread that appends has looked at it
                    self._since = None

    def clear(self, free: LastingPages) -> None:
        """As `compact`, and of these slots nothing is recorded; in place, so that it needs no room: what says nothing
        any more is zeros, on the disk. OSError: some of it may be left.

        Where the power fails meanwhile a frame may be damaged, and what rests on it is lost.
        """
        with self._compacting, self._swapping, self._writing:
            contents, changed = clear_log(self._whole_log(self._end), free, self._head.pool_of)
            self._known.compacted(contents.nodes.number, contents.last_number)
            for frame in changed:
                write_all(self._file, frame.start, [np.frombuffer(packed(frame, self._head.seed), np.uint8)])
            self._cut_rest()
            self._file.sync()

    def rewrite(self, contents: Contents) -> None:
        """Start again with these pages only. Requires: they are on the disk, and nothing is appended meanwhile."""
        self._replace(contents, self._number, self._end)

    def close(self) -> None:
        """Let go of the file."""
        with self._swapping, self._writing:
            self._file.close()
            self._mark.close()

    def _write(self, kind: int, bodies: Iterable[bytes]) -> None:
        """Frames behind the last one. Requires: the lock is held."""
        frames, number = [], self._number
        for body in bodies:
            frames.append(np.frombuffer(pack_frame(number, kind, body, self._head.seed), np.uint8))
            number += 1
        self._check_size()
        try:
            write_all(self._file, self._end, frames)
        except OSError:
            with suppress(OSError):  # else frames that do not count could show behind the next ones
                self._cut_rest()
            raise
        self._end, self._number = self._end + sum(map(len, frames)), number

    def _cut_rest(self) -> None:
        if self._file.size() > self._end:  # of a write that there was no room for
            self._file.resize(self._end)

    def _sync(self) -> None:
        """Requires: the file is not replaced meanwhile."""
        if self._unsynced is not None:
            raise self._unsynced
        self._check_size()
        self._file.sync()

    def _check_size(self) -> None:
        size = self._file.size()
        if size < self._end:
            raise self._damaged(f"it has {size} bytes, and {self._end} were written")

    def _damaged(self, fact: str) -> DamagedLog:
        cure = "see who writes to it; `quire fsck` says what is left"
        ask = f"manifest in {str(self._folder)!r}"
        return DamagedLog(errno.EIO, say(ask, f"it was changed while it was open: {fact}", cure))

    def _whole_log(self, end: int) -> Log:
        """The log up to there, as it was written: what is damaged is not written anew as if it had never been there."""
        raw = self._read(0, end)
        log = scan(raw, self._head.seed, HEAD_BYTES)
        if log.gaps or log.end != end or unpack_head(raw[:HEAD_BYTES].tobytes()) is None:
            places = [gap.start for gap in log.gaps]
            raise self._damaged(f"no record is at byte {min([*places, log.end]) if log.frames else 0}")
        return log

    def _read(self, start: int, size: int) -> Bytes:
        raw: Bytes = np.empty(size, np.uint8)
        got = read_all(self._file, start, raw)
        if got < size:
            raise self._damaged(f"it has {start + got} bytes, and {start + size} were written")
        return raw

    def _replace(self, contents: Contents, number: int, tail: int) -> int:
        """A new file with these contents, and behind them the old file's bytes from `tail` on."""
        new = self._write_new(contents, number)
        renamed = False
        try:
            compact = end = new.size()
            while self._end - tail > COPY_BYTES:
                tail, end = self._copy(new, end, tail, COPY_BYTES)
            new.sync()
            with self._swapping, self._writing:
                since = self._since or _Since()
                if not since.named_in(contents.nodes.number, contents.last_number):
                    self._discard(new)
                    return 0
                tail, end = self._copy(new, end, tail, self._end - tail)
                new.sync()
                self._files.replace(self._folder / NEW_NAME, self._folder / NAME)
                old, self._file, renamed = self._file, new, True  # whatever fails now: it has the name
                saved, self._end, self._compact_end = tail - end, end, compact
                self._base += saved
                self._covered = max(self._covered, number)
                self._covered_end = max(self._covered_end - saved, compact)
                self._known.compacted(contents.nodes.number, contents.last_number)
                old.close()
                self._sync_name(self._covered)
        except BaseException:
            if not renamed:
                self._discard(new)
            raise
        return saved

    def _copy(self, new: File, end: int, tail: int, size: int) -> tuple[int, int]:
        write_all(new, end, [self._read(tail, size)])
        return tail + size, end + size

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

    def _sync_name(self, number: int) -> None:
        """The file that has just been given the name has it on the disk too; frames below the number are there."""
        try:
            self._files.sync_folder(self._folder)
        except OSError as error:  # a power cut may bring the old file back: nothing that follows is durable
            self._unsynced = error
            raise
        self._mark.write(number)


class _Since:
    """Blocks that records rest on, of those since the fence from which a log is compacted.

    A block that was recorded again among them does not count: a record may have named it before that, and the next
    compaction may begin between the two.
    """

    def __init__(self) -> None:
        self._named: list[Numbers] = []

    def add(self, changes: LastingChanges) -> None:
        """A record."""
        self._named += [changes.pages.node, changes.nodes.parent[changes.nodes.parent > 0]]

    def named_in(self, known: Numbers, last_number: int) -> bool:
        """Whether every one of them is among these, or came later itself."""
        after = KnownBlocks()
        after.compacted(known, last_number)
        return bool(after.has(np.concatenate([np.empty(0, np.int64), *self._named])).all())
