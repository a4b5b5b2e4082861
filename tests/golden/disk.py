"""Write a folder of pages in today's disk formats, for later versions to read: python -m tests.golden.disk FOLDER [2]

Once per format number: 1, and 2 for groups that share a pool. Two layer groups, a chain of three blocks under one root
and one block under another; a page was freed and its slot taken by another, and the log was compacted and goes on
behind that.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quire.core.records.lasting import BlockNodes, LastingChanges, LastingPages
from quire.tiers.disk import DiskFolder, DiskLimits

FINGERPRINT = bytes(range(100, 132))
PARENTS = {1: -1, 2: 1, 3: 2, 4: -2}
ROOTS = (b"a" * 64, b"b" * 64)
Place = tuple[int, int, int]  # group, slot, block


@dataclass(frozen=True)
class Shape:
    """What differs between the formats."""

    page_bytes: tuple[int, int]
    num_slots: tuple[int, int]
    pool_of: tuple[int, int]
    second: Place  # the page of the second group

    @property
    def pages(self) -> list[Place]:
        """What is there in the end."""
        return [(0, 0, 1), self.second, (0, 2, 3), (0, 1, 4)]

    def open(self, folder: Path) -> DiskFolder:
        limits = DiskLimits(pool_of=self.pool_of)
        return DiskFolder(folder, FINGERPRINT, self.page_bytes, self.num_slots, limits=limits)


SHAPES = {1: Shape((24, 40), (3, 1), (0, 1), (1, 0, 2)), 2: Shape((24, 24), (4, 4), (0, 0), (1, 3, 2))}


def tokens_of(block: int) -> list[int]:
    return [10 * block + nth for nth in range(4)]


def page_of(block: int, group: int, shape: Shape) -> np.ndarray:
    return np.full((1, shape.page_bytes[group]), 10 * block + group, np.uint8)


def told(freed: list[tuple[int, int]], blocks: list[int], pages: list[Place]) -> LastingChanges:
    tokens = [token for block in blocks for token in tokens_of(block)]
    words_at = [place for place, token in enumerate(tokens) if token == 31]
    nodes = BlockNodes(
        np.array(blocks, np.int64), np.array([PARENTS[block] for block in blocks], np.int64),
        np.arange(0, len(tokens) + 1, 4, dtype=np.int64), np.array(tokens, np.int32),
        np.full((len(words_at), 3), (1, 99, 0), np.uint64), np.array(words_at, np.int64), ROOTS,
    )  # fmt: skip
    gone, there = np.array([*freed, (0, 0)], np.int32)[:-1], np.array([*pages, (0, 0, 0)], np.int64)[:-1]
    where = LastingPages(there[:, 0].astype(np.int32), there[:, 1].astype(np.int32), there[:, 2])
    return LastingChanges(gone[:, 0], gone[:, 1], nodes, where)


def main(folder: Path, shape: Shape) -> None:
    with shape.open(folder) as disk:

        def store(freed: list[tuple[int, int]], blocks: list[int], pages: list[Place]) -> None:
            disk.record(told(freed, [], []))
            disk.before_writing()
            for group, slot, block in pages:
                disk.tier.write(group, [slot], [page_of(block, group, shape)])
            disk.record(told([], blocks, pages))

        store([], [1, 2], [(0, 0, 1), (0, 1, 2), shape.second])
        store([(0, 1)], [3], [(0, 2, 3)])
        disk.fence()
        disk.manifest.compact()
        store([], [4], [(0, 1, 4)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), SHAPES[int([*sys.argv, "1"][2])])
