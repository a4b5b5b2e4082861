"""The pages of one group in its pool: their copies on every tier, and the state changes of a single page.

Owns page ids, copies, holders and claims; keeps the listing in step with them. Knows nothing of the tree beyond a
page's node, of which slot to take for whom (evict does), nor of rows.
"""

from collections.abc import Sequence

import numpy as np

from quire.core.records.errors import BrokenInvariant
from quire.core.store.interface import Int64Array
from quire.core.store.reference.learned.ages import hint_in
from quire.core.store.reference.learned.ghosts import Ghosts
from quire.core.store.reference.orders.adaptive import Adaptive
from quire.core.store.reference.pools.expiry import Expiries
from quire.core.store.reference.pools.listing import Listing
from quire.core.store.reference.pools.notes import Notes
from quire.core.store.reference.pools.room import Room
from quire.core.store.reference.tree.node import DEFAULT_PRIORITY, NEVER, Page
from quire.core.store.reuse import HINT_SHIFT, NUM_CELLS
from quire.core.store.reuse import NEVER as NEVER_CLASS

TOTAL, NEW, REUSED_FULL, REUSED_PARTIAL, MISSED, ONBOARDED, OFFLOADED, COPIED, DROPPED, DEMOTED, GROWN = range(11)
COPIED_TOKENS = 11
REUSED_FROM = 12  # + tier
PARTIAL_FROM = 20  # of those, partial hits
SKIPPED = 28  # snapshots not taken: the state may have gone on
BEHIND = 29  # of the dropped: those that should have had a copy in the slow tier
COPIED_DOWN = 30  # background copies
PREFETCHED = 31
TOLD = 31  # + hint: pages of which it was given
FOUND_AGAIN = 34  # + hint: of the reused, those that had it
SUPERSEDED = 38  # pages of text that its session has left behind
PENDING = 39  # of the reused: pages that a step in flight was computing
NUM_COUNTERS = 40
NEVER_BACK = NEVER_CLASS - HINT_SHIFT  # the hint


class Pool(Listing):
    """Pages of one group. Slots and page ids are its pool's, which other groups may share: a page has its group."""

    __slots__ = ("counters",)

    def __init__(self, group: int, room: Room, leaves_only: bool) -> None:
        super().__init__(group, room, leaves_only)
        self.counters: Int64Array = np.zeros(NUM_COUNTERS, np.int64)

    @property
    def ghosts(self) -> Ghosts | None:
        return self.room.ghosts

    @property
    def pages(self) -> list[Page]:
        return self.room.pages

    @property
    def notes(self) -> Notes | None:
        return self.room.notes

    @property
    def expiries(self) -> Expiries:
        return self.room.expiries

    @property
    def available(self) -> int:
        """Device slots of its pool for any request; below zero while claims rest on reserved slots."""
        return self.room.available

    def is_short(self, pages: int, own: int = 0) -> bool:
        """Whether so many new pages cannot be had; `own`: room that only the asker has."""
        return pages > 0 and pages > self.available + own

    def page(self, number: int) -> Page:
        if not 0 <= number < len(self.pages):
            raise LookupError(f"page {number} is not one of the {len(self.pages)} pages of group {self.group}")
        return self.pages[number]

    def count(self, counter: int, number: int = 1) -> None:
        self.counters[counter] += number

    # Slots and copies

    def put_copy(self, page: Page, tier: int, slot: int) -> None:
        """The slot, taken and unlisted, holds a copy of the page now."""
        page.slots[tier] = slot
        self.orders[tier].owner[slot] = page
        self.note_slot(tier, slot)

    def note_slot(self, tier: int, slot: int) -> None:
        """What is to be reported of a slot of the coldest tier has changed."""
        if self.notes is not None and slot >= 0 and tier == len(self.orders) - 1:
            self.notes.mark_changed(slot)

    def remove_copy(self, page: Page, tier: int) -> int:
        """The page loses its copy of a tier; the slot, unlisted and without owner, is the caller's."""
        slot = page.slots[tier]
        self.note_slot(tier, slot)
        if self.orders[tier].is_listed(slot):
            self.unlist_slot(tier, slot)
        page.slots[tier] = -1
        self.orders[tier].owner[slot] = None
        return slot

    def discard_copy(self, page: Page, tier: int) -> None:
        """The page loses its copy of a tier; the slot becomes EMPTY."""
        self.list_empty(tier, self.remove_copy(page, tier))

    def drop_shadows(self, page: Page) -> None:
        """Keep the hottest copy only."""
        for tier in range(page.hottest + 1, len(page.slots)):
            if page.slots[tier] >= 0:
                self.discard_copy(page, tier)

    def drop_copy(self, page: Page, tier: int) -> bool:
        """Give up a shadow; False when the page has none on that tier."""
        if not page.hottest < tier < len(page.slots) or page.slots[tier] < 0 or page.hottest < 0:
            return False
        if page.stays and page.claims:
            return False  # it is being read
        self.discard_copy(page, tier)
        return True

    def open_page(self, slot: int, priority: int, duration: int, tier: int = 0) -> Page:
        """A new page in `slot` of a tier, which the caller has taken; its one holder is the caller."""
        page = self.pages[self.room.free_pages.pop()]
        page.group = self.group
        page.stamp += 1
        page.holders = 1
        page.priority, page.duration = priority, duration
        if self.cells is not None:
            self.cells.made += 1
            self.cells.begin(page)
        self.put_copy(page, tier, slot)
        return page

    def free_page(self, page: Page) -> None:
        """An unheld page outside the tree goes back, with every copy it has."""
        if not page.is_free:
            raise BrokenInvariant(f"page {page.number} of group {self.group} is to be freed, and it is in use")
        for tier, slot in enumerate(page.slots):
            if slot >= 0:
                self.discard_copy(page, tier)
        self.push_page(page)

    def free_unused(self, page: Page) -> None:
        """A page outside the tree goes back unless it is held or claimed."""
        if page.is_free:
            self.free_page(page)

    def strand_page(self, page: Page) -> None:
        """A page that was idle has left its node: it stays, unlisted, for those who claim it, or goes back."""
        if page.claims:
            self.unlist_idle(page)
            page.expiry = NEVER
        else:
            self.free_page(page)

    def push_page(self, page: Page) -> None:
        """Only the id goes back: the copies are gone already."""
        page.priority, page.duration, page.expiry = DEFAULT_PRIORITY, NEVER, NEVER
        page.stays, page.unwanted = 0, False
        self.room.free_pages.append(page.number)

    def hold_page(self, page: Page) -> None:
        if page.is_idle:
            self.unlist_idle(page)
            page.expiry = NEVER
        page.holders += 1

    def let_go(self, page: Page, now: int) -> None:
        """One holder less; without holders a committed page becomes idle and an open one is freed."""
        page.holders -= 1
        if page.holders:
            return
        if page.node is None:
            self.free_unused(page)
            return
        self.list_idle(page)
        if page.duration >= 0 and page.priority != DEFAULT_PRIORITY:
            page.expiry = now + page.duration
            self.expiries.note(page)

    def hear_page(self, page: Page, back: int) -> None:
        """A hint says when a page comes back (0: unknown): an idle page goes to where it belongs then."""
        if self.cells is not None:
            changed = self.cells.tell(page, back)
        else:
            unwanted = back == NEVER_BACK and self.room.hears
            changed, page.unwanted = page.unwanted != unwanted, unwanted
        if changed and page.is_idle:
            self.relist(page)

    def hint_of(self, page: Page) -> int:
        """The hint that a page is ranked by, 0: none."""
        return hint_in(page.reuse) if self.cells is not None else NEVER_BACK if page.unwanted else 0

    def use_page(self, page: Page) -> None:
        """An admission found a page: the hint given for it ends."""
        hint = self.hint_of(page)
        if hint:
            self.count(FOUND_AGAIN + hint)
        if page.unwanted:
            self.hear_page(page, 0)
        if self.cells is not None:
            self.cells.use(page)

    def keep_page(self, page: Page) -> None:
        """Its copies below the device stay where they are: their slots are not taken. With one tier there are none."""
        page.stays += len(self.orders) > 1

    def unkeep_page(self, page: Page) -> None:
        page.stays -= len(self.orders) > 1
        for tier in range(1, len(page.slots)):
            slot = page.slots[tier]
            if page.stays == 0 and slot >= 0 and self.orders[tier].is_listed(slot):
                self.orders[tier].unpark(slot)

    def claim_page(self, page: Page) -> None:
        page.claims += 1
        if page.claims == 1 and page.is_idle and page.slots[0] >= 0:
            self.room.vacant -= 1

    def unclaim_page(self, page: Page) -> None:
        page.claims -= 1
        if page.claims == 0 and page.is_idle:
            tier, slot = self.place(page)
            self.orders[tier].unpark(slot)
            if tier == 0:
                self.room.vacant += 1
        elif page.claims == 0 and page.node is None:
            self.free_unused(page)

    def set_rank(self, cells: Sequence[int], recency: bool) -> None:
        """The order in which cells are evicted, in every tier; `recency`: pages join those of one class from now on."""
        if self.cells is None or sorted(cells) != list(range(NUM_CELLS)):
            raise ValueError(f"group {self.group}: an order names each of {NUM_CELLS} cells once, if it is adaptive")
        self.cells.falls += recency and not self.cells.recency
        self.cells.recency = recency
        for order in self.orders:
            assert isinstance(order.ranking, Adaptive)
            order.ranking.rank_cells(cells, recency)
