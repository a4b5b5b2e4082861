"""Dying: a child process that is killed (SIGKILL) at some change of its files, and rounds of that by hand.

What the child tells before it dies must hold afterwards; what is told, and what must hold, its callers know.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quire.tiers import Bytes
from quire.tiers.disk.calls.files import File, RealFiles

Tell = Callable[[object], None]


class DeadlyFile:
    """A file of a process that dies at its nth change, perhaps in the middle of it."""

    def __init__(self, file: File, files: DeadlyFiles) -> None:
        self.file, self.files = file, files
        self.read, self.read_ready, self.size, self.close = file.read, file.read_ready, file.size, file.close

    def write(self, offset: int, parts: Sequence[Bytes]) -> int:
        if self.files.last_change():
            whole = np.concatenate(list(parts))
            self.file.write(offset, [whole[: self.files.dice.integers(len(whole) + 1)]])
            os.kill(os.getpid(), signal.SIGKILL)
        return self.file.write(offset, parts)

    def sync(self) -> None:
        self.files.die_if_last()
        self.file.sync()

    def resize(self, size: int) -> None:
        self.files.die_if_last()
        self.file.resize(size)


class DeadlyFiles(RealFiles):
    def __init__(self, left: int, dice: np.random.Generator) -> None:
        self.left, self.dice = left, dice

    def last_change(self) -> bool:
        self.left -= 1
        return self.left < 0

    def die_if_last(self) -> None:
        if self.last_change():
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path: Path, create: bool = False) -> File:
        if create:
            self.die_if_last()
        return DeadlyFile(super().open(path, create), self)

    def replace(self, source: Path, target: Path) -> None:
        self.die_if_last()
        super().replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        self.die_if_last()
        super().sync_folder(folder)


def until_killed(act: Callable[[Tell], None], most: int | None = None) -> list[Any]:
    """What a child told that did `act` until it was killed: by itself, or here as soon as it has told `most` things."""
    reader, writer = os.pipe()
    pid = os.fork()  # nothing else runs in this process, so a copy of it can go on
    if pid == 0:
        try:
            os.close(reader)
            act(lambda news: _write(writer, news))
        finally:
            os._exit(3)
    os.close(writer)
    told: list[Any] = []
    with os.fdopen(reader, "rb") as pipe:
        try:
            while True:
                told.append(pickle.load(pipe))
                if most is not None and len(told) >= most:
                    os.kill(pid, signal.SIGKILL)
        except EOFError:
            pass
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"it ended by itself: {status}"
    return told


def _write(pipe: int, news: object) -> None:
    os.write(pipe, pickle.dumps(news))  # at once, or not at all: it is less than a pipe takes


def run_rounds(name: str, round_: Callable[[Path, int], None], rounds: int, result: str) -> int:
    """Rounds by hand, as many as the command line asks for; a failure keeps its folder and says how to repeat it."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.tiers.disk.{name}")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a process dies there as anywhere, and sooner
    parser.add_argument("--folder", default=memory, help="where to write")
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.rounds):
        folder = Path(tempfile.mkdtemp(prefix=f"quire-{name}-", dir=options.folder))
        try:
            round_(folder, seed)
        except BaseException:
            print(f"kept {folder}; {parser.prog} --rounds 1 --seed {seed}", file=sys.stderr)
            raise
        shutil.rmtree(folder)
    print(f"{options.rounds} {result}")
    return 0
