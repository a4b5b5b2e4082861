"""Needs: which pages of a text must be there to go on behind it, and how far a set of pages reaches. Knows no store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.core.records.groups import ALL, LayerGroup

Present = list[NDArray[np.bool_]]  # by group: which blocks are there


def needed_blocks(group: LayerGroup, edge: int, size: int) -> list[int]:
    """Blocks of a group that going on behind block `edge` - 1 reads, ascending."""
    return [block for span in group.needs_at(edge * size, size) for block in range(span.start, min(span.end, edge))]


def useful_pages(groups: Sequence[LayerGroup], have: int, limit: int, size: int) -> list[tuple[int, int]]:
    """(block, group) of all pages that could help to get from `have` blocks to some edge up to `limit`, ascending."""
    pairs: set[tuple[int, int]] = set()
    for nth, group in enumerate(groups):
        tail = group.tail(size)
        first = have if tail == ALL else max(0, have + 1 - tail)
        pairs.update((block, nth) for block in range(first, limit))
        pairs.update((block, nth) for block in range(min(group.sink(size), limit)))
    return sorted(pairs)


def reach(groups: Sequence[LayerGroup], present: Present, have: int, limit: int, size: int) -> int:
    """The last edge, in blocks, behind which every group can go on with what is present; `have` when there is none."""
    for group, there in zip(groups, present, strict=True):
        if group.tail(size) == ALL:
            gap = np.flatnonzero(~there[:limit])
            limit = min(limit, int(gap[0]) if len(gap) else limit)
    bounded = [pair for pair in zip(groups, present, strict=True) if pair[0].tail(size) != ALL]
    for edge in range(limit, have, -1):
        if all(there[needed_blocks(group, edge, size)].all() for group, there in bounded):
            return edge
    return have
