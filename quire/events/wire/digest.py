"""Digest: what a worker's published pages add up to, per group and tier. Knows no batches and no streams.

Publisher and router make it from their own ledgers; equal digests mean that both know the same pages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.store.interface import Ledger

Digest = NDArray[np.uint64]  # [groups, tiers, 3]: pages, and two lanes of their sum


def digest_of(ledger: Ledger, worker: int, num_groups: int, num_tiers: int) -> Digest:
    """What a ledger knows of a worker, in the groups and tiers that the worker has."""
    return ledger.sums_by_tier(worker)[:num_groups, :num_tiers]


def pages_in(digest: Digest) -> int:
    """How many pages it is made of."""
    return int(digest[:, :, 0].sum())


def agrees(ledger: Ledger, worker: int, stated: Digest) -> bool:
    """Whether a ledger knows exactly what a worker publishes: its pages add up to the same, and none is elsewhere."""
    known = digest_of(ledger, worker, *stated.shape[:2])
    return np.array_equal(known, stated) and ledger.num_pages(worker) == pages_in(stated)


def in_hex(digest: Digest) -> list[list[list[str]]]:
    """The two lanes, for people."""
    return [[[f"{lane:016x}" for lane in tier[1:]] for tier in group] for group in digest.tolist()]
