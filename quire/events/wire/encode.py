"""Encode: a batch of the recorder as the events that KV-aware routers read. Owns both encodings; knows no sockets.

    map      vLLM 0.24 and later, Dynamo           {"type": "BlockStored", "block_hashes": [...], ...}
    array    older vLLM, SGLang, llm-d, Dynamo     ["BlockStored", hashes, parent, tokens, ...]

Only whole blocks are encoded here: routers count in them. Priorities and partial blocks are in the delta (delta.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.core.records.events import PARTIAL, Column, EventBatch, Fact
from quire.events.wire import pack
from quire.events.wire.batch_columns import BatchColumns, BlockChain, RecordRun, ScopeLabel
from quire.events.wire.names import SALT_TAG, Names, salt_of_words
from quire.events.wire.template import HASH, PARENT, TOKEN, EncodedEvents, EventTemplate

Encoding = Literal["map", "array"]
UNENCODABLE = (ValueError, TypeError, OverflowError, msgspec.MsgspecError)  # a UnicodeEncodeError is a ValueError
_encoder = msgspec.msgpack.Encoder()
MANY, MAX_TEMPLATES = 8, 256  # stores alike from which a template pays; templates kept


class EventEncoder:
    """Events of one publisher."""

    __slots__ = ("_array", "_templates", "dropped", "names")

    def __init__(self, names: Names, encoding: Encoding) -> None:
        self._templates: dict[tuple[int, int, ScopeLabel, bool], EventTemplate] = {}
        self.names = names
        self.dropped = 0  # events that could not be encoded: a scope's name that is not text, as a lone surrogate
        self._array = encoding == "array"

    def events(self, batch: EventBatch) -> list[Any]:
        """What a batch comes to, in order; a page that moves is stored there, then removed here."""
        columns = BatchColumns(batch, self.size)
        events: list[Any] = [self._cleared()] if columns.cleared else []
        for (kind, source, target), alike in groupby(columns.runs(), lambda run: run.ends):
            if kind == Fact.STORED:
                events += [event for run in alike for event in self._stores(columns, run, target)]
            elif kind == Fact.MOVED and self.names.media[source] != self.names.media[target]:
                chains = [chain for run in alike for chain in columns.chains(run)]
                events += self._moved(chains, source, target)
            elif kind == Fact.REMOVED:
                records = (record for run in alike for record in run.records.tolist())
                events += [event for record in records for event in self._removed(batch, record)]
        return events

    @property
    def size(self) -> int:
        return self.names.block_size

    def carrier(self, field: Any) -> Any:
        """An event that says nothing to others: a removal of no block, with our own field behind it."""
        if self._array:
            return ["BlockRemoved", [], self.names.media[0], None, None, None, field]
        return {"type": "BlockRemoved", "block_hashes": [], "medium": self.names.media[0], "quire": field}

    def _stores(self, columns: BatchColumns, run: RecordRun, tier: int) -> list[Any]:
        """Stores that follow each other and look alike; many of one block each are written at once."""
        if len(run.records) < MANY or not columns.are_single(run):
            return [self._stored(chain, tier) for chain in columns.chains(run)]
        group, root, under_root = run.first[Column.GROUP], run.first[Column.ROOT], run.first[Column.UNDER_ROOT]
        try:
            template = self._template(group, tier, columns.label(root), bool(under_root))
        except UNENCODABLE:
            self.dropped += len(run.records)
            return []
        return [template.fill(columns.singles(run))]

    def encoded(self, events: list[Any]) -> EncodedEvents:
        """All that can be encoded, back to back; what cannot is left out and counted, and ends nothing."""
        count, data = 0, bytearray()
        for event in events:
            if isinstance(event, EncodedEvents):
                count += event.count
                data += event.data
                continue
            try:
                data += _encoder.encode(event)
                count += 1
            except UNENCODABLE:
                self.dropped += 1
        return EncodedEvents(count, data)

    def _template(self, group: int, tier: int, label: ScopeLabel, under_root: bool) -> EventTemplate:
        """What such stores have in common, made once."""
        key = (group, tier, label, under_root)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            blank = BlockChain(group, None if under_root else PARENT, [HASH], [TOKEN] * self.size, label)
            template = self._templates[key] = EventTemplate(self._stored(blank, tier), self.size, not under_root)
        return template

    def _stored(self, chain: BlockChain, tier: int) -> Any:
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

    def _moved(self, chains: list[BlockChain], source: int, target: int) -> list[Any]:
        """Moves that follow each other: all stored there, then all removed here, group by group."""
        events: list[Any] = []
        for group, same in groupby(chains, lambda chain: chain.group):
            run = list(_parents_first(list(same)))
            gone = np.concatenate([np.asarray(chain.hashes, np.uint64) for chain in run])
            events += [self._stored(chain, target) for chain in _joined(run)]
            events.append(self._gone(group, gone, source))
        return events

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


def _parents_first(chains: list[BlockChain]) -> Iterator[BlockChain]:
    """Eviction takes the deepest block first, of several sequences in turn; routers want parents first."""
    waiting = {int(chain.hashes[-1]): chain for chain in chains}
    for chain in chains:
        line: list[BlockChain] = []
        above = waiting.pop(int(chain.hashes[-1]), None)
        while above is not None:
            line.append(above)
            above = None if above.parent is None else waiting.pop(above.parent, None)
        yield from reversed(line)


def _joined(chains: list[BlockChain]) -> Iterator[BlockChain]:
    """Chains that go on where the one before ends, as one."""
    run: list[BlockChain] = []
    for chain in chains:
        if run and not (chain.parent == int(run[-1].hashes[-1]) and chain.words == run[-1].words):
            yield _join_chains(run)
            run = []
        run.append(chain)
    if run:
        yield _join_chains(run)


def _join_chains(run: list[BlockChain]) -> BlockChain:
    first = run[0]
    if len(run) > 1:
        first.hashes = np.concatenate([np.asarray(chain.hashes, np.uint64) for chain in run])
        first.tokens = np.concatenate([np.asarray(chain.tokens, np.uint32) for chain in run])
    return first
