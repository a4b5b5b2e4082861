"""Events: facts about committed pages, as they come out of the store's recorder. Knows no sockets.

Order: within a group a removal comes before the next store; moves and other groups do not wait for it. An event
speaks of a page's hottest tier, so a dropped shadow says nothing. Applying all events in order gives the tree with
tiers and priorities. docs/events.md is the contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import shown
from quire.core.records.identity import RestoredScope, Scope

_MASK = (1 << 64) - 1
PARTIAL, WORDS = 1 << 16, 1 << 17  # in a detail: the block is not full; some of its tokens carry words


class Fact(IntEnum):
    """Kinds of records."""

    CREATED = 0
    STORED = 1
    MOVED = 2
    RETAINED = 3
    REMOVED = 4
    CLEARED = 5


class EventArrays(NamedTuple):
    """Events as the store's recorder gives them: one line per event, and the hashes and tokens they speak of."""

    records: NDArray[np.int64]  # [event, Column]
    hashes: NDArray[np.uint64]
    details: NDArray[np.int32]  # beside each hash: priority, tier, PARTIAL, WORDS
    tokens: NDArray[np.int32]
    lost: int


class Column(IntEnum):
    """Where things are in a record; `at` and `token_at` are places in the other arrays, -1: none."""

    KIND = 0
    GROUP = 1
    COUNT = 2
    AT = 3
    TOKEN_AT = 4
    SIZE = 5  # tokens of each block
    BEFORE = 6  # tier or priority
    AFTER = 7
    PARENT = 8
    ROOT = 9
    UNDER_ROOT = 10


@dataclass(frozen=True, slots=True)
class Created:
    """The pools of one group: slots per tier."""

    group: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A chain of blocks is findable in a tier: in the device, but for the whole state at once and what was restored.

    `parent` is None under the root of a scope.
    """

    group: int
    parent: int | None
    hashes: tuple[int, ...]
    priorities: tuple[int, ...]
    tokens: NDArray[np.int32] = field(repr=False)  # of all blocks, back to back
    tokens_per_block: int
    scope: Scope | RestoredScope | None  # restored: not named yet
    tier: int = 0

    def __repr__(self) -> str:
        what = f"{len(self.hashes)} blocks of {self.tokens_per_block} tokens"
        return f"Stored(group={self.group}, {what}, {shown(self.scope)}, tier={self.tier})"


@dataclass(frozen=True, slots=True)
class Moved:
    """A page's hottest copy is in another tier now."""

    group: int
    hash: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Retained:
    """A page's priority changed."""

    group: int
    hash: int
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class Removed:
    """Pages lost their last copy, or left the tree."""

    group: int
    hashes: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Removed(group={self.group}, {len(self.hashes)} blocks)"


@dataclass(frozen=True, slots=True)
class Cleared:
    """Every page of the group left the tree."""

    group: int


Event = Created | Stored | Moved | Retained | Removed | Cleared


class EventBatch:
    """What was recorded since the last call, as arrays; iterate for records.

    `lost` hashes had no room: what was recorded before them is lost too, and only the whole state helps. A batch with
    the `whole` state says so, and begins with one Cleared per group.
    """

    __slots__ = ("details", "hashes", "lost", "rank", "records", "scopes", "tokens", "whole")

    def __init__(
        self, arrays: EventArrays, scopes: Mapping[int, Scope | RestoredScope], rank: int = 0, whole: bool = False
    ) -> None:
        self.records, self.hashes, self.details, self.tokens, self.lost = arrays
        self.scopes = scopes
        self.rank = rank  # data-parallel rank of the cache
        self.whole = whole

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"EventBatch({len(self)} events, {self.lost} lost, rank={self.rank}, whole={self.whole})"

    def __iter__(self) -> Iterator[Event]:
        return map(self._event, self.records.tolist())

    def _event(self, record: list[int]) -> Event:
        kind, group, count, at, token_at, size, before, after, parent, root, under_root = record
        hashes = tuple(self.hashes[at : at + count].tolist())
        match kind:
            case Fact.CREATED:
                return Created(group, hashes)
            case Fact.STORED:
                priorities = tuple((self.details[at : at + count] & 0xFF).tolist())
                tokens = self.tokens[token_at : token_at + size * count]
                above = None if under_root else parent & _MASK
                scope = self.scopes.get(root & _MASK)
                return Stored(group, above, hashes, priorities, tokens, size, scope, after)
            case Fact.MOVED:
                return Moved(group, hashes[0], before, after)
            case Fact.RETAINED:
                return Retained(group, hashes[0], before, after)
            case Fact.REMOVED:
                return Removed(group, hashes)
        return Cleared(group)


def named(records: NDArray[np.int64]) -> list[int]:
    """Numbers of the scopes that some records speak of."""
    told = records[records[:, Column.TOKEN_AT] >= 0, Column.ROOT]
    return [root & _MASK for root in set(told.tolist())]


def joined(parts: list[tuple[EventArrays, int]]) -> EventArrays:
    """The events of several streams as one; each comes with the number of its first group."""
    if len(parts) == 1:
        return parts[0][0]
    arrays = [own for own, _ in parts]
    records = np.concatenate([own.records for own in arrays])
    rows = [len(own.records) for own in arrays]
    records[:, Column.GROUP] += np.repeat([first for _, first in parts], rows)
    records[:, Column.AT] += np.repeat(_starts([len(own.hashes) for own in arrays]), rows)
    has_tokens = records[:, Column.TOKEN_AT] >= 0
    records[:, Column.TOKEN_AT] += np.repeat(_starts([len(own.tokens) for own in arrays]), rows) * has_tokens
    return EventArrays(
        records,
        np.concatenate([own.hashes for own in arrays]),
        np.concatenate([own.details for own in arrays]),
        np.concatenate([own.tokens for own in arrays]),
        sum(own.lost for own in arrays),
    )


def _starts(sizes: list[int]) -> list[int]:
    """Where each of some things begins when they are put back to back."""
    return [0, *accumulate(sizes[:-1])]


def merged(batches: list[EventBatch]) -> EventBatch:
    """Batches that follow each other as one; only the first may be a whole state."""
    first = batches[0]
    if len(batches) == 1:
        return first
    arrays = joined([(EventArrays(b.records, b.hashes, b.details, b.tokens, b.lost), 0) for b in batches])
    scopes = {root: scope for batch in batches for root, scope in batch.scopes.items()}
    return EventBatch(arrays, scopes, first.rank, first.whole)
