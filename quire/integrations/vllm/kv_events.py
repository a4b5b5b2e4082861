"""EventTranslator: the cache's events under vLLM's own block hashes, for those who read vLLM's stream. Knows no vLLM.

The cache names a page by its event hash. What a writer just published is translated block by block, and what leaves is
told under the name it came with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.cache import Cache
from quire.core.records.events import Cleared, EventBatch, Removed, Stored
from quire.core.records.request import Int32, Request
from quire.core.store import open_store
from quire.integrations.vllm.identity import EngineRequest


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Consecutive blocks of one request that are in host memory now."""

    request: EngineRequest
    group: int
    hashes: tuple[Any, ...]  # vLLM's
    parent: Any  # None: the first of the prompt
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemovedBlocks:
    """Blocks that are not in host memory any more."""

    group: int
    hashes: tuple[Any, ...]


class EventTranslator:
    """Takes the cache's events as they come; one per cache, which must have events on."""

    def __init__(self, cache: Cache) -> None:
        self._cache, self._size = cache, cache.config.block_size
        self._chain = open_store().Chain
        self._names: dict[tuple[int, int], Any] = {}  # group and event hash: vLLM's hash
        self._told: list[StoredBlocks | RemovedBlocks] = []

    def stored(self, request: EngineRequest, tokens: Int32, written: Request) -> None:
        """A writer has published blocks of these tokens: what the cache tells now is theirs."""
        words = written.words()
        prompt = tokens[: len(written.tokens)]
        chain = self._chain(self._size, prompt.copy(), None if words is None else words[: len(prompt)])
        if len(tokens) > len(prompt):
            chain.add_tokens(tokens[len(prompt) :].copy())
        seed = self._cache.config.event_seed
        hashes = chain.event_hashes(written.scope.event_hash(seed), seed).tolist()
        ordinals = {name: block for block, name in enumerate(hashes)}
        self._hear(self._cache.take_events(), request, ordinals)

    def take(self) -> list[StoredBlocks | RemovedBlocks]:
        """What is to be told since the last call."""
        self._hear(self._cache.take_events(), None, {})
        told, self._told = self._told, []
        return told

    def _hear(self, batch: EventBatch, request: EngineRequest | None, ordinals: dict[int, int]) -> None:
        if batch.lost:
            self._forget(range(len(self._cache.config.groups)))
            return
        for event in batch:
            if isinstance(event, Stored) and request is not None:
                self._store(event, request, [ordinals[name] for name in event.hashes])
            elif isinstance(event, Removed):
                names = [self._names.pop((event.group, name), None) for name in event.hashes]
                self._remove(event.group, [name for name in names if name is not None])
            elif isinstance(event, Cleared):
                self._forget((event.group,))

    def _store(self, event: Stored, request: EngineRequest, blocks: list[int]) -> None:
        if blocks[-1] >= len(request.block_hashes):  # without prefix caching vLLM names no blocks
            return
        names = [request.block_hashes[block] for block in blocks]
        self._names.update({(event.group, ours): name for ours, name in zip(event.hashes, names, strict=True)})
        parent = request.block_hashes[blocks[0] - 1] if blocks[0] else None
        self._told.append(StoredBlocks(request, event.group, tuple(names), parent, tuple(event.tokens.tolist())))

    def _remove(self, group: int, names: Sequence[Any]) -> None:
        if names:
            self._told.append(RemovedBlocks(group, tuple(names)))

    def _forget(self, groups: Sequence[int]) -> None:
        for group in groups:
            gone = [key for key in self._names if key[0] == group]
            self._remove(group, [self._names.pop(key) for key in gone])
