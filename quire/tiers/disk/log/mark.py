"""DurableMark: a small file beside the manifest that says how far its log is on disk, so that a cut log
does not pass for a short one. Owns its two places and which of them is written next; knows no frames.

    [ number, checksum ][ number, checksum ]      written in turns: a process that dies meanwhile leaves the other
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from quire.tiers.base import Bytes
from quire.tiers.disk.calls.files import Files, read_all, write_all
from quire.tiers.disk.pages.checksum import checksum

MARK_NAME = "durable"
MARK_BYTES = 16


class ReadMark(NamedTuple):
    """The newest sound mark: frames below this number were on disk; None where there should be one and is none."""

    number: int | None
    is_second: bool  # it is in the second place


NO_MARK = ReadMark(0, True)


def read_mark(files: Files, folder: Path, seed: int) -> ReadMark:
    """What the file of a folder says; a folder without one has never had a manifest."""
    try:
        file = files.open(folder / MARK_NAME)
    except FileNotFoundError:
        return NO_MARK
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
        return ReadMark(None, True)
    return ReadMark(*max(sound)) if sound else NO_MARK


class DurableMark:
    """The open file. One thread at a time."""

    def __init__(self, files: Files, folder: Path, seed: int, read: ReadMark | None) -> None:
        """Go on behind what was read there; None: begin anew, whatever an earlier log has left."""
        self._seed = seed
        self._number, self._is_second = (read.number or 0, read.is_second) if read is not None else (0, True)
        try:
            self._file = files.open(folder / MARK_NAME, create=read is None)
        except FileNotFoundError:
            self._file = files.open(folder / MARK_NAME, create=True)

    def write(self, number: int) -> None:
        """Frames below this number are on disk. It only goes up."""
        if number < self._number:
            return
        raw = number.to_bytes(8, "little")
        raw += checksum(raw, self._seed).to_bytes(8, "little")
        second = not self._is_second
        write_all(self._file, MARK_BYTES * second, [np.frombuffer(raw, np.uint8)])
        self._number, self._is_second = number, second

    def close(self) -> None:
        """Let go of it."""
        self._file.close()
