"""Encode: a batch of the recorder as the events that KV-aware routers read. Owns both encodings; knows no sockets.

    map      vLLM 0.24 and later, Dynamo           {"type": "BlockStored", "block_hashes": [...], ...}
    array    older vLLM, SGLang, llm-d, Dynamo     ["BlockStored", hashes, parent, tokens, ...]

Only whole blocks are told here: routers count in them. Priorities and partial blocks are in the delta (delta.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quire.core.events import PARTIAL, WORDS, EventBatch, Fact
from quire.events import pack
from quire.events.names import SALT_TAG, Names, lora_of, salt_of, salt_of_words
from quire.events.stamp import HASH, PARENT, TOKEN, Stamp

Encoding = Literal["map", "array"]
Hashes = NDArray[np.uint64] | list[int]
Tokens = NDArray[np.uint32] | list[int]
Label = tuple[int | None, str | None, str | None]  # adapter's id and name, salt
MANY, MAX_STAMPS = 8, 256  # stores alike from which a stamp pays; stamps kept
SHORT = 8  # blocks per record, on average, below which plain lists are quicker than arrays
_MASK = (1 << 64) - 1
_STORED, _MOVED, _REMOVED, _CLEARED = map(int, (Fact.STORED, Fact.MOVED, Fact.REMOVED, Fact.CLEARED))


class Blocks:
    """Blocks to tell as stored: each is the parent of the next."""

    __slots__ = ("group", "hashes", "label", "parent", "tokens", "words")

    def __init__(self, group: int, parent: int | None, hashes: Hashes, tokens: Tokens, label: Label) -> None:
        self.group, self.parent, self.hashes, self.tokens, self.label = group, parent, hashes, tokens, label
        self.words = False


class Sheet:
    """A batch, laid out for reading record by record; the places in a record are those of Column."""

    __slots__ = ("_hashes", "_labels", "_short", "_size", "_tokens", "_words", "batch", "records")

    def __init__(self, batch: EventBatch, size: int) -> None:
        self.batch, self._size = batch, size
        self.records: list[list[int]] = batch.records.tolist()
        words = batch.details & WORDS
        self._words = words if words.any() else None
        self._labels: dict[int, Label] = {}
        self._hashes: Hashes = batch.hashes
        self._tokens: Tokens = batch.tokens.view(np.uint32)
        self._short = len(batch.hashes) < SHORT * len(self.records)

    def label(self, root: int) -> Label:
        """What tells the scope of a root from others."""
        label = self._labels.get(root)
        if label is None:
            scope = self.batch.scopes.get(root & _MASK)
            label = self._labels[root] = (*lora_of(scope), salt_of(scope))
        return label

    def is_stampable(self, records: list[list[int]]) -> bool:
        """Records of one whole block each, without words, and with nothing between them."""
        first, last, steps = records[0], records[-1], len(records) - 1
        alike = first[2] == 1 and first[5] == self._size and self._words is None
        return alike and last[3] - first[3] == steps and last[4] - first[4] == steps * self._size

    def chains(self, record: list[int]) -> Iterator[Blocks]:
        """The blocks of a record that are whole, those with words apart from those without."""
        _, group, count, at, token_at, size, _, _, parent, root, under_root = record
        if size != self._size:
            return
        if self._short:  # slices of lists are quicker than many small arrays
            self._hashes, self._tokens = self.batch.hashes.tolist(), self.batch.tokens.view(np.uint32).tolist()
            self._short = False
        label = self.label(root)
        above = None if under_root else parent & _MASK
        if self._words is None:
            hashes, tokens = self._hashes[at : at + count], self._tokens[token_at : token_at + count * size]
            yield Blocks(group, above, hashes, tokens, label)
            return
        words = self._words[at : at + count]
        for start, stop in pairwise([0, *(np.flatnonzero(np.diff(words)) + 1).tolist(), count]):
            hashes = self._hashes[at + start : at + stop]
            tokens = self._tokens[token_at + start * size : token_at + stop * size]
            chain = Blocks(group, int(self._hashes[at + start - 1]) if start else above, hashes, tokens, label)
            chain.words = bool(words[start])
            yield chain


class Encoder:
    """Events of one publisher."""

    __slots__ = ("_array", "_stamps", "names")

    def __init__(self, names: Names, encoding: Encoding) -> None:
        self._stamps: dict[tuple[int, int, Label, int], Stamp] = {}
        self.names = names
        self._array = encoding == "array"

    def events(self, batch: EventBatch) -> list[Any]:
        """What a batch comes to, in order; a page that moves is stored there, then removed here."""
        sheet = Sheet(batch, self.size)
        first = _after_clearing(sheet.records)
        told: list[Any] = [self._cleared()] if first else []
        live = sheet.records
        if first:
            live = [record for nth, record in enumerate(live) if nth >= first.get(record[1], 0)]
        for (kind, source, target), same in groupby(live, _ends):
            if kind == _STORED:
                for _, alike in groupby(same, _shape):
                    told += self._stores(sheet, list(alike), target)
            elif kind == _MOVED and self.names.media[source] != self.names.media[target]:
                told += self._moved([chain for record in same for chain in sheet.chains(record)], source, target)
            elif kind == _REMOVED:
                told += [event for record in same for event in self._removed(batch, record)]
        return told

    @property
    def size(self) -> int:
        return self.names.block_size

    def carrier(self, extra: Any) -> Any:
        """An event that says nothing to others: a removal of no block, with our own field behind it."""
        if self._array:
            return ["BlockRemoved", [], self.names.media[0], None, None, None, extra]
        return {"type": "BlockRemoved", "block_hashes": [], "medium": self.names.media[0], "quire": extra}

    def _stores(self, sheet: Sheet, records: list[list[int]], tier: int) -> list[Any]:
        """Stores that follow each other and look alike; many of one block each are stamped."""
        if len(records) < MANY or not sheet.is_stampable(records):
            return [self._stored(chain, tier) for record in records for chain in sheet.chains(record)]
        _, group, _, at, token_at, size, _, _, _, root, under_root = records[0]
        label, count = sheet.label(root), len(records)
        key = (group, tier, label, under_root)
        stamp = self._stamps.get(key)
        if stamp is None:
            if len(self._stamps) >= MAX_STAMPS:
                self._stamps.clear()
            blank = Blocks(group, None if under_root else PARENT, [HASH], [TOKEN] * size, label)
            stamp = self._stamps[key] = Stamp(self._stored(blank, tier))
        parents = np.array([record[8] for record in records], np.int64).view(np.uint64)
        tokens = sheet.batch.tokens[token_at : token_at + count * size].view(np.uint32).reshape(count, size)
        return [stamp.fill(sheet.batch.hashes[at : at + count], parents, tokens)]

    def _stored(self, chain: Blocks, tier: int) -> Any:
        names, medium = self.names.groups[chain.group], self.names.media[tier]
        lora_id, lora_name, salt = chain.label
        if chain.words:
            salt = salt_of_words(int(chain.hashes[0]))
        keys = None if salt is None else [[SALT_TAG + salt]] * len(chain.hashes)
        hashes, tokens = pack.hashes(chain.hashes), pack.tokens(chain.tokens)
        if self._array:
            start = ["BlockStored", hashes, chain.parent, tokens, self.size, lora_id, medium, lora_name]
            return [*start, keys, chain.group, names.kind, names.window, None, None]
        event: dict[str, Any] = {
            "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": chain.parent, "token_ids": tokens,
            "block_size": self.size, "lora_id": lora_id, "medium": medium, "lora_name": lora_name,
            "group_idx": chain.group, "kv_cache_spec_kind": names.kind,
        }  # fmt: skip
        if keys is not None:
            event["extra_keys"], event["cache_salt"] = keys, salt
        if names.window is not None:
            event["kv_cache_spec_sliding_window"] = names.window
        return event

    def _moved(self, chains: list[Blocks], source: int, target: int) -> list[Any]:
        """Moves that follow each other: all stored there, then all removed here, group by group."""
        told: list[Any] = []
        for group, same in groupby(chains, lambda chain: chain.group):
            run = list(same)
            if len(run) > 1 and run[0].parent == int(run[1].hashes[0]):
                run.reverse()  # eviction takes the deepest block first; routers want parents first
            gone = np.concatenate([np.asarray(chain.hashes, np.uint64) for chain in run])
            told += [self._stored(chain, target) for chain in _joined(run)]
            told.append(self._gone(group, gone, source))
        return told

    def _removed(self, batch: EventBatch, record: list[int]) -> Iterator[Any]:
        group, count, at = record[1:4]
        hashes, details = batch.hashes[at : at + count], batch.details[at : at + count]
        if not (details & ~0xFF).any():  # the usual case: whole blocks on the device
            yield self._gone(group, hashes, 0)
            return
        whole, tiers = details & PARTIAL == 0, details >> 8 & 0xFF
        for tier in np.unique(tiers[whole]).tolist():
            yield self._gone(group, hashes[whole & (tiers == tier)], tier)

    def _gone(self, group: int, hashes: NDArray[np.uint64], tier: int) -> Any:
        medium = self.names.media[tier]
        if self._array:
            return ["BlockRemoved", pack.hashes(hashes), medium, group]
        return {"type": "BlockRemoved", "block_hashes": pack.hashes(hashes), "medium": medium, "group_idx": group}

    def _cleared(self) -> Any:
        return ["AllBlocksCleared"] if self._array else {"type": "AllBlocksCleared"}


def _ends(record: list[int]) -> tuple[int, int, int]:
    return record[0], record[6], record[7]


def _shape(record: list[int]) -> tuple[int, int, int, int, int]:
    """Group, blocks, tokens per block, scope, and whether it is at the root."""
    return record[1], record[2], record[5], record[9], record[10]


def _after_clearing(records: list[list[int]]) -> dict[int, int]:
    """By group, the place after its last clearing. A clearing is of all groups; what came before it is void."""
    return {record[1]: nth + 1 for nth, record in enumerate(records) if record[0] == _CLEARED}


def _joined(chains: list[Blocks]) -> Iterator[Blocks]:
    """Chains that go on where the one before ends, as one."""
    run: list[Blocks] = []
    for chain in chains:
        if run and not (chain.parent == int(run[-1].hashes[-1]) and chain.words == run[-1].words):
            yield _one(run)
            run = []
        run.append(chain)
    if run:
        yield _one(run)


def _one(run: list[Blocks]) -> Blocks:
    first = run[0]
    if len(run) > 1:
        first.hashes = np.concatenate([np.asarray(chain.hashes, np.uint64) for chain in run])
        first.tokens = np.concatenate([np.asarray(chain.tokens, np.uint32) for chain in run])
    return first
