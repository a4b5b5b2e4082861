"""A store as a whole: how one is opened, what it reports and can be asked; and the modules that have one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.core.store.dumped import Dump, PageInfo
from quire.core.store.interface.arrays import EventArrays, GroupNumbers, Int32Array
from quire.core.store.interface.key_order import KeyOrder
from quire.core.store.interface.ledger import Ledger
from quire.core.store.interface.page_calls import PageCalls
from quire.core.store.interface.row_calls import RowCalls
from quire.core.store.interface.texts import Chain


class Store(RowCalls, PageCalls, Protocol):
    """Tree, pools and rows of one stream."""

    def __init__(  # noqa: PLR0913
        self, block_size: int, groups: Sequence[GroupNumbers], rows: int, columns: int,
        order: int, shadows: bool, offload_min: int, events: bool, max_events: int, tails: bool = True,
        seed: bytes = ..., ghosts: int = 0, min_uses: int = 1, slow: bool = False, lasting: bool = False,
        pools: Sequence[int] | None = None, spacing: int = 0,
    ) -> None: ...  # fmt: skip

    # Events

    def take_events(self, whole: bool = False) -> EventArrays:
        """All events since the last call, or instead the whole state."""

    # Questions

    @property
    def num_nodes(self) -> int:
        """Blocks in the tree; roots do not count."""

    def num_empty(self, group: int, tier: int) -> int: ...

    def num_idle(self, group: int, tier: int) -> int: ...

    def num_shadow(self, group: int, tier: int) -> int: ...

    def nbytes(self) -> tuple[int, int]:
        """Bytes of metadata and of tokens."""

    def page_info(self, group: int, page: int) -> PageInfo:
        """One page now."""

    def page_in(self, group: int, tier: int, slot: int) -> int:
        """The page that has a copy in a slot, -1: none."""

    def page_slots(self, group: int, page: int) -> tuple[int, ...]:
        """Its slot per tier, -1: no copy there."""

    def slots_in(self, group: int, tier: int, pages: Int32Array) -> Int32Array:
        """The slot of each of these pages in one tier, -1: no copy there."""

    def dump(self) -> Dump:
        """Everything, as plain values that are the same in both stores."""

    # Maps, to be drawn

    def map_slots(self, group: int, tier: int, first: int, stop: int) -> Int32Array:
        """What lies in the slots [first, stop), cut to those there are: [slots, 4], by SlotColumn."""

    def map_order(self, group: int, tier: int, limit: int) -> Int32Array:
        """Slots of shadows and idle pages in the order in which they would be taken, claimed or not; so many."""

    def map_nodes(self, first: int, limit: int) -> tuple[Int32Array, int]:
        """Nodes from a number on, by NodeColumn, and the number to go on from, -1: that was all. Looks at `limit` nodes
        at most. Between two calls the tree may change, and a number may be given to another node."""


class StoreModule(Protocol):
    """What `open_store` gives."""

    @property
    def Chain(self) -> type[Chain]: ...

    @property
    def KeyOrder(self) -> type[KeyOrder]: ...

    @property
    def Ledger(self) -> type[Ledger]: ...

    @property
    def Store(self) -> type[Store]: ...

    def read_tokens(self, items: list[int], first: int, out: Int32Array, /) -> None:
        """Fill an int32 array with the items from number `first` on; if it raises, a part of it may be filled."""
