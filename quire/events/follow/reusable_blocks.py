"""Reuse: how many leading blocks a worker could resume from. Owns the rule for several groups; knows no streams.

A boundary is good when every group that reads the sequence's own tokens could resume there: all blocks before it, or
its last and first ones. Cross groups read another stream and take no part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.events.wire.names import Names

if TYPE_CHECKING:
    from quire.core.store.interface import Ledger


class Reusable(NamedTuple):
    """Per worker, the leading tokens that it need not compute, and how many of them it has in each tier."""

    tokens: list[int]
    tiers: list[list[int]]


def leading(ledger: Ledger, names: Names, hashes: NDArray[np.uint64], slots: list[int]) -> Reusable:
    """With one group that needs every block."""
    runs = ledger.runs(names.own_groups[0], hashes, slots) * names.block_size
    return Reusable(runs[:, 0].tolist(), runs[:, 1 : 1 + len(names.media)].tolist())


def resumable(ledger: Ledger, names: Names, hashes: NDArray[np.uint64], slots: list[int]) -> Reusable:
    """With any groups: tokens up to the last good boundary.

    A block counts in the coldest tier that some group has it in.
    """
    size = len(hashes)
    ends = np.arange(1, size + 1)
    tiers = [ledger.walk(group, hashes, slots) for group in names.own_groups]
    good = np.ones((len(slots), size), bool)
    for group, found in zip(names.own_groups, tiers, strict=True):
        tail, sink = names.groups[group].tail, names.groups[group].sink
        there = found >= 0
        last_hole = np.maximum.accumulate(np.where(there, 0, ends), axis=1)
        run = ends - last_hole  # blocks without a hole up to here
        first_hole = np.where(there.all(axis=1), size, there.argmin(axis=1))[:, None] if size else np.zeros((1, 1))
        good &= run >= (ends if tail < 0 else np.minimum(ends, tail))
        good &= first_hole >= np.minimum(ends, sink)
    coldest = np.max(tiers, axis=0)
    held = Reusable([], [])
    for worker in range(len(slots)):
        boundary = int(np.flatnonzero(good[worker])[-1]) + 1 if good[worker].any() else 0
        by_tier = np.bincount(np.maximum(coldest[worker, :boundary], 0), minlength=8)
        held.tokens.append(boundary * names.block_size)
        held.tiers.append((by_tier[: len(names.media)] * names.block_size).tolist())
    return held
