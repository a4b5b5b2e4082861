"""The pool of one group: its pages, their copies on every tier, and the state changes of a single page.

Owns page ids, copies, claims, expiries and the count of available device slots; keeps the orders in step with them.
Knows nothing of which slot to take for whom (evict does) nor of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from quire.core.records.errors import BrokenInvariant
from quire.core.store.twin.log import Events, Moves, Place
from quire.core.store.twin.order import Order
from quire.core.store.twin.page import DEFAULT_PRIORITY, NEVER, Page
from quire.core.store.twin.tree import Node, Tree

TOTAL, NEW, REUSED_FULL, REUSED_PARTIAL, MISSED, ONBOARDED, OFFLOADED, COPIED, DROPPED, DEMOTED, GROWN = range(11)
COPIED_TOKENS = 11
REUSED_FROM = 12  # + tier
PARTIAL_FROM = 20  # of those, partial hits
SKIPPED = 28  # snapshots not taken: the state may have gone on
NUM_COUNTERS = 29


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that all groups share."""

    block_size: int
    release_order: bool
    shadows: bool
    offload_min: int
    tails: bool  # a released row's last, partial block becomes findable


@dataclass(frozen=True, slots=True)
class Shared:
    """What all pools write to."""

    rules: Rules
    tree: Tree
    moves: Moves
    events: Events


class Pool:
    """Pages and slots of one group."""

    __slots__ = (
        "counters", "events", "expiries", "free_pages", "group", "moves",
        "orders", "pages", "reserved", "rules", "tree", "turn", "vacant",
    )  # fmt: skip

    def __init__(self, group: int, slots: Sequence[int], shared: Shared) -> None:
        self.group = group
        self.rules, self.tree, self.moves, self.events = shared.rules, shared.tree, shared.moves, shared.events
        self.orders = [Order(count, shared.rules.release_order) for count in slots]
        self.pages = [Page(number, len(slots)) for number in range(sum(slots))]
        self.free_pages = list(range(len(self.pages) - 1, -1, -1))  # a stack
        self.vacant = slots[0]  # device slots that are empty or hold an idle page nobody claims
        self.reserved = 0  # of them promised to rows
        self.expiries: list[tuple[int, int, int]] = []  # heap of (expiry, turn, page id); the page's last turn counts
        self.turn = 0
        self.counters: npt.NDArray[np.int64] = np.zeros(NUM_COUNTERS, np.int64)

    @property
    def available(self) -> int:
        """Device slots for whoever comes; below zero while claims rest on what was promised."""
        return self.vacant - self.reserved

    def lacks(self, pages: int, own: int = 0) -> bool:
        """Whether so many new pages cannot be had; `own`: room that only the asker has."""
        return pages > 0 and pages > self.available + own

    def page(self, number: int) -> Page:
        if not 0 <= number < len(self.pages):
            raise LookupError(f"page {number} is not one of the {len(self.pages)} pages of group {self.group}")
        return self.pages[number]

    def count(self, counter: int, number: int = 1) -> None:
        self.counters[counter] += number

    # Slots and copies

    def owner(self, tier: int, slot: int) -> Page | None:
        return self.orders[tier].owner[slot]

    def place(self, page: Page) -> Place:
        """Where the hottest copy is."""
        tier = page.hottest
        return tier, page.slots[tier]

    def unlist(self, tier: int, slot: int) -> None:
        order = self.orders[tier]
        if tier == 0 and not order.is_claimed(slot):
            self.vacant -= 1
        order.remove(slot)

    def _list_empty(self, tier: int, slot: int) -> None:
        self.orders[tier].push_empty(slot)
        if tier == 0:
            self.vacant += 1

    def list_idle(self, page: Page) -> None:
        """The hottest copy of an idle page goes to the back of its class."""
        tier, slot = self.place(page)
        self.orders[tier].push_idle(slot, page.priority)
        if tier == 0 and page.claims == 0:
            self.vacant += 1

    def unlist_idle(self, page: Page) -> None:
        self.unlist(*self.place(page))

    def add_copy(self, page: Page, tier: int, slot: int) -> None:
        """The slot, taken and unlisted, holds a copy of the page now."""
        page.slots[tier] = slot
        self.orders[tier].owner[slot] = page

    def strip(self, page: Page, tier: int) -> int:
        """The page loses its copy of a tier; the slot, unlisted and without owner, is the caller's."""
        slot = page.slots[tier]
        if self.orders[tier].is_listed(slot):
            self.unlist(tier, slot)
        page.slots[tier] = -1
        self.orders[tier].owner[slot] = None
        return slot

    def discard_copy(self, page: Page, tier: int) -> None:
        """The page loses its copy of a tier; the slot becomes EMPTY."""
        self._list_empty(tier, self.strip(page, tier))

    def discard_colder(self, page: Page) -> None:
        """Keep the hottest copy only."""
        for tier in range(page.hottest + 1, len(page.slots)):
            if page.slots[tier] >= 0:
                self.discard_copy(page, tier)

    # A page's life

    def open_page(self, slot: int, priority: int, duration: int) -> Page:
        """A new page on device slot `slot`, which the caller has taken; its one holder is the caller."""
        page = self.pages[self.free_pages.pop()]
        page.stamp += 1
        page.holders = 1
        page.priority, page.duration = priority, duration
        self.add_copy(page, 0, slot)
        return page

    def free(self, page: Page) -> None:
        """An unheld page outside the tree goes back, with every copy it has."""
        if not page.is_free or page.claims:
            raise BrokenInvariant(f"page {page.number} of group {self.group} is to be freed, and it is in use")
        for tier, slot in enumerate(page.slots):
            if slot >= 0:
                self.discard_copy(page, tier)
        self.free_id(page)

    def free_id(self, page: Page) -> None:
        """Only the id goes back: the copies are gone already."""
        page.priority, page.duration, page.expiry = DEFAULT_PRIORITY, NEVER, NEVER
        self.free_pages.append(page.number)

    def hold(self, page: Page) -> None:
        if page.is_idle:
            self.unlist_idle(page)
            page.expiry = NEVER
        page.holders += 1

    def unhold(self, page: Page, now: int) -> None:
        """One holder less; without holders a committed page becomes idle and an open one is freed."""
        page.holders -= 1
        if page.holders:
            return
        if page.node is None:
            self.free(page)
            return
        self.list_idle(page)
        if page.duration >= 0 and page.priority != DEFAULT_PRIORITY:
            page.expiry = now + page.duration
            self._note_expiry(page)

    def claim(self, page: Page) -> None:
        page.claims += 1
        if page.claims == 1 and page.is_idle and page.slots[0] >= 0:
            self.vacant -= 1

    def unclaim(self, page: Page) -> None:
        page.claims -= 1
        if page.claims == 0 and page.is_idle:
            tier, slot = self.place(page)
            self.orders[tier].unclaim(slot)
            if tier == 0:
                self.vacant += 1

    def attach(self, page: Page, node: Node) -> None:
        node.pages[self.group] = page
        page.node = node

    def detach(self, page: Page, quiet: bool = False, lost: int = -1) -> None:
        """The page leaves the tree; its node goes too when nothing needs it. Quiet: another event will tell.

        `lost` is the tier whose copy it has just lost, when that was its last one.
        """
        node = page.node
        assert node is not None
        node.pages[self.group] = None
        page.node = None
        if not quiet:
            self.events.removed(self.group, node, page.priority, page.hottest if lost < 0 else lost)
        self.tree.prune(node)

    # Retention

    def set_priority(self, page: Page, priority: int) -> None:
        before, page.priority = page.priority, priority
        if page.node is not None:
            self.events.retained(self.group, page.node, before, priority)
        if page.is_idle:
            self.unlist_idle(page)
            self.list_idle(page)

    def refresh(self, now: int) -> None:
        """Idle pages whose time is over fall back to the default priority."""
        while self.expiries and self.expiries[0][0] <= now:
            expiry, turn, number = heappop(self.expiries)
            page = self.pages[number]
            if page.expiry == expiry and page.turn == turn:
                page.expiry = NEVER
                if page.is_idle:
                    self.set_priority(page, DEFAULT_PRIORITY)

    def _note_expiry(self, page: Page) -> None:
        self.turn += 1  # equal expiries run out in the order of release: the deepest block first
        page.turn = self.turn
        heappush(self.expiries, (page.expiry, page.turn, page.number))
        if len(self.expiries) > 4 * len(self.pages) + 64:  # mostly of pages that were held again: start afresh
            noted = (page for page in self.pages if page.expiry >= 0)
            self.expiries = sorted((page.expiry, page.turn, page.number) for page in noted)

    def moved(self, page: Page, source: int, target: int) -> None:
        """Tell that a committed page's hottest copy went from one tier to another."""
        if page.node is not None:
            self.events.moved(self.group, page.node, source, target)
