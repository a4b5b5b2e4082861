"""One thread puts and forgets pages, one fences, one compacts the log, and dice say after every step who is next. Then
the power fails or the folder is closed: what was durable is there, what is there is right, what was forgotten is gone.

By hand, as many as you like: python -m tests.tiers.disk.interleave --rounds 10000.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from quire.core.records.lasting import LastingChanges, LastingPages
from quire.tiers import TierError
from quire.tiers.disk import DiskFolder, DiskIO, OpenReport
from quire.tiers.disk.calls.disk_watch import WatchedFiles
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.log import manifest
from quire.tiers.disk.log.manifest_contents import Contents
from quire.tiers.disk.log.read_manifest import NAME

from .stand_ins import MemoryFiles, PowerCut
from .turns import TurnFiles, TurnLock, Turns
from .world import APART, FINGERPRINT, POOLED, Shape, World, changes, page_of, places_of, tokens_of

ONE_THREAD = DiskIO(num_threads=1)
FOLDER = Path("folder")


class SharedWorld(World):
    """A world in which others fence and compact while one thread stores and forgets."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.told: set[int] = set()

    def fence(self, folder: DiskFolder) -> None:
        """What was recorded when it began is durable when it has ended, unless it was freed meanwhile."""
        before = dict(self.pages)
        folder.fence()
        self.durable |= {place: node for place, node in before.items() if self.pages.get(place) == node}

    def forget(self, folder: DiskFolder, dice: np.random.Generator) -> None:
        """As a keeper does: pages are overwritten, and their blocks leave the log."""
        gone = [place for place in self.pages if dice.random() < 0.4]
        lost = {self.pages[place] for place in gone}
        self.drop(gone)
        folder.record(changes(freed=gone))
        folder.before_writing()
        for group in range(2):
            folder.tier.erase(group, [slot for where, slot in gone if where == group])
        self.fence(folder)
        if dice.random() < 0.3 and files_of(folder).fuse.left is None:  # a power cut inside of it may cost a frame
            group_slot = np.array(gone, np.int32).reshape(-1, 2).T
            folder.manifest.clear(LastingPages(group_slot[0], group_slot[1], np.empty(0, np.int64)))
        else:
            folder.manifest.compact()
        self.check_gone(folder, lost)

    def store_again(self, folder: DiskFolder, dice: np.random.Generator) -> None:
        """As a cache does with a block that it told long ago: the page is recorded if the log still has the block."""
        group, used = int(dice.integers(2)), set(self.pages.values())
        told = sorted(self.told - used) or sorted(self.told)  # of blocks without a page some may be left out meanwhile
        slots = [slot for slot in range(self.shape.num_slots[group]) if self.at(group, slot) not in self.taken()]
        if not told or not slots:
            return
        node, slot = int(dice.choice(told)), int(dice.choice(slots))
        if node in (kept for (where, _), kept in self.pages.items() if where == group):
            return
        folder.before_writing()
        folder.tier.write(group, [slot], [page_of(node, group, self.shape.page_bytes)])
        if not len(folder.record(changes(pages=[(group, slot, node)])).slot):
            self.pages[group, slot] = node

    def taken(self) -> set[tuple[int, int]]:
        """Slots in use."""
        return {self.at(*place) for place in self.pages}

    def reopened(self, contents: Contents) -> None:
        """Of blocks that were not found the next process knows nothing."""
        super().reopened(contents)
        self.told = set(contents.nodes.number.tolist())

    def changes(self, places: list[tuple[int, int, int]]) -> LastingChanges:
        """Note which blocks the log was told of."""
        changes = super().changes(places)
        self.told |= set(changes.nodes.number.tolist())
        return changes

    def check_gone(self, folder: DiskFolder, lost: set[int]) -> None:
        needed: set[int] = set()
        for node in self.pages.values():
            while node > 0 and node not in needed:
                needed.add(node)
                node = self.parents[node]
        log = bytes(live_log(folder))
        for node in lost - needed:
            assert np.array(tokens_of(node), np.int32).tobytes() not in log, f"block {node} is still in the log"

    def write(self, folder: DiskFolder, dice: np.random.Generator, count: int) -> None:
        """What the first thread does."""
        for _ in range(count):
            what = dice.random()
            if what < 0.45:
                self.store(folder, dice)
            elif what < 0.55:
                self.store_again(folder, dice)
            elif what < 0.7:
                self.free(folder, dice)
            elif what < 0.85:
                self.forget(folder, dice)
            else:
                self.fence(folder)


def files_of(folder: DiskFolder) -> MemoryFiles:
    watched = folder.manifest._files
    assert isinstance(watched, WatchedFiles) and isinstance(watched.files, MemoryFiles)
    return watched.files


def live_log(folder: DiskFolder) -> bytearray:
    return files_of(folder).live[model_folder(FOLDER, FINGERPRINT) / NAME].live


@contextmanager
def locks_of(turns: Turns) -> Iterator[None]:
    """A manifest that is made meanwhile has locks whose waiting threads take turns."""
    before = vars(manifest)["Lock"]
    vars(manifest)["Lock"] = lambda: TurnLock(turns)
    try:
        yield
    finally:
        vars(manifest)["Lock"] = before


def case(seed: int, shape: Shape = APART, lives: int = 2, acts: int = 4) -> int:
    """Some lives of one folder, of so many fences, compactions and twice as many other acts; how often another thread
    could have taken over."""
    dice = np.random.default_rng(seed)
    world = SharedWorld(shape)
    turns = Turns(dice)
    files: MemoryFiles = TurnFiles(turns)
    for _ in range(lives):
        with locks_of(turns):
            folder = shape.open(FOLDER, ONE_THREAD, files)
        assert not folder.report.gaps and not folder.report.orphans, f"damage: {folder.report}"
        world.judge(folder)
        world.reopened(folder.contents)
        live(folder, world, turns, dice, acts)
        files = end(folder, world, turns, dice)
    last = shape.open(FOLDER, ONE_THREAD, files)
    assert not last.report.gaps and not last.report.orphans, f"damage: {last.report}"
    world.judge(last)
    last.close()
    return turns.num_pauses


def live(folder: DiskFolder, world: SharedWorld, turns: Turns, dice: np.random.Generator, count: int) -> None:
    """Three threads; in some lives the power fails at one of their writes."""
    files = files_of(folder)
    files.fuse.left = int(dice.integers(20, 250)) if dice.random() < 0.3 else None
    acts = (
        lambda: world.write(folder, dice, 2 * count),
        lambda: _often(lambda: world.fence(folder), count),
        lambda: _often(folder.manifest.compact, count),
    )
    try:
        turns.run(acts)
    except (PowerCut, TierError):
        assert files.fuse.left is not None and files.fuse.left < 0, "an error without a power cut"


def _often(act: Callable[[], object], count: int) -> None:
    for _ in range(count):
        act()


def end(folder: DiskFolder, world: SharedWorld, turns: Turns, dice: np.random.Generator) -> MemoryFiles:
    """The power fails, the process is killed, or it is closed: then everything is there, and nothing was to mend."""
    files = files_of(folder)
    turns.failed = None
    cut = files.fuse.left is not None and files.fuse.left < 0
    files.fuse.left = None
    if cut or dice.random() < 0.3:
        folder.tier.close()
        names = files.power_cut(dice).live
        return TurnFiles(turns, names)
    if dice.random() < 0.3:
        folder.tier.close()
        return files
    folder.close()
    again = world.shape.open(FOLDER, ONE_THREAD, files)
    assert again.report == OpenReport(), f"closed, and found again with {again.report}"
    assert {(group, slot): node for group, slot, node in places_of(again.contents)} == world.pages
    again.close()
    return files


def main() -> int:
    """As many rounds as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    options = parser.parse_args()
    pauses = 0
    for seed in range(options.seed, options.seed + options.rounds):
        try:
            pauses += case(seed, POOLED if seed % 3 == 2 else APART)
        except BaseException:
            print(f"python -m tests.tiers.disk.interleave --rounds 1 --seed {seed}", file=sys.stderr)
            raise
    print(f"{options.rounds} rounds, {pauses} choices of the next thread: nothing durable lost, no wrong byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
