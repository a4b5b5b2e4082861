"""BatchColumns: a batch of the recorder by columns: runs of records alike, and the blocks that they name.

Owns the way through a batch; knows no encodings. What many records have in common is found by comparing columns, so
that a step in which each of many sequences stores one block costs no Python per block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.core.records.events import WORDS, Column, EventBatch, Fact
from quire.events.wire.names import lora_of, salt_of

RecordArray = NDArray[np.int64]
HashList = NDArray[np.uint64] | list[int]
TokenList = NDArray[np.uint32] | list[int]
SHORT = 8  # blocks per record, on average, below which plain lists are quicker than arrays
_SHAPE = np.array([
    Column.KIND, Column.BEFORE, Column.AFTER, Column.GROUP, Column.COUNT, Column.SIZE, Column.ROOT, Column.UNDER_ROOT,
])  # fmt: skip
_CLEARED = int(Fact.CLEARED)  # NumPy takes an int quicker than a name
_MASK = (1 << 64) - 1


class ScopeLabel(NamedTuple):
    """What distinguishes a scope, as consumers read it."""

    lora_id: int | None
    lora_name: str | None
    salt: str | None


class BlockChain:
    """Blocks to publish as stored: each is the parent of the next."""

    __slots__ = ("group", "hashes", "label", "parent", "tokens", "words")

    def __init__(self, group: int, parent: int | None, hashes: HashList, tokens: TokenList, label: ScopeLabel) -> None:
        self.group, self.parent, self.hashes, self.tokens, self.label = group, parent, hashes, tokens, label
        self.words = False


class SingleBlocks(NamedTuple):
    """Many blocks that are not a chain: one row each."""

    hashes: NDArray[np.uint64]
    parents: NDArray[np.uint64]
    tokens: NDArray[np.uint32]  # [blocks, block size]


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Records that follow each other and have one shape: kind, tiers, group, size, scope."""

    first: list[int]
    records: RecordArray

    @property
    def ends(self) -> tuple[int, int, int]:
        """Kind, and the tiers that it is from and to."""
        return self.first[Column.KIND], self.first[Column.BEFORE], self.first[Column.AFTER]


class BatchColumns:
    """What a batch still means: what came before a clearing is void, and left out."""

    __slots__ = ("_batch", "_hashes", "_labels", "_records", "_short", "_size", "_tokens", "_words", "cleared")

    def __init__(self, batch: EventBatch, size: int) -> None:
        self._batch, self._size = batch, size
        self._records, self.cleared = _after_clearing(batch.records)
        words = batch.details & WORDS
        self._words = words if words.any() else None
        self._labels: dict[int, ScopeLabel] = {}
        self._hashes: HashList = batch.hashes
        self._tokens: TokenList = batch.tokens.view(np.uint32)
        self._short = len(batch.hashes) < SHORT * len(self._records)

    def label(self, root: int) -> ScopeLabel:
        """What distinguishes the scope of a root."""
        label = self._labels.get(root)
        if label is None:
            scope = self._batch.scopes.get(root & _MASK)
            label = self._labels[root] = ScopeLabel(*lora_of(scope), salt_of(scope))
        return label

    def runs(self) -> Iterator[RecordRun]:
        """All records, in order."""
        if len(self._records):
            shapes = self._records.take(_SHAPE, axis=1)
            starts = [0, *(np.flatnonzero((shapes[1:] != shapes[:-1]).any(axis=1)) + 1).tolist()]
            for first, (start, stop) in zip(
                self._records[starts].tolist(), pairwise([*starts, len(self._records)]), strict=True
            ):
                yield RecordRun(first, self._records[start:stop])

    def are_single(self, run: RecordRun) -> bool:
        """One whole block each, without words, and with nothing between them."""
        first, last, steps = run.first, run.records[-1].tolist(), len(run.records) - 1
        alike = first[Column.COUNT] == 1 and first[Column.SIZE] == self._size and self._words is None
        apart = last[Column.AT] - first[Column.AT], last[Column.TOKEN_AT] - first[Column.TOKEN_AT]
        return alike and apart == (steps, steps * self._size)

    def singles(self, run: RecordRun) -> SingleBlocks:
        """The blocks of a run for which `are_single` holds."""
        count, at, token_at = len(run.records), run.first[Column.AT], run.first[Column.TOKEN_AT]
        tokens = self._batch.tokens[token_at : token_at + count * self._size].view(np.uint32)
        parents = run.records[:, Column.PARENT].view(np.uint64)
        return SingleBlocks(self._batch.hashes[at : at + count], parents, tokens.reshape(count, self._size))

    def chains(self, run: RecordRun) -> Iterator[BlockChain]:
        """The blocks that are whole, record by record, those with words apart from those without."""
        if self._short:  # slices of lists are quicker than many small arrays
            self._hashes, self._tokens = self._batch.hashes.tolist(), self._batch.tokens.view(np.uint32).tolist()
            self._short = False
        for _, group, count, at, token_at, size, _, _, parent, root, under_root in run.records.tolist():
            if size != self._size:
                continue
            hashes, tokens = self._hashes[at : at + count], self._tokens[token_at : token_at + count * size]
            chain = BlockChain(group, None if under_root else parent & _MASK, hashes, tokens, self.label(root))
            if self._words is None:
                yield chain
            else:
                yield from self._split_by_words(chain, self._words[at : at + count])

    def _split_by_words(self, chain: BlockChain, words: NDArray[np.int32]) -> Iterator[BlockChain]:
        """Blocks with words apart from those without; `words` says which."""
        cuts = [0, *(np.flatnonzero(np.diff(words)) + 1).tolist(), len(words)]
        for start, stop in pairwise(cuts):
            parent = int(chain.hashes[start - 1]) if start else chain.parent
            tokens = chain.tokens[start * self._size : stop * self._size]
            part = BlockChain(chain.group, parent, chain.hashes[start:stop], tokens, chain.label)
            part.words = bool(words[start])
            yield part


def _after_clearing(records: RecordArray) -> tuple[RecordArray, bool]:
    """Those after the last clearing of their group, and whether there was one. A clearing is of all groups."""
    cleared = np.flatnonzero(records[:, Column.KIND] == _CLEARED)
    if not len(cleared):
        return records, False
    last = np.full(int(records[:, Column.GROUP].max()) + 1, -1)
    last[records[cleared, Column.GROUP]] = cleared  # of several, the last one counts
    return records[np.arange(len(records)) > last[records[:, Column.GROUP]]], True
