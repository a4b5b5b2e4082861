"""Power cuts: a random writer on files that lose what was not synced. By hand: python -m tests.tiers.disk.power."""

from __future__ import annotations

import argparse
import sys

import numpy as np

from quire.tiers import TierError
from quire.tiers.disk import DiskIO

from .stand_ins import MemoryFiles, PowerCut
from .world import APART, POOLED, Shape, World

ONE_THREAD = DiskIO(num_threads=1)


def case(seed: int, shape: Shape = APART) -> None:
    """Write, lose power at any point, open, look; three times over."""
    dice = np.random.default_rng(seed)
    files, world = MemoryFiles(), World(shape)
    for _ in range(3):
        life(files, world, dice)
        if dice.random() < 0.7:  # else the process alone is killed, and the files are as it left them
            files = files.power_cut(dice)
        files.fuse.left = None
    folder = shape.open("folder", ONE_THREAD, files)
    world.judge(folder)
    folder.close()


def life(files: MemoryFiles, world: World, dice: np.random.Generator) -> None:
    """From one start to the next power cut, which may come while it opens."""
    files.fuse.left = int(dice.integers(90))
    folder = None
    try:
        folder = world.shape.open("folder", ONE_THREAD, files)
        assert not folder.report.gaps and not folder.report.orphans, f"damage after a power cut: {folder.report}"
        world.judge(folder)
        world.reopened(folder.contents)
        while True:
            world.step(folder, dice)
    except (PowerCut, TierError):
        assert files.fuse.left < 0, "an error without a power cut"
    finally:
        if folder is not None:
            folder.tier.close()


def main() -> int:
    """As many cases as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--pooled", action="store_true", help="both groups have the same slots")
    options = parser.parse_args()
    pooled = " --pooled" * options.pooled
    for seed in range(options.seed, options.seed + options.cases):
        try:
            case(seed, POOLED if options.pooled else APART)
        except BaseException:
            print(f"python -m tests.tiers.disk.power --cases 1 --seed {seed}{pooled}", file=sys.stderr)
            raise
    print(f"{options.cases} power cuts: nothing durable lost, no wrong byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
