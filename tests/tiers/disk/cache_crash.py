"""Caches that are killed: a child computes prompts into host memory, its keeper copies them down, and it dies at some
change of the files. The next one must find every prompt that was durable, and never a wrong byte.

By hand, as many as you like: python -m tests.tiers.disk.cache_crash --rounds 1000.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from quire import check
from quire.tiers.disk.fsck import examine

from .dying import DeadlyFiles, Tell, run_rounds, until_killed
from .rig import BY_HAND, OFTEN, Kept

PROMPTS = 7  # of four blocks: all of them fit on the disk, so nothing durable makes way
MANY = 30


def lived(folder: Path, dice: np.random.Generator, prompts: int) -> set[int]:
    """A child computes and is killed; the prompts that it told to be durable."""
    seed, changes = int(dice.integers(1 << 60)), int(dice.integers(150))
    files = DeadlyFiles(changes, np.random.default_rng(seed))
    told = until_killed(lambda tell: _compute(folder, files, prompts, tell))
    durable: set[int] = told[-1] if told else set()
    return durable


def _compute(folder: Path, files: DeadlyFiles, prompts: int, tell: Tell) -> None:
    kept = Kept(folder, OFTEN, files)
    durable: set[int] = set()
    while True:
        number = int(files.dice.integers(prompts))
        if kept.fetched(number) < 16:
            kept.compute(number)
        kept.keeper.flush()
        durable.add(number)
        tell(durable)


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


if __name__ == "__main__":
    sys.exit(run_rounds("cache_crash", round_, 15, "caches killed: nothing durable lost, no wrong byte"))
