"""Blocks of an earlier process, from the line of an incident: what `Cache.restore` takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.core.records.identity import Scope
from quire.core.records.lasting import BlockNodes, LastingPages
from quire.incidents.files.naming import unpacked


def restored_blocks(
    numbers: list[int], parents: list[int], tokens: list[list[int]], roots: list[Any], where: list[list[int]]
) -> tuple[BlockNodes, LastingPages]:
    """Blocks of numbers in place of tokens, and their pages."""
    texts = [unpacked(some) for some in tokens]
    start = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    joined = np.concatenate([np.empty(0, np.int32), *texts]).astype(np.int32)
    nodes = BlockNodes(
        np.array(numbers, np.int64), np.array(parents, np.int64), start, joined, np.empty((0, 3), np.uint64),
        np.empty(0, np.int64), tuple(Scope(*scope).digest for scope in roots),
    )  # fmt: skip
    kinds = (np.int32, np.int32, np.int64)
    return nodes, LastingPages(*[np.array(part, kind) for part, kind in zip(where, kinds, strict=True)])
