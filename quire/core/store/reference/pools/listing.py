"""The pages of one group in the order of its pool: where each slot is listed, and which is taken next.

Owns that listing and the count of device slots that can be had. In the adaptive order a page waits in a cell, or is
covered: in a group that needs all blocks a parent does not go before its child. In a group with a window, passed pages
go before others; in the adaptive order so do pages of blocks that other groups have cut off. Knows nothing of the tree
beyond a page's node and what points say, nor of who holds a page.
"""

from bisect import bisect_right

from quire.core.store.reference.learned.cells import Cells
from quire.core.store.reference.pools.log import Place
from quire.core.store.reference.pools.order import Entry, Order
from quire.core.store.reference.pools.room import Room
from quire.core.store.reference.tree.node import Node, Page
from quire.core.store.reference.tree.point_kinds import Kinds
from quire.core.store.reference.tree.resume_points import Reads, Window, is_cut_off, is_overtaken, is_passed


class Listing:
    """What one group knows of the orders of its pool, one per tier; other groups may share them."""

    __slots__ = ("dear_from", "group", "kinds", "leaves_only", "overtakes", "reads", "room", "window")

    def __init__(self, group: int, room: Room, leaves_only: bool) -> None:
        self.group = group
        self.room = room
        self.leaves_only = leaves_only  # it needs all blocks: in the adaptive order no parent goes before its child
        self.window: Window | None = None  # of a group that has one, in an order that ranks: its pages may be passed
        self.overtakes = False  # the same of one that has snapshots
        self.reads: Reads | None = None  # of a group that needs all blocks beside others that do not; adaptive
        self.dear_from: tuple[int, ...] = ()  # depths, in blocks, of which each makes a page one age younger
        self.kinds: Kinds | None = None  # of resume points, in an order that ranks

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
        """The hottest copy of an idle page may be taken; `released`: by its last child."""
        tier, slot = self.place(page)
        self.orders[tier].push_idle(slot, self.entry_of(page, tier), released)
        if tier == 0 and page.claims == 0:
            self.room.vacant += 1

    def unlist_idle(self, page: Page) -> None:
        self.unlist_slot(*self.place(page))

    def entry_of(self, page: Page, tier: int) -> Entry:
        """What the order learns of an idle page, with its hottest copy in `tier`."""
        covered = self.has_child(page, tier)
        passed = not covered and self.passes(page)
        return Entry(page.priority, passed, covered, page.reuse, page.used, self.younger(page))

    def younger(self, page: Page) -> int:
        """Ages that a page counts as younger: it costs more to compute it again."""
        return 0 if page.node is None else bisect_right(self.dear_from, page.node.depth)

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
        if page is None or not page.is_idle or page.hottest < 0:  # no page, in use, or on its way elsewhere
            return
        tier, slot = self.place(page)
        covered = self.has_child(page, tier)
        if self.orders[tier].entries[slot].covered != covered:
            self.relist(page, released=not covered)

    def relist(self, page: Page, released: bool = False) -> None:
        """An idle page goes to where it belongs now."""
        self.unlist_slot(*self.place(page))
        self.list_idle(page, released)

    def rank_anew(self, page: Page | None) -> None:
        """An idle page joins another class if it is passed now, or is not any more."""
        if page is None or not page.is_idle:
            return
        tier, slot = self.place(page)
        if self.is_listed_passed(tier, slot) != self.passes(page):
            self.unlist_slot(tier, slot)
            self.list_idle(page)

    def cut_off(self, page: Page | None) -> None:
        """No request can resume at the end of a page's block any more: unless needed, the page goes before others."""
        if page is None or not page.is_idle or page.hottest < 0:  # no page, in use, or on its way elsewhere
            return
        tier, slot = self.place(page)
        entry = self.orders[tier].entries[slot]
        if not entry.covered and not entry.passed:
            self.relist(page)

    def pass_over(self, page: Page | None) -> None:
        """No request can use a window's page, wherever it begins: until looked at anew, it goes before others."""
        if page is None or not page.is_idle or page.hottest < 0:  # no page, in use, or on its way elsewhere
            return
        tier, slot = self.place(page)
        entry = self.orders[tier].entries[slot]
        if not entry.passed:
            self.unlist_idle(page)
            self.orders[tier].push_idle(slot, entry._replace(passed=True))
            self.room.vacant += tier == 0 and page.claims == 0

    def passes(self, page: Page) -> bool:
        """Whether a page is passed now, or unwanted."""
        if page.unwanted:
            return True
        if self.overtakes and self.kinds is not None:
            return page.node is not None and is_overtaken(self.kinds, page.node, self.group)
        if self.reads is not None:
            return page.node is not None and is_cut_off(self.reads, page.node)
        return self.window is not None and is_passed(self.window, page)

    def is_listed_passed(self, tier: int, slot: int) -> bool:
        """Whether the idle page in a slot waits among those that are passed."""
        return self.orders[tier].entries[slot].passed

    def is_outranked(self, page: Page, tier: int, slot: int) -> bool:
        """Whether the idle page listed in a slot of a colder tier shall stay there rather than this one come."""
        return self.orders[tier].ranking.outranks(slot, self.entry_of(page, tier))


def is_near(page: Page | None, slow: int) -> bool:
    """Whether there is a page, and a copy of it outside the slow tier (-1: there is none)."""
    return page is not None and page.hottest != slow
