"""File layers for tests: one that fails and waits as it is told, and one in memory that loses what was not synced."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import numpy as np

from quire.tiers import Bytes
from quire.tiers.disk.calls.files import File, Files, RealFiles

from ...waits import PATIENCE

SECTOR = 512


@dataclass
class Faults:
    """What goes wrong: errors by (file name, offset) inside the bytes of a call, calls cut short, a gate to wait at."""

    read_errors: dict[tuple[str, int], int] = field(default_factory=dict)
    write_errors: dict[tuple[str, int], int] = field(default_factory=dict)
    sync_errors: dict[str, int] = field(default_factory=dict)
    most_bytes: int | None = None  # of one call
    ready: frozenset[int] = frozenset()  # offsets whose bytes the system has in memory: no disk is asked for them
    gate: Event | None = None  # reads and writes wait for it
    reached: Event = field(default_factory=Event)  # somebody waits at the gate
    free_bytes: int = 1 << 40
    calls: list[tuple[str, str, int]] = field(default_factory=list)  # what, file, bytes


class FaultyFile:
    def __init__(self, name: str, file: File, faults: Faults) -> None:
        self.name, self.file, self.faults = name, file, faults

    def read(self, offset: int, into: Bytes) -> int:
        self._meet("read", offset, len(into), self.faults.read_errors)
        return self.file.read(offset, into[: self.faults.most_bytes])

    def read_ready(self, offset: int, into: Bytes) -> int:
        return self.file.read(offset, into[: self.faults.most_bytes]) if offset in self.faults.ready else 0

    def write(self, offset: int, parts: Sequence[Bytes]) -> int:
        self._meet("write", offset, sum(map(len, parts)), self.faults.write_errors)
        if self.faults.most_bytes is None:
            return self.file.write(offset, parts)
        return self.file.write(offset, [parts[0][: self.faults.most_bytes]])

    def sync(self) -> None:
        if self.name in self.faults.sync_errors:
            raise OSError(self.faults.sync_errors.pop(self.name), "sync")
        self.file.sync()

    def size(self) -> int:
        return self.file.size()

    def resize(self, size: int) -> None:
        self.file.resize(size)

    def close(self) -> None:
        self.file.close()

    def _meet(self, what: str, offset: int, size: int, errors: dict[tuple[str, int], int]) -> None:
        self.faults.calls.append((what, self.name, size))
        if self.faults.gate is not None:
            self.faults.reached.set()
            assert self.faults.gate.wait(PATIENCE)
        for (name, place), number in errors.items():
            if name == self.name and offset <= place < offset + size:
                raise OSError(number, errno.errorcode[number])


class FaultyFiles(RealFiles):
    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, path: Path, create: bool = False) -> File:
        return FaultyFile(path.name, super().open(path, create), self.faults)

    def free_bytes(self, folder: Path) -> int:
        return self.faults.free_bytes


class FullFile:
    """A file that does not grow while its disk is full; what is there can be written again."""

    def __init__(self, name: str, file: File, files: FullFiles) -> None:
        self.name, self.file, self.files = name, file, files
        self.read, self.read_ready, self.sync = file.read, file.read_ready, file.sync
        self.size, self.close = file.size, file.close

    def write(self, offset: int, parts: Sequence[Bytes]) -> int:
        num_bytes = sum(map(len, parts))
        grows = offset + num_bytes > self.size() and self.name in self.files.full
        if grows and num_bytes <= self.files.most_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(offset, parts)

    def resize(self, size: int) -> None:
        self.file.resize(size)


class FullFiles(RealFiles):
    """A disk with no more room for files of these names."""

    def __init__(self, *names: str) -> None:
        self.full = set(names)
        self.most_bytes = sys.maxsize  # of writes that fail: others find that somebody has made room

    def open(self, path: Path, create: bool = False) -> File:
        return FullFile(path.name, super().open(path, create), self)


class Inode:
    """A file's bytes as processes see them, and what of them is on the disk for certain."""

    def __init__(self, durable: bytes = b"") -> None:
        self.live = bytearray(durable)
        self.durable = bytearray(durable)
        self.pending: list[tuple[int, bytes] | int] = []  # writes, and new sizes

    def write(self, offset: int, data: bytes) -> None:
        self.pending.append((offset, data))
        _apply(self.live, offset, data)

    def resize(self, size: int) -> None:
        self.pending.append(size)
        _resize(self.live, size)

    def sync(self) -> None:
        self.durable = bytearray(self.live) if self.pending else self.durable
        self.pending = []

    def after_power_cut(self, dice: np.random.Generator) -> bytes:
        """One of the states in which the disk may be: of each sector some version since the last sync."""
        state = bytearray(self.durable)
        way = dice.integers(4)
        last = int(dice.integers(len(self.pending) + 1)) if way == 1 else len(self.pending)
        for change in self.pending[:last] if way else ():
            if isinstance(change, int):
                if way == 1 or dice.random() < 0.7:
                    _resize(state, change)
                continue
            offset, data = change
            start = 0
            while start < len(data):
                end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
                if way == 1 or dice.random() < 0.5:
                    _apply(state, offset + start, data[start:end])
                start = end
        return bytes(state)


def _apply(state: bytearray, offset: int, data: bytes) -> None:
    if len(state) < offset + len(data):
        state.extend(bytes(offset + len(data) - len(state)))
    state[offset : offset + len(data)] = data


def _resize(state: bytearray, size: int) -> None:
    del state[size:]
    state.extend(bytes(size - len(state)))


class PowerCut(Exception):
    """The machine is off: nothing is done any more."""


class Fuse:
    """Lets so many changes through, then none."""

    def __init__(self) -> None:
        self.left: int | None = None

    def burn(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise PowerCut


class MemoryFile:
    def __init__(self, inode: Inode, fuse: Fuse) -> None:
        self.inode = inode
        self.fuse = fuse

    def read(self, offset: int, into: Bytes) -> int:
        data = np.frombuffer(bytes(self.inode.live[offset : offset + len(into)]), np.uint8)
        into[: len(data)] = data
        return len(data)

    def read_ready(self, offset: int, into: Bytes) -> int:
        return self.read(offset, into[: len(into) // 2]) if offset % 3 else self.read(offset, into)

    def write(self, offset: int, parts: Sequence[Bytes]) -> int:
        self.fuse.burn()
        data = b"".join(part.tobytes() for part in parts)
        self.inode.write(offset, data)
        return len(data)

    def sync(self) -> None:
        self.fuse.burn()
        self.inode.sync()

    def size(self) -> int:
        return len(self.inode.live)

    def resize(self, size: int) -> None:
        self.fuse.burn()
        self.inode.resize(size)

    def close(self) -> None:
        pass


class MemoryFiles:
    """Files that a power cut hits."""

    def __init__(self, names: dict[Path, Inode] | None = None) -> None:
        self.live = dict(names or {})
        self.durable = dict(self.live)
        self.fuse = Fuse()
        self.pending: list[dict[Path, Inode]] = []  # the names after each change since they were synced

    def open(self, path: Path, create: bool = False) -> File:
        if create:
            self.fuse.burn()
            self.live[path] = Inode()
            self.pending.append(dict(self.live))
        elif path not in self.live:
            raise FileNotFoundError(path)
        return MemoryFile(self.live[path], self.fuse)

    def replace(self, source: Path, target: Path) -> None:
        self.fuse.burn()
        self.live[target] = self.live.pop(source)
        self.pending.append(dict(self.live))

    def remove(self, path: Path) -> None:
        if self.live.pop(path, None):
            self.pending.append(dict(self.live))

    def sync_folder(self, folder: Path) -> None:
        self.fuse.burn()
        self.durable, self.pending = dict(self.live), []

    def free_bytes(self, folder: Path) -> int:
        return 1 << 40

    def power_cut(self, dice: np.random.Generator) -> MemoryFiles:
        """What is there when the machine runs again."""
        states = [self.durable, *self.pending]
        names = states[int(dice.integers(len(states)))]
        return MemoryFiles({path: Inode(inode.after_power_cut(dice)) for path, inode in names.items()})


_: Files = MemoryFiles()
