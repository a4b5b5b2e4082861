"""KeyPolicy: Quire's order behind vLLM's eviction policy of its host cache. Knows the interface, needs no vLLM.

vLLM's manager has the chunks of host memory and calls at each step of a request's life; this says which chunk goes:

    on_store_miss ─► insert ─► mark_evictable ...  mark_non_evictable ─► mark_evictable   on_request_finished
    was it here?     it comes   it is written      it is read                            uses, ages, hints

A key is a block's chained hash and its KV cache group, so a request's keys in order say which continues which.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from quire.core.outside.key_ranking import Clock, KeyRanking
from quire.core.store import StoreName
from quire.core.store.reuse import LATER, ONCE, SOON
from quire.integrations.vllm.plugs.context_wishes import wishes_of

T = TypeVar("T")
HINT_LATER = 2  # as the stores number hints


class Context(Protocol):
    """vLLM's ReqContext: one request, with room for what each part wants to remember of it."""

    req_id: str
    kv_transfer_params: dict[str, Any] | None

    def set_state(self, val: Any) -> None:
        """Remember this."""

    def get_state(self, cls: type[T]) -> T | None:
        """What was remembered of that type."""

    def get_offload_key_position(self, key: bytes) -> int | None:
        """Where the block of a key ends, in tokens."""


class Chunk(Protocol):
    """vLLM's ChunkStatus."""

    ref_cnt: int


@dataclass(slots=True)
class Asked:
    """What the misses of a request have shown so far."""

    known: int = 0  # blocks that were here before
    last: int = ONCE  # the class that the last of those had


class KeyPolicy:
    """Which chunks of host memory go. One for each manager."""

    eviction: Literal["adaptive", "lru"] = "adaptive"

    def __init__(self, cache_capacity: int, clock: Clock = time.monotonic, store: StoreName = "auto") -> None:
        self.cache_capacity = cache_capacity
        self._ranking = KeyRanking(max(1, cache_capacity), self.eviction, clock=clock, store=store)
        self._order = self._ranking.order
        self._chunks: dict[bytes, Any] = {}
        for name, act in (
            ("get", self._chunks.get), ("mark_evictable", self._order.let_go), ("mark_non_evictable", self._order.hold),
        ):  # fmt: skip
            setattr(self, name, act)  # called for every block: a call less each

    def get(self, key: bytes) -> Any:
        """The chunk of a key, or None."""
        return self._chunks.get(key)

    def insert(self, key: bytes, chunk: Chunk, req_context: Context | None = None) -> None:
        """A chunk is being written; it may not go before `mark_evictable`. The context comes from vLLM 0.33 on."""
        if key not in self._chunks:
            self._order.come(key)
        self._chunks[key] = chunk
        if chunk.ref_cnt == 0:
            self._order.let_go(key)

    def remove(self, key: bytes) -> None:
        """It could not be written."""
        if self._chunks.pop(key, None) is not None:
            self._order.drop(key)

    def mark_evictable(self, key: bytes) -> None:
        """It is not read or written any more."""
        self._order.let_go(key)

    def mark_non_evictable(self, key: bytes) -> None:
        """It is read."""
        self._order.hold(key)

    def evict(self, n: int, protected: Collection[bytes]) -> list[tuple[bytes, Any]] | None:
        """So many chunks go, none of them protected; None: there are fewer, and nothing has changed."""
        gone = self._ranking.take(n, protected)
        return None if gone is None else list(zip(gone, map(self._chunks.pop, gone), strict=True))

    def on_store_miss(self, keys: Iterable[bytes], req_context: Context) -> None:
        """A request has computed blocks that are not here: which of them were?"""
        known, last = self._ranking.meet(list(keys))
        if known:
            asked = req_context.get_state(Asked) or Asked()
            asked.known, asked.last = asked.known + known, last
            req_context.set_state(asked)

    def touch(self, keys: Iterable[bytes], req_context: Context) -> None:
        """Used, by a caller that says no more; vLLM's own says more in `on_request_finished`."""
        used = [key for key in keys if key in self._chunks]
        self._ranking.use(used, {key for key in used if self._chunks[key].ref_cnt >= 0}, False)

    def on_request_finished(
        self, key_groups: Sequence[Sequence[bytes]], insertion_only_keys: set[bytes], reused_keys: set[bytes],
        req_context: Context,
    ) -> None:  # fmt: skip
        """A request is over: what it has used, what it has made, and what was said of it."""
        groups = [group for group in key_groups if group]
        if not groups:
            return
        for group in groups:
            self._order.chain(group)
        asked = req_context.get_state(Asked) or Asked()
        before = _blocks_before(max(groups, key=len), req_context)
        known = before + asked.known + len(reused_keys)
        blocks = before + sum(map(len, groups))
        last = self._ranking.use(_in_order(groups, req_context), reused_keys, known > 0 and blocks <= 2 * known)
        self._follow_wishes(groups, asked.last if asked.known else last, req_context)

    def _follow_wishes(self, groups: list[Sequence[bytes]], last: int, context: Context) -> None:
        """A hint that a person is thinking counts only where a tool has run before, as in Quire's own cache."""
        wishes = wishes_of(context)
        if wishes is None:
            return
        for group in groups:
            if wishes.back and (wishes.back != HINT_LATER or last in (SOON, LATER)):
                self._order.hint(group, wishes.back)
            if wishes.retains:
                ends = [context.get_offload_key_position(key) for key in group]
                within = [key for key, end in zip(group, ends, strict=True) if wishes.covers(end)]
                self._ranking.retain(within, wishes.priority, wishes.seconds)

    def clear(self) -> None:
        """All chunks go, whatever is under way, and all that was learned."""
        self._ranking.clear()
        self._chunks.clear()


def _in_order(groups: list[Sequence[bytes]], context: Context) -> Sequence[bytes]:
    """The keys of all groups by where their blocks end; one group's as they are."""
    if len(groups) == 1:
        return groups[0]
    keys = [key for group in groups for key in group]
    ends = [context.get_offload_key_position(key) for key in keys]
    if None in ends:
        return keys
    return [key for _, key in sorted(zip(ends, keys, strict=True), key=lambda pair: pair[0] or 0)]


def _blocks_before(keys: Sequence[bytes], context: Context) -> int:
    """Blocks of the prompt that were on the device, and so never asked for: those before the first key."""
    first = context.get_offload_key_position(keys[0])
    second = context.get_offload_key_position(keys[1]) if len(keys) > 1 else None
    if first is None or second is None or second <= first:
        return 0
    return max(0, first // (second - first) - 1)
