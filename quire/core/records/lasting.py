"""Blocks and pages as arrays, as a memory that outlives the process keeps them. Knows no tree, no files and no format.

roots    who they belong to, as digests            node 0 ── node 1 ── node 3      parents before children
nodes    one block each: parent and tokens              └── node 2
pages    (group, slot) in the lasting tier, and the node whose bytes lie there
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, repr=False)
class BlockNodes:
    """Blocks, each after its parent. A number names one block for the life of a cache and is never given again."""

    number: NDArray[np.int64]  # [n], above 0
    parent: NDArray[np.int64]  # [n] number of the parent block; -1 - r: the first block under root r of `roots`
    start: NDArray[np.int64]  # [n + 1] tokens of block i are tokens[start[i] : start[i + 1]]
    tokens: NDArray[np.int32]
    words: NDArray[np.uint64]  # [k, 3] for the tokens that carry words (extra ids, media) ...
    word_at: NDArray[np.int64]  # [k] ... and where in `tokens` they are, ascending
    roots: tuple[bytes, ...]  # `ScopeDigest` of each root that `parent` names

    def __repr__(self) -> str:
        """How many they are; never what they say."""
        return f"BlockNodes({len(self.number)} blocks, {len(self.roots)} roots)"


@dataclass(frozen=True, slots=True, repr=False)
class LastingPages:
    """Pages whose bytes lie in the lasting tier: one (group, slot) each."""

    group: NDArray[np.int32]
    slot: NDArray[np.int32]
    node: NDArray[np.int64]  # number of the block

    def __repr__(self) -> str:
        return f"LastingPages({len(self.slot)} pages)"


@dataclass(frozen=True, slots=True, repr=False)
class LastingChanges:
    """What changed in the lasting tier since it was last taken: slots whose page went, then new blocks and pages."""

    freed_group: NDArray[np.int32]
    freed_slot: NDArray[np.int32]
    nodes: BlockNodes  # those of `pages`, and their ancestors, that were not reported before
    pages: LastingPages

    def __repr__(self) -> str:
        return f"LastingChanges({len(self.freed_slot)} freed, {self.nodes!r}, {self.pages!r})"
