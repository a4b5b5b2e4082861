"""Events: facts about committed pages, as they come out of the store's recorder. Knows no sockets.

Order: within a group a removal is told before the next store; moves and other groups do not wait for it. An event
speaks of a page's hottest tier, so a dropped shadow says nothing. Applying all events in order gives the tree with
tiers and priorities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.identity import Scope

_MASK = (1 << 64) - 1
Arrays = tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int32], NDArray[np.int32], int]


@dataclass(frozen=True, slots=True)
class Created:
    """The pools of one group: slots per tier."""

    group: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A chain of blocks became findable on the device. `parent` is None under the root of a scope."""

    group: int
    parent: int | None
    hashes: tuple[int, ...]
    priorities: tuple[int, ...]
    tokens: NDArray[np.int32]  # of all blocks, back to back
    tokens_per_block: int
    scope: Scope | None


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


@dataclass(frozen=True, slots=True)
class Cleared:
    """Every page of the group left the tree."""

    group: int


Event = Created | Stored | Moved | Retained | Removed | Cleared


class EventBatch:
    """What was recorded since the last call, as arrays; iterate for records. `lost` hashes had no room."""

    __slots__ = ("details", "hashes", "lost", "records", "scopes", "tokens")

    def __init__(self, arrays: Arrays, scopes: Mapping[int, Scope]) -> None:
        self.records, self.hashes, self.details, self.tokens, self.lost = arrays
        self.scopes = scopes

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Event]:
        return map(self._event, self.records.tolist())

    def _event(self, record: list[int]) -> Event:
        kind, group, count, at, token_at, a, b, parent, root = record
        hashes = tuple(self.hashes[at : at + count].tolist())
        match kind:
            case 0:
                return Created(group, hashes)
            case 1:
                priorities = tuple(self.details[at : at + count].tolist())
                tokens = self.tokens[token_at : token_at + a * count]
                above = None if b else parent & _MASK
                return Stored(group, above, hashes, priorities, tokens, a, self.scopes.get(root & _MASK))
            case 2:
                return Moved(group, hashes[0], a, b)
            case 3:
                return Retained(group, hashes[0], a, b)
            case 4:
                return Removed(group, hashes)
        return Cleared(group)


def joined(parts: list[tuple[Arrays, int]]) -> Arrays:
    """The events of several streams as one; each comes with the number of its first group."""
    if len(parts) == 1:
        return parts[0][0]
    records = [numbers[0] for numbers, _ in parts]
    hash_at = token_at = 0
    for own, ((_, hashes, _, tokens, _), first) in zip(records, parts, strict=True):
        own[:, 1] += first
        own[:, 3] += hash_at
        own[:, 4] += np.where(own[:, 4] >= 0, token_at, 0)
        hash_at, token_at = hash_at + len(hashes), token_at + len(tokens)
    arrays = [numbers for numbers, _ in parts]
    return (
        np.concatenate(records),
        np.concatenate([part[1] for part in arrays]),
        np.concatenate([part[2] for part in arrays]),
        np.concatenate([part[3] for part in arrays]),
        sum(part[4] for part in arrays),
    )
