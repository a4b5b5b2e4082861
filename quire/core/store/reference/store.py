"""The store: one object that forwards each call to the module that owns the idea.

Owns the interface shared with the compiled module, in three parts: `row_calls`, `page_calls`, and here what is reported
and asked. Not thread-safe: the layer above has the lock. A call that raises or refuses has changed nothing.
"""

import numpy as np

from quire.core.store.dumped import Dump, PageInfo
from quire.core.store.interface import (
    EventArrays,
    Int32Array,
)
from quire.core.store.reference import maps
from quire.core.store.reference.dump import dump, page_info
from quire.core.store.reference.moves.events import log_whole
from quire.core.store.reference.opening import ORDERS
from quire.core.store.reference.page_calls import PageCalls
from quire.core.store.reference.pools.state import NO_PAGE
from quire.core.store.reference.row_calls import numbers

__all__ = ["ORDERS", "Store"]  # which order of eviction a number means was found here first


class Store(PageCalls):
    """Everything that works per block."""

    __slots__ = ()

    # Events

    def take_events(self, whole: bool = False) -> EventArrays:
        if whole:
            log_whole(self._state)
        return self._state.log.take_events()

    # Questions

    def num_empty(self, group: int, tier: int) -> int:
        return self._state.pools[group].orders[tier].num_empty

    def num_idle(self, group: int, tier: int) -> int:
        return self._state.pools[group].orders[tier].num_idle

    def num_shadow(self, group: int, tier: int) -> int:
        return self._state.pools[group].orders[tier].num_shadow

    @property
    def num_nodes(self) -> int:
        """Blocks in the tree; roots are not counted."""
        return self._state.tree.num_nodes

    def nbytes(self) -> tuple[int, int]:
        """Metadata bytes and token bytes, roughly."""
        state = self._state
        tables = sum(array.nbytes for array in (*self.pages, *self.slots, *self.capacity))
        tables += sum(array.nbytes for array in self.row_counters)
        pages = sum(len(room.pages) for room in state.rooms)
        return tables + 300 * pages + 600 * state.tree.num_nodes, state.tree.identity_bytes

    def page_info(self, group: int, page: int) -> PageInfo:
        """One page now."""
        return page_info(self._state.pools[group].page(page))

    def page_in(self, group: int, tier: int, slot: int) -> int:
        owner = self._state.pools[group].owner(tier, slot)
        return NO_PAGE if owner is None else owner.number

    def page_slots(self, group: int, page: int) -> tuple[int, ...]:
        return tuple(self._state.pools[group].page(page).slots)

    def slots_in(self, group: int, tier: int, pages: Int32Array) -> Int32Array:
        pool = self._state.pools[group]
        return np.array([pool.page(page).slots[tier] for page in numbers(pages)], np.int32)

    def dump(self) -> Dump:
        return dump(self._state)

    def map_slots(self, group: int, tier: int, first: int, stop: int) -> Int32Array:
        pool = self._state.pools[group]
        return maps.map_slots(pool, tier, max(0, first), min(stop, len(pool.orders[tier].owner)))

    def map_order(self, group: int, tier: int, limit: int) -> Int32Array:
        return maps.map_order(self._state.pools[group], tier, limit)

    def map_nodes(self, first: int, limit: int) -> tuple[Int32Array, int]:
        if first < 0 or limit < 1:
            raise ValueError(f"{limit} nodes from number {first} on")
        return maps.map_nodes(self._state, first, limit)
