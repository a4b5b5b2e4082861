"""The ledger: which worker has which published page."""

from __future__ import annotations

from typing import Protocol

from quire.core.store.interface.arrays import Int8Array, Int32Array, UInt8Array, UInt64Array


class Ledger(Protocol):
    """Which worker has which published page, in which tier, according to the records."""

    def __init__(self, num_workers: int = 1, num_groups: int = 1) -> None: ...

    def __len__(self) -> int: ...

    def widen(self, num_workers: int, num_groups: int) -> None:
        """Room for that many workers and groups."""

    def apply(self, worker: int, records: Int32Array, hashes: UInt64Array, priorities: UInt8Array) -> int:
        """Apply records in order, all or none; how many of them did not fit what was known."""

    def clear(self, worker: int) -> None:
        """Forget a worker's pages."""

    def num_pages(self, worker: int) -> int:
        """Pages of a worker, in all its groups."""

    def sums_by_tier(self, worker: int) -> UInt64Array:
        """Per group and tier: number of pages and two lanes of their sum; [groups, 8, 3]."""

    def pages(self, worker: int, group: int) -> tuple[UInt64Array, UInt8Array, UInt8Array]:
        """A worker's pages in no order: hashes, tiers, priorities."""

    def runs(self, group: int, hashes: UInt64Array, workers: list[int]) -> Int32Array:
        """For each of some workers, how many leading blocks it has, and how many in each tier; [workers, 9]."""

    def walk(self, group: int, hashes: UInt64Array, workers: list[int]) -> Int8Array:
        """Tier by worker and block, holes and all, -1: no page; [workers, blocks]."""
