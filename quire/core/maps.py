"""What a cache looks like now, as arrays of small numbers, for a page that draws it. Changes nothing, shows no tokens.

Owns how long the lock is held: for at most `PART` slots or nodes at a time. Between two parts the cache may go on, so a
map of a large cache is of a moment only part by part. Knows a store by its maps and its arrays.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from quire.core.cache import Cache
from quire.core.colder_tiers import registry_of
from quire.core.records.identity import Scope
from quire.core.state.sequence import Sequence
from quire.core.store.interface import Int32Array
from quire.core.store.mapped import NodeColumn, SlotColumn

PART = 1 << 15  # slots or nodes looked at under one hold of the lock
MOST_PARTS = 256  # of a tree that grows while it is read
REUSED_FROM = 12  # the store's counter of pages reused from tier 0; the other tiers follow


@dataclass(frozen=True, slots=True)
class TreeMap:
    """The nodes of one token stream, and the scopes of its roots (None: restored, and not named since)."""

    nodes: Int32Array  # [nodes, 6], by NodeColumn, in no order
    scopes: dict[int, Scope | None]  # by root node


@dataclass(frozen=True, slots=True)
class SequenceMap:
    """Live sequences in the order of their admission: numbers of all of them, handles of the first few."""

    handles: list[Sequence]
    ids: list[Hashable]
    numbers: Int32Array  # [sequences, 5]: tokens reused, of the prompt, known, computed; blocks
    reused_from: Int32Array  # [handles, tiers]: pages of the first group, whole or in part
    tips: Int32Array  # [handles]: node of the last whole block, -1: none


def slots_of_pool(cache: Cache, tier: int, group: int) -> Int32Array:
    """[slots, 4], by SlotColumn."""
    setup, size = registry_of(cache).setup, cache.config.slots_of(tier, group)
    store, place = setup.pools[group]
    found = [np.empty((0, len(SlotColumn)), np.int32)]
    for first in range(0, size, PART):
        with setup.lock:
            found.append(store.map_slots(place, tier, first, first + PART))
    return np.concatenate(found)


def eviction_order(cache: Cache, tier: int, group: int) -> Int32Array:
    """Slots of a pool in the order in which they would be taken, the first `PART` of them."""
    setup = registry_of(cache).setup
    store, place = setup.pools[group]
    with setup.lock:
        return store.map_order(place, tier, PART)


def tree_of(cache: Cache, stream: int = 0) -> TreeMap:
    """All nodes of a token stream."""
    setup = registry_of(cache).setup
    own = setup.streams[stream]
    found, first = [np.empty((0, len(NodeColumn)), np.int32)], 0
    for _ in range(MOST_PARTS):
        with setup.lock:
            some, first = own.store.map_nodes(first, PART)
            scopes = own.roots.named() if first < 0 else {}
        found.append(some)
        if first < 0:
            break
    return TreeMap(np.concatenate(found), scopes)


def stream_of(cache: Cache, group: int) -> int:
    """Which token stream a layer group reads."""
    return int(group >= registry_of(cache).setup.own_groups.stop)


def live_sequences(cache: Cache, most: int) -> SequenceMap:
    """Numbers of all live sequences, and more of the first `most`."""
    registry, tiers = registry_of(cache), len(cache.config.tiers)
    store = registry.setup.store
    with registry.setup.lock:
        live = list(registry.sequences.values())
        first = list(islice(live, most))
        rows = np.array([sequence.row for sequence in live], np.int32)
        told = [(sequence.start, sequence.prompt_end) for sequence in live]
        numbers = np.empty((len(live), 5), np.int32)
        numbers[:, :2] = np.array(told, np.int32).reshape(-1, 2)
        numbers[:, 2], numbers[:, 3] = store.length[rows], store.computed[rows]
        numbers[:, 4] = store.capacity[0][rows]
        shown = rows[: len(first)]
        reused = store.row_counters[0][shown, REUSED_FROM : REUSED_FROM + tiers].astype(np.int32)
        last = store.committed[shown] - 1
        pages = np.where(last >= 0, store.pages[0][shown, np.maximum(last, 0)], -1).tolist()
        tips = [store.page_info(0, page).node if page >= 0 else -1 for page in pages]
    ids = [sequence.id for sequence in live]
    return SequenceMap(first, ids, numbers, reused, np.array(tips, np.int32))


def claimed_ids(cache: Cache) -> list[tuple[Hashable, int, int]]:
    """Id, prompt tokens and tokens found of each request that is claimed and not admitted yet."""
    registry = registry_of(cache)
    with registry.setup.lock:
        open_claims = [claim for claims in registry.open_claims.values() for claim in claims]
        return [(claim.request.id, claim.prepared.end, claim.hit.start) for claim in open_claims]


def live_ids(cache: Cache) -> list[Hashable]:
    """Ids of the live sequences."""
    registry = registry_of(cache)
    with registry.setup.lock:
        return list(registry.sequences)
