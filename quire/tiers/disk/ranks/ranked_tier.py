"""RankedTier: the slots of several ranks as one tier. Owns the checksum of a whole page, which is made of those of its
parts: a page is sound if every rank's part is, and only the ranks can say so. Moves no byte itself.

    rank 0   [ part ]  sum ┐
    rank 1   [ part ]  sum ┴─► one sum, in the manifest
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, StateError, say
from quire.core.records.plan import MoveColumn, Plan
from quire.tiers.base import Bytes, TierInfo
from quire.tiers.disk.calls.disk_watch import DiskWatch
from quire.tiers.disk.pages.checksum import checksum
from quire.tiers.disk.pages.slots import UNKNOWN, WRONG, Failed, NoVerdict, Sums, Unanswered
from quire.tiers.disk.pages.tier import DiskCounts
from quire.tiers.disk.ranks.rank import DiskRank, LocalRank, disk_slots

T = TypeVar("T")
Slots = NDArray[np.int32]
RANK_SECONDS = 60.0  # a rank that takes longer hangs: a caller of the keeper waits no longer for it


class RankedTier:
    """What a DiskFolder needs of its tier, over ranks; and `mover`, which makes a plan's moves on all of them."""

    def __init__(
        self, name: str, num_slots: Sequence[int], ranks: Sequence[DiskRank], pool_of: Sequence[int] = (),
        watch: DiskWatch | None = None,
    ) -> None:  # fmt: skip
        self._watch = watch or DiskWatch(RANK_SECONDS)
        parts = [rank.page_bytes() for rank in ranks]
        if len(set(parts)) != 1 or len(parts[0]) != len(num_slots):
            fact = f"their parts of a page have {parts} bytes, slots are {list(num_slots)}"
            raise InputError(say(f"a disk of {len(ranks)} ranks", fact, "give ranks of equal parts, and their slots"))
        self._info = TierInfo(name, tuple(num_slots), tuple(map(sum, zip(*parts, strict=True))), tuple(pool_of))
        self._ranks = tuple(ranks)
        firsts = self._info.first_of
        self._own = sorted(set(firsts))
        sums, known = ({group: np.zeros(num_slots[group], kind) for group in self._own} for kind in (np.uint64, bool))
        self._sums, self._known = [sums[first] for first in firsts], [known[first] for first in firsts]
        self._threads = ThreadPoolExecutor(len(ranks), thread_name_prefix=f"quire-{name}-rank")
        self._lock = Lock()  # guards the counts
        self._counts = DiskCounts()
        self._closed = False

    @property
    def stopped(self) -> int:
        """None: worker threads are the ranks'."""
        return 0

    def info(self) -> TierInfo:
        """A page is that of all ranks together."""
        return self._info

    def counts(self) -> DiskCounts:
        """Whole pages."""
        with self._lock:
            return DiskCounts(**{name: getattr(self._counts, name) for name in DiskCounts.__slots__})

    def mover(self) -> RanksMover:
        """What runs plans over it."""
        return RanksMover(self)

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        """Never: no bytes of a rank come here."""
        raise self._refusal()

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        """Never, likewise."""
        raise self._refusal()

    def _refusal(self) -> StateError:
        fact = "its bytes are in the memory of its ranks"
        return StateError(say(f"bytes for tier {self._info.name!r}", fact, "have its ranks move them"))

    def sums(self, group: int, slots: Slots) -> tuple[Sums, NDArray[np.bool_]]:
        """Checksums of whole pages, and whether each is known."""
        return self._sums[group][slots], self._known[group][slots]

    def learn(self, group: int, slots: Slots, sums: Sums) -> None:
        """The slots hold pages with these checksums."""
        self._sums[group][slots] = sums
        self._known[group][slots] = True

    def unlearn(self, group: int, slots: Slots) -> None:
        """The slots hold nothing any more."""
        self._known[group][slots] = False

    def known(self, group: int) -> NDArray[np.bool_]:
        """Which slots hold a page."""
        return self._known[group].copy()

    @property
    def index_bytes(self) -> int:
        """Memory that checksums take."""
        return sum(self._sums[group].nbytes + self._known[group].nbytes for group in self._own)

    def verify(self, group: int, slots: Iterable[int]) -> Failed:
        """Have every rank read its parts; the pages that are not what was written, with why."""
        asked = list(dict.fromkeys(int(slot) for slot in slots))
        answers, lost = self._ask(lambda rank: rank.look(group, asked))
        wrong: Failed = dict.fromkeys(asked, Unanswered(lost)) if lost else {}
        for nth, (_, bad) in enumerate(answers):
            wrong.update((slot, _of_rank(nth, why)) for slot, why in bad.items())
        whole = whole_sums([sums for sums, _ in answers], len(asked))
        return self._judge(group, np.array(asked, np.int32), whole, wrong)

    def missing(self, group: int, slots: Slots) -> NDArray[np.bool_]:
        """Which slots some rank says that it has lost; one that cannot say so finds out when they are read."""
        lost = np.zeros(len(slots), np.bool_)
        for rank in self._ranks:
            if isinstance(rank, LocalRank):
                lost |= rank.missing(group, slots)
        return lost

    def erase(self, group: int, slots: Sequence[int]) -> None:
        """Overwrite the slots on every rank; OSError when one could not."""
        self.unlearn(group, np.asarray(slots, np.int32))
        self._must(lambda rank: rank.erase(group, slots))

    def sync(self) -> None:
        """Every rank's part is on the disk; OSError when one is not."""
        self._must(lambda rank: rank.sync())

    def move(self, plan: Plan) -> dict[int, str]:
        """Make the moves on all ranks at once: those that failed on some rank, or whose parts are not one page."""
        moves, slow = plan.moves, self._slow_tier(plan)
        places, groups = disk_slots(moves, slow), moves[:, MoveColumn.GROUP]
        down = moves[:, MoveColumn.DST_TIER] == slow
        for group in np.unique(groups[down]).tolist():
            self.unlearn(group, places[down & (groups == group)])
        answers, lost = self._ask(lambda rank: rank.run(moves))
        failed: dict[int, str] = dict.fromkeys(range(len(moves)), Unanswered(lost)) if lost else {}
        for nth, done in enumerate(answers):
            for move, why in done.failed.items():  # where one rank's part is bad the page is
                if not isinstance(failed.get(move, Unanswered()), NoVerdict):
                    continue
                failed[move] = Unanswered(_of_rank(nth, why)) if move in done.given_up else _of_rank(nth, why)
        whole = whole_sums([done.sums for done in answers], len(moves))
        for group in np.unique(groups).tolist():
            ours = np.flatnonzero(groups == group)
            good = ours[np.isin(ours, list(failed), invert=True)]
            self.learn(group, places[good[down[good]]], whole[good[down[good]]])
            read = good[~down[good]]
            bad = self._judge(group, places[read], whole[read], {})
            pairs = zip(read.tolist(), places[read].tolist(), strict=True)
            failed.update((move, bad[slot]) for move, slot in pairs if slot in bad)
        self._count(moves, down, failed)
        return failed

    def close(self) -> None:
        """Let go of every rank; again: nothing."""
        if not self._closed:
            self._closed = True
            self._ask(lambda rank: rank.close(), even_closed=True)
            self._threads.shutdown()

    def _slow_tier(self, plan: Plan) -> int:
        """The coldest tier that a plan names: one in the background always has the slow one at one end."""
        return int(plan.moves[:, [MoveColumn.SRC_TIER, MoveColumn.DST_TIER]].max(initial=0))

    def _judge(self, group: int, slots: Slots, whole: Sums, wrong: Failed) -> Failed:
        sums, known = self.sums(group, slots)
        for slot, is_known, same in zip(slots.tolist(), known.tolist(), (sums == whole).tolist(), strict=True):
            if not is_known or not same:
                wrong.setdefault(slot, WRONG if is_known else UNKNOWN)
        return wrong

    def _ask(self, act: Callable[[DiskRank], T], even_closed: bool = False) -> tuple[list[T], OSError | None]:
        """Every rank at once: their answers, or why one of them did nothing."""
        if self._closed and not even_closed:
            raise StateError(say(f"tier {self._info.name!r}", "it is closed", "open a new one"))
        answers: list[T] = []
        lost: OSError | None = None
        for nth, future in enumerate([self._threads.submit(act, rank) for rank in self._ranks]):
            try:
                with self._watch.calling(RANK_SECONDS):
                    answers.append(future.result())
            except Exception as error:  # its process has ended, its wire is cut: what it has is as good as lost
                kind = TimeoutError if isinstance(error, TimeoutError) else OSError
                lost = lost or kind(_of_rank(nth, f"{type(error).__name__}: {error}"))
        return ([], lost) if lost else (answers, None)

    def _must(self, act: Callable[[DiskRank], None]) -> None:
        lost = self._ask(act)[1]
        if lost is not None:
            raise lost

    def _count(self, moves: NDArray[np.int32], down: NDArray[np.bool_], failed: dict[int, str]) -> None:
        good = np.ones(len(moves), bool)
        good[list(failed)] = False
        with self._lock:
            self._counts.pages_written += int(np.count_nonzero(good & down))
            self._counts.pages_read += int(np.count_nonzero(good & ~down))
            self._counts.failed += len(failed)


class RanksMover:
    """Runs plans over ranks, as a Mover does over tiers; one at a time, each to its end."""

    def __init__(self, tier: RankedTier) -> None:
        self._tier = tier

    def reasons(self, plan: Plan) -> dict[int, str]:
        """The failed moves, with why each failed."""
        return self._tier.move(plan) if len(plan) else {}

    def settle(self, number: int) -> None:
        """Ranks have settled it themselves."""

    def close(self) -> None:
        """The tier closes them."""


def whole_sums(sums: Sequence[Sums], count: int) -> Sums:
    """Of each page, the checksum of its parts' checksums."""
    if not sums:
        return np.zeros(count, np.uint64)
    parts = np.ascontiguousarray(np.stack(sums, axis=1), "<u8")
    return np.array([checksum(row.view(np.uint8), len(sums)) for row in parts], np.uint64)


def _of_rank(nth: int, why: str) -> str:
    return f"rank {nth}: {why}"
