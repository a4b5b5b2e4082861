"""The memory of one pool: the slots of every tier, their order, and the page ids. Layer groups may share it.

Owns what is counted of a pool as a whole. Knows nothing of which group a page belongs to, nor of the tree.
"""

from collections.abc import Callable, Sequence

from quire.core.store.reference.learned.cells import Cells
from quire.core.store.reference.learned.ghosts import Ghosts
from quire.core.store.reference.pools.expiry import Expiries
from quire.core.store.reference.pools.notes import Notes
from quire.core.store.reference.pools.order import EvictionOrder, Order
from quire.core.store.reference.pools.tenure import Tenure
from quire.core.store.reference.tree.node import Page


class Room:
    """Slots and pages of one pool."""

    __slots__ = (
        "cells", "expiries", "free_pages", "ghosts", "hears", "notes", "orders", "pages", "reserved", "tenure",
        "vacant",
    )  # fmt: skip

    def __init__(
        self, slots: Sequence[int], ranking: Callable[[], EvictionOrder[int]], cells: Cells | None = None,
        ghosts: Ghosts | None = None,
    ) -> None:  # fmt: skip
        self.cells = cells  # of the adaptive order
        self.ghosts = ghosts if cells is None else cells.ghosts  # None: what is gone is not remembered
        self.orders = [Order(count, ranking(), tier > 0) for tier, count in enumerate(slots)]
        self.hears = not self.orders[0].ranking.empties_wait  # what is said of the future
        self.vacant = slots[0]  # device slots that are empty or hold an idle page without claims
        self.reserved = 0  # of the vacant slots: for rows
        self.pages = [Page(number, len(slots)) for number in range(sum(slots))]
        self.free_pages = list(range(len(self.pages) - 1, -1, -1))  # a stack
        self.expiries = Expiries(self.pages)
        self.notes: Notes | None = None  # of changes in the coldest tier, if they are wanted
        self.tenure: Tenure | None = None  # of pages whose copies change, if it is wanted

    @property
    def available(self) -> int:
        """Device slots for any request; below zero while claims rest on reserved slots."""
        return self.vacant - self.reserved
