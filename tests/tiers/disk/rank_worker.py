"""A rank in a process of its own: `python -m tests.tiers.disk.rank_worker FOLDER RANK`. `RemoteRank` is
the other end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.tiers import ArenaTier, Bytes, PageLayout
from quire.tiers.disk import DiskIO, LocalRank, RankDone
from quire.tiers.disk.pages.slots import Failed, Sums

from ..rank_process import RankProcess, answer
from .rig import BLOCK, DISK, FINGERPRINT, HOST

PART = 64  # bytes of one rank's part of a page


class OneRank:
    """A rank with its host memory."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.host = ArenaTier("host", (HOST,), (PART,))
        tiers = [ArenaTier("device", (0,), (PART,)), self.host]
        layouts, io = [PageLayout(PART)], DiskIO(2, 16, 60)
        self.disk = LocalRank(folder, FINGERPRINT, rank, tiers, layouts, (DISK,), block_size=BLOCK, io=io)

    def put(self, slot: int, page: Bytes) -> None:
        self.host.view(0)[slot] = page

    def get(self, slot: int) -> Bytes:
        page: Bytes = self.host.view(0)[slot].copy()
        return page


class RemoteRank(RankProcess):
    """A DiskRank over a pair of pipes, and the memory behind it."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__("tests.tiers.disk.rank_worker", str(folder), str(rank))
        self._closed = False
        assert self._ask("page_bytes") == (PART,)

    @property
    def disk(self) -> RemoteRank:
        return self

    def run(self, moves: Any) -> RankDone:
        done: RankDone = self._ask("run", moves)
        return done

    def look(self, group: int, slots: Sequence[int]) -> tuple[Sums, Failed]:
        found: tuple[Sums, Failed] = self._ask("look", group, list(slots))
        return found

    def erase(self, group: int, slots: Sequence[int]) -> None:
        self._ask("erase", group, list(slots))

    def sync(self) -> None:
        self._ask("sync")

    def put(self, slot: int, page: Bytes) -> None:
        self._ask("put", slot, page)

    def get(self, slot: int) -> Bytes:
        page: Bytes = self._ask("get", slot)
        return page

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                self._ask("close")
            finally:
                self.end()


def main() -> int:
    ours = OneRank(Path(sys.argv[1]), int(sys.argv[2]))
    return answer(lambda verb: getattr(ours if verb in ("put", "get") else ours.disk, verb))


if __name__ == "__main__":
    sys.exit(main())
