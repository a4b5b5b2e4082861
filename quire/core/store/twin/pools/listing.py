"""The pages of one group in the order of its pool: where each slot is listed, and which is taken next.

Owns that listing and the count of device slots that can be had. In the adaptive order a page waits in a cell, or is
covered: in a group that needs all blocks a parent does not go before its child. In a group with a window pages that are
passed go before others. Knows nothing of the tree beyond a page's node and what points say, nor of who holds a page.
"""

from collections.abc import Sequence

from quire.core.store.reuse import NUM_CELLS
from quire.core.store.twin.learned.cells import Cells
from quire.core.store.twin.pools.log import Place
from quire.core.store.twin.pools.order import COVERED, Order, cell_level, idle_level
from quire.core.store.twin.pools.room import Room
from quire.core.store.twin.tree.node import Node, Page
from quire.core.store.twin.tree.points import Window, is_overtaken, is_passed


class Listing:
    """What one group knows of the orders of its pool, one per tier; other groups may share them."""

    __slots__ = ("group", "leaves_only", "overtakes", "room", "window")

    def __init__(self, group: int, room: Room, leaves_only: bool) -> None:
        self.group = group
        self.room = room
        self.leaves_only = leaves_only  # it needs all blocks: in the adaptive order no parent goes before its child
        self.window: Window | None = None  # of a group that has one, in an order that ranks: its pages may be passed
        self.overtakes = False  # the same of one that has snapshots

    @property
    def orders(self) -> list[Order]:
        return self.room.orders

    @property
    def cells(self) -> Cells | None:
        return self.room.cells

    def owner(self, tier: int, slot: int) -> Page | None:
        return self.orders[tier].owner[slot]

    def place(self, page: Page) -> Place:
        """Where the hottest copy is."""
        tier = page.hottest
        return tier, page.slots[tier]

    def pick(self, tier: int) -> int:
        """The slot of a tier to take next, -1 when every listed one is claimed."""
        return self.orders[tier].first_unclaimed()

    def pick_unshadowed(self, tier: int) -> int:
        """The same, but no shadow."""
        return self.orders[tier].first_unclaimed(shadows=False)

    def unlist_slot(self, tier: int, slot: int) -> None:
        order = self.orders[tier]
        if tier == 0 and not order.is_claimed(slot):
            self.room.vacant -= 1
        order.unlist(slot)

    def list_empty(self, tier: int, slot: int) -> None:
        self.orders[tier].push_empty(slot)
        if tier == 0:
            self.room.vacant += 1

    def list_idle(self, page: Page, released: bool = False) -> None:
        """The hottest copy of an idle page goes to the back of its class.

        One that its last child has `released` goes to the front of its cell instead if it is no younger than the first
        there: the oldest go first, and what came together goes together.
        """
        tier, slot = self.place(page)
        order, level = self.orders[tier], self.level_of(page, tier)
        first = order.first_page(level) if released else None
        order.push_idle(slot, level, released and (first is None or page.used <= first.used))
        if tier == 0 and page.claims == 0:
            self.room.vacant += 1

    def unlist_idle(self, page: Page) -> None:
        self.unlist_slot(*self.place(page))

    def level_of(self, page: Page, tier: int) -> int:
        """The class in which an idle page belongs, with its hottest copy in `tier`."""
        passed = self.passes(page)
        if self.cells is None:
            return idle_level(page.priority, passed)
        if self.has_child(page, tier):
            return COVERED
        return cell_level(page.priority, -1 if passed else self.cells.listed_cell(page))

    def has_child(self, page: Page, tier: int) -> bool:
        """Whether a child of the page's block is in that tier or a hotter one, and would be of no use without it."""
        if self.cells is None or not self.leaves_only or page.node is None:
            return False
        return any(page.node.kids[self.group][: tier + 1])

    def child_moved(self, node: Node, source: int, target: int) -> None:
        """The page of a node went from one tier to another (-1: it was not there, is not any more)."""
        parent = node.parent
        if self.cells is None or not self.leaves_only or parent is None or parent.parent is None:
            return
        kids = parent.kids[self.group]
        for tier, change in ((source, -1), (target, 1)):
            if tier >= 0:
                kids[tier] += change
        page = parent.pages[self.group]
        if page is None or not page.is_idle or page.hottest < 0:  # nobody's, in use, or on its way somewhere
            return
        tier, slot = self.place(page)
        covered = self.has_child(page, tier)
        if (self.orders[tier].level[slot] == COVERED) != covered:
            self.relist(page, released=not covered)

    def relist(self, page: Page, released: bool = False) -> None:
        """An idle page goes to where it belongs now."""
        self.unlist_idle(page)
        self.list_idle(page, released)

    def rank_anew(self, page: Page | None) -> None:
        """An idle page joins another class if it is passed now, or is not any more."""
        if page is None or not page.is_idle:
            return
        tier, slot = self.place(page)
        if self.is_listed_passed(tier, slot) != self.passes(page):
            self.relist(page)

    def passes(self, page: Page) -> bool:
        """Whether a page is passed now."""
        if self.overtakes:
            return page.node is not None and is_overtaken(page.node, self.group)
        return is_passed(self.window, page)

    def is_listed_passed(self, tier: int, slot: int) -> bool:
        """Whether the idle page in a slot waits among those that are passed."""
        page = self.owner(tier, slot)
        assert page is not None
        passed = idle_level(page.priority, True) if self.cells is None else cell_level(page.priority, -1)
        return self.orders[tier].level[slot] == passed

    def is_outranked(self, page: Page, tier: int, slot: int) -> bool:
        """Whether the idle page listed in a slot of a colder tier shall stay there rather than this one come."""
        order, there = self.orders[tier], self.owner(tier, slot)
        if there is None or self.cells is None:
            return there is None or order.level[slot] > self.level_of(page, tier)
        if order.level[slot] == COVERED or self.has_child(page, tier):
            return order.level[slot] == COVERED
        place = order.place(order.level[slot] - cell_level(there.priority, 0))
        mine = order.place(-1 if self.passes(page) else self.cells.listed_cell(page))
        return (there.priority, place) > (page.priority, mine)

    def set_rank(self, cells: Sequence[int], recency: bool) -> None:
        """The order in which cells are evicted, in every tier; `recency`: pages join those of one class from now on."""
        if self.cells is None or sorted(cells) != list(range(NUM_CELLS)):
            raise ValueError(f"group {self.group}: an order names each of {NUM_CELLS} cells once, if it is adaptive")
        self.cells.falls += recency and not self.cells.recency
        self.cells.recency = recency
        for order in self.orders:
            order.rank_cells(cells)


def is_near(page: Page | None, slow: int) -> bool:
    """Whether there is a page, and a copy of it outside the slow tier (-1: there is none)."""
    return page is not None and page.hottest != slow
