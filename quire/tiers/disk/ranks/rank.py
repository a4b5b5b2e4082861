"""One rank's part of a disk: its files, and the moves between them and that rank's memory. Knows no manifest and no
cache: whether a page is what was written is decided where the checksums of all ranks come together.

    FOLDER/3f9c.../rank-0/    lock   pages-0   pages-1 ...
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, StateError, say
from quire.core.records.plan import MoveColumn, Moves, Plan
from quire.tiers.base import PageLayout, Tier
from quire.tiers.disk.calls.files import REAL_FILES, Files, make_folder
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.pages.slots import Failed, NoVerdict, Sums, Unanswered
from quire.tiers.disk.pages.tier import DiskIO, DiskTier
from quire.tiers.mover import Mover
from quire.tiers.process import FolderLock, reason

Slots = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RankDone:
    """What became of some moves on one rank: why some failed, by place, and the checksum of each one's page on disk."""

    failed: dict[int, str]
    sums: Sums
    given_up: frozenset[int] = frozenset()  # of the failed ones: the disk did not answer, the page may be sound


class DiskRank(Protocol):
    """A rank, in this process or behind a wire of the caller's. Calls come from several threads.

    Any exception means: this rank has done none of it.
    """

    def page_bytes(self) -> tuple[int, ...]:
        """Of its part of a page, per layer group."""
        ...

    def run(self, moves: Moves) -> RankDone:
        """Make the moves of a background plan, whose coldest tier is the disk."""
        ...

    def look(self, group: int, slots: Sequence[int]) -> tuple[Sums, Failed]:
        """Checksums of what lies in the slots, and what could not be read."""
        ...

    def erase(self, group: int, slots: Sequence[int]) -> None:
        """Overwrite the slots."""
        ...

    def sync(self) -> None:
        """What was written is on the disk."""
        ...

    def close(self) -> None:
        """Let go of the files; again: nothing."""
        ...


def rank_folder(folder: Path, rank: int) -> Path:
    """Where a rank's files are."""
    return folder / f"rank-{rank}"


def rank_folders(folder: Path) -> list[Path]:
    """Those of all ranks that there are, in order."""
    found = [path for path in folder.glob("rank-*") if path.is_dir() and path.name[5:].isdecimal()]
    return sorted(found, key=lambda path: int(path.name[5:]))


class LocalRank:
    """A rank whose memory is in this process. `tiers` are those above the disk, in order, as for a keeper."""

    def __init__(
        self, folder: str | Path, fingerprint: bytes, rank: int, tiers: Sequence[Tier], layouts: Sequence[PageLayout],
        num_slots: Sequence[int], *, block_size: int, io: DiskIO | None = None,
    ) -> None:  # fmt: skip
        """`fingerprint` is that of the whole model, the same on all ranks: the ranks' own, joined."""
        self._init(rank_folder(model_folder(Path(folder), fingerprint), rank), tiers, layouts, num_slots, io)
        self._mover = Mover([*tiers, self._tier], layouts, block_size)
        self._opened.callback(self._mover.close)
        self._slow, self._num_run = len(tiers), 0

    def _init(
        self, folder: Path, tiers: Sequence[Tier], layouts: Sequence[PageLayout], num_slots: Sequence[int],
        io: DiskIO | None, files: Files = REAL_FILES,
    ) -> None:  # fmt: skip
        if not tiers:
            raise InputError(say("a rank of a disk", "it has no memory above it", "give its tiers, device first"))
        sizes, pools = [layout.page_bytes for layout in layouts], tiers[-1].info().pool_of  # one pool in every tier
        with ExitStack() as opened:
            make_folder(folder.parent)
            make_folder(folder)
            opened.callback(FolderLock(folder).close)
            self._tier = DiskTier("disk", num_slots, sizes, folder, io=io, files=files, learns=True, pool_of=pools)
            opened.callback(self._tier.close)
            try:
                for names in (folder, folder.parent):
                    files.sync_folder(names)
            except OSError as error:
                raise StateError(say(f"folder {str(folder)!r}", reason(error), "look at the disk")) from error
            self._opened = opened.pop_all()

    def page_bytes(self) -> tuple[int, ...]:
        """Of its part of a page."""
        return self._tier.info().page_bytes

    def run(self, moves: Moves) -> RankDone:
        """One plan at a time; what it names is as the cache has numbered it."""
        self._num_run += 1
        failed = self._mover.submit(Plan(self._num_run, moves)).reasons()
        self._mover.settle(self._num_run)
        sums = np.zeros(len(moves), np.uint64)
        places = disk_slots(moves, self._slow)
        for group in np.unique(moves[:, MoveColumn.GROUP]).tolist():
            ours = np.flatnonzero(moves[:, MoveColumn.GROUP] == group)
            sums[ours], known = self._tier.sums(group, places[ours])
            for move in ours[~known].tolist():
                failed.setdefault(move, "its page is not on this rank's disk")
        return RankDone(failed, sums, frozenset(move for move, why in failed.items() if isinstance(why, NoVerdict)))

    def look(self, group: int, slots: Sequence[int]) -> tuple[Sums, Failed]:
        """Read them, and hand out nothing."""
        failed = self._tier.verify(group, slots)
        if late := [why for why in failed.values() if isinstance(why, Unanswered)]:
            raise TimeoutError(late[0])
        return self._tier.sums(group, np.asarray(slots, np.int32))[0], failed

    def missing(self, group: int, slots: Slots) -> NDArray[np.bool_]:
        """Beyond what a rank must answer: which slots its files had lost when they were opened."""
        return self._tier.missing(group, slots)

    def erase(self, group: int, slots: Sequence[int]) -> None:
        """With zeros."""
        self._tier.erase(group, slots)

    def sync(self) -> None:
        """As that of a disk tier."""
        self._tier.sync()

    def close(self) -> None:
        """End the threads, close the files, let others in."""
        self._opened.close()


def disk_slots(moves: Moves, slow: int) -> Slots:
    """The slot on disk that each move writes or reads."""
    down = moves[:, MoveColumn.DST_TIER] == slow
    slots: Slots = np.where(down, moves[:, MoveColumn.DST_SLOT], moves[:, MoveColumn.SRC_SLOT]).astype(np.int32)
    return slots
