"""Caches that are killed: a child computes prompts into host memory, its keeper copies them down, and it dies at some
change of the files. The next one must find every prompt that was durable, and never a wrong byte.

By hand, as many as you like: python -m tests.tiers.disk.cache_crash --rounds 1000.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

from quire import check
from quire.tiers.disk.examine import examine

from .crash import DeadlyFiles
from .rig import BY_HAND, OFTEN, Kept

PROMPTS = 7  # of four blocks: all of them fit on the disk, so nothing durable makes way
MANY = 30


def lived(folder: Path, dice: np.random.Generator, prompts: int) -> set[int]:
    """A child computes and is killed; the prompts that it told to be durable."""
    seed, changes = int(dice.integers(1 << 60)), int(dice.integers(150))
    reader, writer = os.pipe()
    pid = os.fork()  # nothing else runs in this process, so a copy of it can go on
    if pid == 0:
        os.close(reader)
        _compute(folder, np.random.default_rng(seed), (writer, changes, prompts))
    os.close(writer)
    durable: set[int] = set()
    with os.fdopen(reader, "rb") as pipe:
        try:
            while True:
                durable = pickle.load(pipe)
        except EOFError:
            pass
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"it ended by itself: {status}"
    return durable


def _compute(folder: Path, dice: np.random.Generator, options: tuple[int, int, int]) -> None:
    pipe, changes, prompts = options
    try:
        kept = Kept(folder, OFTEN, DeadlyFiles(changes, dice))
        durable: set[int] = set()
        while True:
            number = int(dice.integers(prompts))
            if kept.fetched(number) < 16:
                kept.compute(number)
            kept.keeper.flush()
            durable.add(number)
            os.write(pipe, pickle.dumps(durable))
    finally:
        os._exit(3)


def round_(folder: Path, seed: int) -> None:
    """A few lives; then all that was durable is there."""
    dice = np.random.default_rng(seed)
    prompts = PROMPTS if seed % 3 else MANY  # with many of them, old ones make way
    durable: set[int] = set()
    for _ in range(int(dice.integers(1, 4))):
        durable |= lived(folder, dice, prompts)
    kept = Kept(folder, BY_HAND)
    ends = {number: kept.fetched(number) for number in range(prompts)}
    check(kept.cache)
    kept.close()
    if prompts == PROMPTS:
        missing = {number for number in durable if ends[number] != 16}
        assert not missing, f"durable, and not found: {missing}"
    report = examine(kept.folder.folder)
    assert not report.findings and not report.refused, report


def main() -> int:
    """As many rounds as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    parser.add_argument("--folder", default=memory, help="where to write")
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.rounds):
        folder = Path(tempfile.mkdtemp(prefix="quire-cache-crash-", dir=options.folder))
        try:
            round_(folder, seed)
        except BaseException:
            print(f"kept {folder}; python -m tests.tiers.disk.cache_crash --rounds 1 --seed {seed}", file=sys.stderr)
            raise
        shutil.rmtree(folder)
    print(f"{options.rounds} caches killed: nothing durable lost, no wrong byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
