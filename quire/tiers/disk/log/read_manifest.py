"""A manifest's file, read and not changed. Owns what is refused: another format, another model's. Knows no contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quire.core.records.errors import StateError, say
from quire.tiers.base import Bytes
from quire.tiers.disk.calls.files import Files, read_all
from quire.tiers.disk.log.frames import (
    FORMAT,
    HEAD,
    HEAD_BYTES,
    POOLED,
    Log,
    ManifestHead,
    format_of,
    scan,
    seed_of,
    unpack_head,
)  # fmt: skip
from quire.tiers.disk.log.manifest_contents import Contents, read_log
from quire.tiers.disk.log.mark import ReadMark, read_mark

NAME = "manifest"


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """A manifest's file, read and not changed: its head, None when damaged beyond use, and all that is sound."""

    head: ManifestHead | None
    head_damaged: bool
    log: Log
    size: int
    read_mark: ReadMark

    @property
    def mark(self) -> int | None:
        """Frames below this number were on disk; None: what says so is damaged."""
        return self.read_mark.number

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
    mark = read_mark(files, folder, seed_of(fingerprint))
    log = scan(raw, seed_of(fingerprint), HEAD_BYTES, mark.number or 0)
    start = raw[:HEAD_BYTES].tobytes()
    head = unpack_head(start)
    copies = [unpack_head(frame.payload.tobytes()) for frame in log.frames[:1] if frame.kind == HEAD]
    claimed = format_of(start)
    if head is None and not log.frames and len(raw) >= HEAD_BYTES and claimed not in (FORMAT, POOLED):
        known = f"{FORMAT} and {POOLED}"
        fact = "it is not a manifest" if claimed is None else f"it has format {claimed}, and this version reads {known}"
        cure = "open it with the version that wrote it, or name another folder; nothing was changed"
        raise StateError(say(f"manifest in {str(folder)!r}", fact, cure))
    found = head or next(iter(copies), None)
    if found is not None and found.fingerprint != fingerprint:
        fact = f"it belongs to model {found.fingerprint.hex()[:16]}"
        raise StateError(say(f"manifest in {str(folder)!r}", fact, "give the folder its name back"))
    return ReadManifest(found, head is None, log, len(raw), mark)
