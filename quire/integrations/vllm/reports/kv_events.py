"""EventTranslator: the cache's events under vLLM's own block hashes, for those who read vLLM's stream. Knows no vLLM.

The cache names a page by its event hash; vLLM's hash of the same block is known from any request that has it. What
leaves host memory is published under the name it came with. A page that came up from a disk for a request that is over
has no name: it is published when a request names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.cache import Cache
from quire.core.records.events import Cleared, EventBatch, Moved, Removed, Stored
from quire.core.records.request import Int32, Request
from quire.core.store import open_store
from quire.integrations.vllm.common.cache_groups import HOST
from quire.integrations.vllm.common.request_identity import EngineRequest


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


class BlockNames:
    """The blocks of one request by their event hashes, as far as they were asked for."""

    __slots__ = ("hashes", "ordinals", "request")

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.hashes: list[int] = []
        self.ordinals: dict[int, int] = {}  # event hash: which block it is

    def name(self, block: int) -> Any:
        """vLLM's hash; None without prefix caching, when vLLM names no blocks."""
        return self.request.block_hashes[block] if block < len(self.request.block_hashes) else None


class EventTranslator:
    """Takes the cache's events as they come; one per cache, which must have events on."""

    def __init__(self, cache: Cache) -> None:
        self._cache, self._size, self._seed = cache, cache.config.block_size, cache.config.event_seed
        self._chain = open_store().Chain
        self._known: dict[int, BlockNames] = {}  # event hash: whose request has that block now
        self._names: dict[tuple[int, int], Any] = {}  # group and event hash of what was published: vLLM's hash
        self._nameless: set[tuple[int, int]] = set()  # the same of pages in host memory that were not published
        self._unpublished: list[StoredBlocks | RemovedBlocks] = []

    @property
    def num_nameless(self) -> int:
        """Pages in host memory that were not published."""
        return len(self._nameless)

    def learn(self, names: BlockNames, tokens: Int32, asked: Request) -> None:
        """The names of the whole blocks of these tokens, and what is in host memory without one is events."""
        done, end = len(names.hashes), len(tokens) // self._size
        if end <= done:
            return
        root = names.hashes[-1] if done else asked.scope.event_hash(self._seed)
        fresh = slice(done * self._size, end * self._size)
        chain = self._chain(self._size, tokens[fresh].copy(), self._words(asked, fresh))
        hashes = chain.event_hashes(root, self._seed).tolist()
        names.hashes += hashes
        for block, one in enumerate(hashes, done):
            names.ordinals[one] = block
            self._known[one] = names
        self._tell_nameless(hashes, names)

    def _tell_nameless(self, hashes: list[int], names: BlockNames) -> None:
        if self._nameless:
            for group in range(len(self._cache.config.groups)):
                self._store(group, [one for one in hashes if (group, one) in self._nameless], names)

    def _words(self, asked: Request, fresh: slice) -> NDArray[np.uint64] | None:
        """What tokens carry besides their ids, of the prompt; what is generated carries nothing."""
        words = asked.words()
        if words is None or fresh.start >= len(words):
            return None
        some = np.zeros((fresh.stop - fresh.start, words.shape[1]), np.uint64)
        of_prompt = words[fresh]
        some[: len(of_prompt)] = of_prompt
        return some

    def forget(self, names: BlockNames) -> None:
        """The request is over."""
        self._hear(self._cache.take_events(), names)
        self._tell_nameless(names.hashes, names)  # another that had the same blocks was over before
        for one in names.hashes:
            if self._known.get(one) is names:
                del self._known[one]

    def stored(self, names: BlockNames, tokens: Int32, asked: Request) -> None:
        """A writer has published blocks of these tokens: the cache's next events are mostly theirs."""
        self.learn(names, tokens, asked)
        self._hear(self._cache.take_events(), names)

    def has_news(self) -> bool:
        """Whether events wait to be taken. Called when the engine is idle."""
        self._hear(self._cache.take_events(), None)
        return bool(self._unpublished)

    def take(self) -> list[StoredBlocks | RemovedBlocks]:
        """What is to be published since the last call."""
        self._hear(self._cache.take_events(), None)
        events, self._unpublished = self._unpublished, []
        return events

    def _hear(self, batch: EventBatch, first: BlockNames | None) -> None:
        """`first` is asked for a name before others are."""
        if batch.lost:  # then the state itself says what is there
            batch = self._cache.take_events(whole=True)
        for event in batch:
            if isinstance(event, Stored) and event.tier == HOST:
                self._store(event.group, event.hashes, first)
            elif isinstance(event, Moved) and event.target == HOST:
                self._store(event.group, [event.hash], first)
            elif isinstance(event, Moved) and event.source == HOST:
                self._remove(event.group, [event.hash])
            elif isinstance(event, Removed):
                self._remove(event.group, event.hashes)
            elif isinstance(event, Cleared):
                self._remove(
                    event.group, [one for group, one in (*self._names, *self._nameless) if group == event.group]
                )

    def _store(self, group: int, hashes: Sequence[int], first: BlockNames | None) -> None:
        """Pages are in host memory: published as runs of blocks of one request, or kept until a request names them."""
        run: list[int] = []
        whose: BlockNames | None = None
        for one in hashes:
            names = first if first is not None and one in first.ordinals else self._known.get(one)
            if names is None or names.name(names.ordinals[one]) is None:
                self._nameless.add((group, one))
                continue
            if run and (names is not whose or names.ordinals[one] != names.ordinals[run[-1]] + 1):
                self._tell(group, run, whose)
                run = []
            run.append(one)
            whose = names
        self._tell(group, run, whose)

    def _tell(self, group: int, run: list[int], names: BlockNames | None) -> None:
        if names is None or not run:
            return
        begin, end = names.ordinals[run[0]], names.ordinals[run[-1]] + 1
        events = [names.name(block) for block in range(begin, end)]
        for one, name in zip(run, events, strict=True):
            self._nameless.discard((group, one))
            self._names[group, one] = name
        tokens = names.request.all_token_ids[begin * self._size : end * self._size]
        parent = names.name(begin - 1) if begin else None
        self._unpublished.append(StoredBlocks(names.request, group, tuple(events), parent, tuple(tokens)))

    def _remove(self, group: int, hashes: Iterable[int]) -> None:
        found = []
        for one in hashes:
            self._nameless.discard((group, one))
            name = self._names.pop((group, one), None)
            if name is not None:
                found.append(name)
        if found:
            self._unpublished.append(RemovedBlocks(group, tuple(found)))
