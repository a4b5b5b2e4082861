"""Ledger: which worker has which published page, in which tier, by the records. Both ends of a stream keep
one.

Owns pages by event hash and what they add up to. Knows nothing of batches, gaps and sockets.
"""

from typing import Any

import numpy as np

from quire.core.records.events import Fact
from quire.core.store.interface import Int8Array, Int32Array, UInt8Array, UInt64Array
from quire.core.store.reference.keys.hash import K0, K1, K2, K3, MASK, fold

TIERS = 8
MAX_GROUPS, MAX_WORKERS = 64, 4096
Pages = dict[int, tuple[int, int]]  # event hash -> tier, priority


class Ledger:
    """Pages by event hash, for some workers and groups."""

    __slots__ = ("_groups", "_pages", "_sums")

    def __init__(self, num_workers: int = 1, num_groups: int = 1) -> None:
        if not (1 <= num_workers <= MAX_WORKERS and 1 <= num_groups <= MAX_GROUPS):
            raise ValueError(f"{num_workers} workers, {num_groups} groups")
        self._groups = 0
        self._pages: list[list[Pages]] = []
        self._sums: list[list[list[list[int]]]] = []
        self.widen(num_workers, num_groups)

    def __len__(self) -> int:
        """Hashes that some worker has, groups apart."""
        return sum(len(set().union(*(own[group] for own in self._pages))) for group in range(self._groups))

    def widen(self, num_workers: int, num_groups: int) -> None:
        """Room for that many workers and groups."""
        if not (len(self._pages) <= num_workers <= MAX_WORKERS and self._groups <= num_groups <= MAX_GROUPS):
            raise ValueError(f"{num_workers} workers, {num_groups} groups: less than there are, or too many")
        for _ in range(num_workers - len(self._pages)):
            self._pages.append([])
            self._sums.append([])
        self._groups = num_groups
        for own, sums in zip(self._pages, self._sums, strict=True):
            for _ in range(num_groups - len(own)):
                own.append({})
                sums.append([[0, 0, 0] for _ in range(TIERS)])

    def apply(self, worker: int, records: Int32Array, hashes: UInt64Array, priorities: UInt8Array) -> int:
        """Apply records in order, all or none; how many of them did not fit what was known."""
        own = self._of(worker)
        rows = _checked(records, self._groups, len(hashes), len(priorities))
        names, marks, at, odd = hashes.tolist(), priorities.tolist(), 0, 0
        for kind, group, count, _, after in rows:
            pages = own[group]
            if kind == Fact.STORED:
                names[at : at + count] = [name or 1 for name in names[at : at + count]]
            if kind == Fact.CLEARED:
                self._wipe(worker, group)
            for name, priority in zip(names[at : at + count], marks[at : at + count], strict=True):
                before = pages.get(name)
                match kind:
                    case Fact.STORED:
                        odd += before is not None
                        self._put(worker, group, name, (after, priority))
                    case Fact.MOVED | Fact.RETAINED | Fact.REMOVED if before is None:
                        odd += 1
                    case Fact.MOVED if before is not None:
                        self._put(worker, group, name, (after, before[1]))
                    case Fact.RETAINED if before is not None:
                        self._put(worker, group, name, (before[0], after))
                    case Fact.REMOVED:
                        self._put(worker, group, name, None)
            at += count
        return odd

    def _of(self, worker: int, group: int = 0) -> list[Pages]:
        if not (0 <= worker < len(self._pages) and 0 <= group < self._groups):
            raise LookupError(f"no worker {worker} or no group {group}")
        return self._pages[worker]

    def _put(self, worker: int, group: int, name: int, page: tuple[int, int] | None) -> None:
        pages = self._pages[worker][group]
        before = pages.pop(name, None)
        for place, sign in ((before, -1), (page, 1)):
            if place is not None:
                tier, priority = place
                parts = (1, fold(name ^ K0, K1 + priority), fold(name ^ K2, K3 + priority))
                sums = self._sums[worker][group][tier]
                sums[:] = [(old + sign * part) & MASK for old, part in zip(sums, parts, strict=True)]
        if page is not None:
            pages[name] = page

    def _wipe(self, worker: int, group: int) -> None:
        self._pages[worker][group].clear()
        self._sums[worker][group] = [[0, 0, 0] for _ in range(TIERS)]

    def clear(self, worker: int) -> None:
        """Forget a worker's pages."""
        for group in range(len(self._of(worker))):
            self._wipe(worker, group)

    def num_pages(self, worker: int) -> int:
        """Pages of a worker, in all its groups."""
        return sum(len(pages) for pages in self._of(worker))

    def sums_by_tier(self, worker: int) -> UInt64Array:
        """Per group and tier: number of pages and two lanes of their sum; uint64 [groups, 8, 3]."""
        self._of(worker)
        return np.array(self._sums[worker], np.uint64)

    def pages(self, worker: int, group: int) -> tuple[UInt64Array, UInt8Array, UInt8Array]:
        """A worker's pages in no order: hashes, tiers, priorities."""
        pages = self._of(worker, group)[group]
        tiers, priorities = zip(*pages.values(), strict=True) if pages else ((), ())
        return np.array(list(pages), np.uint64), np.array(tiers, np.uint8), np.array(priorities, np.uint8)

    def runs(self, group: int, hashes: UInt64Array, workers: list[int]) -> Int32Array:
        """For each of some workers, how many leading blocks it has, and how many in each tier; int32 [workers, 9]."""
        found = np.zeros((len(workers), 1 + TIERS), np.int32)
        self._of(0, group)
        for row, worker in enumerate(workers):
            own = self._of(worker)[group]
            for name in hashes.tolist():
                if name not in own:
                    break
                found[row, 0] += 1
                found[row, 1 + own[name][0]] += 1
        return found

    def walk(self, group: int, hashes: UInt64Array, workers: list[int]) -> Int8Array:
        """Tier by worker and block, holes and all; int8 [workers, blocks], -1: no page."""
        self._of(0, group)
        names = hashes.tolist()
        rows = [[self._of(worker)[group].get(name, (-1, 0))[0] for name in names] for worker in workers]
        return np.array(rows, np.int8).reshape(len(workers), len(names))


def _checked(records: Int32Array, num_groups: int, num_hashes: int, num_priorities: int) -> list[Any]:
    """Records of five numbers (kind, group, count, before, after), if the recorder may have made them."""
    if records.dtype != np.int32 or records.size % 5 or num_hashes != num_priorities:
        raise ValueError(f"{records.size} numbers, {num_hashes} hashes and {num_priorities} priorities do not fit")
    rows: list[Any] = records.reshape(-1, 5).tolist()
    for kind, group, count, _, after in rows:
        tiers = 256 if kind == Fact.RETAINED else TIERS
        speaks = kind in (Fact.STORED, Fact.MOVED, Fact.RETAINED)
        if not (0 <= kind <= Fact.CLEARED and 0 <= group < num_groups and count >= 0):
            raise ValueError(f"no record: {kind}, {group}, {count}")
        if speaks and not 0 <= after < tiers:
            raise ValueError(f"a record of {kind} with {after}")
    if sum(row[2] for row in rows) != num_hashes:
        raise ValueError(f"{num_hashes} hashes are given, the records name others")
    return rows
