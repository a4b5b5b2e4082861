"""What must hold of a pool as a whole, whichever layer groups share it: slots, page ids, orders, counts."""

from __future__ import annotations

from collections import Counter

import numpy as np

from quire.core.invariants.group_view import GroupView
from quire.core.records.errors import BrokenInvariant
from quire.core.records.plan import MoveColumn, Moves
from quire.core.store.dumped import COVERED, EMPTY, FIRST_PRIORITY, NONE, SHADOW, DumpedPage

EMPTY_RELEASED = FIRST_PRIORITY + 35  # where release_order files empty slots


class PoolView:
    """One pool's part of a dump: the views of the groups that share it, in order."""

    def __init__(self, views: list[GroupView]) -> None:
        first = views[0]
        self.views, self.setup, self.dump, self.slots = views, first.setup, first.dump, first.slots
        self.facts, self.orders = first.facts, first.orders  # alike for all of them
        self.pages: dict[int, DumpedPage] = {}
        self.view_of: dict[int, GroupView] = {}  # by page: its group's
        for view in views:
            if twice := self.pages.keys() & view.pages.keys():
                raise BrokenInvariant(f"pages {sorted(twice)} are of two groups")
            if view.orders != self.orders or view.facts.free_pages != self.facts.free_pages:
                raise BrokenInvariant(f"groups {first.group} and {view.group} share a pool and see two")
            self.pages |= view.pages
            self.view_of |= dict.fromkeys(view.pages, view)

    def check(self) -> None:
        """All of it."""
        self.every_slot_is_in_one_place()
        self.pages_have_copies()
        self.order_lists_what_may_go()
        self.cells_hold_their_class()
        self.only_some_pages_pass()
        self.free_count_is_true()

    def background(self) -> Moves:
        """Moves of the pool in open background plans."""
        found: Moves = np.concatenate([view.background() for view in self.views])
        return found

    def every_slot_is_in_one_place(self) -> None:
        """A slot holds one copy of one page, or is empty and listed as such; nothing is lost, nothing is twice."""
        for tier, capacity in enumerate(self.slots):
            copies = Counter(page.slots[tier] for page in self.pages.values() if page.slots[tier] >= 0)
            if not all(count == 1 for count in copies.values()):
                raise BrokenInvariant(f"tier {tier}: a slot holds two pages: {copies}")
            listed = Counter(slot for slots in self.orders[tier].values() for slot in slots)
            if not all(count == 1 for count in listed.values()):
                raise BrokenInvariant(f"tier {tier}: a slot is listed twice")
            empty, coming = set(listed) - set(copies), self.filled(tier)
            if coming & (set(listed) | set(copies)):
                raise BrokenInvariant(f"tier {tier}: a slot that a background plan fills is in use")
            if len(empty) + len(copies) + len(coming) != capacity:
                raise BrokenInvariant(f"tier {tier}: {len(empty)} empty + {len(copies)} used != {capacity}")
            if not all(0 <= slot < capacity for slot in [*copies, *listed]):
                raise BrokenInvariant(f"tier {tier}: a slot is out of range")

    def filled(self, tier: int) -> set[int]:
        """Slots that background plans fill."""
        moves = self.background()
        return set(moves[moves[:, MoveColumn.DST_TIER] == tier, MoveColumn.DST_SLOT].tolist())

    def pages_have_copies(self) -> None:
        """A page has at least one copy; page ids are all either in use or free, once."""
        for number, page in self.pages.items():
            if not any(slot >= 0 for slot in page.slots):
                raise BrokenInvariant(f"page {number} has no copy")
        ids = Counter([*self.pages, *self.facts.free_pages])
        if sorted(ids) != list(range(sum(self.slots))) or max(ids.values()) != 1:
            raise BrokenInvariant("page ids are lost or doubled")

    def order_lists_what_may_go(self) -> None:
        """Listed: empty slots, shadows, and the hottest copy of an idle page by its priority. Nothing else.

        In the adaptive order a page whose child is there too waits for it, whatever the priorities.
        """
        expected = [Counter[tuple[int, int]]() for _ in self.slots]
        owner: list[set[int]] = [set() for _ in self.slots]
        covered = {page for view in self.views for page in view.covered_pages()}
        for number, page in self.pages.items():
            tiers = [tier for tier, slot in enumerate(page.slots) if slot >= 0]
            for tier in tiers:
                owner[tier].add(page.slots[tier])
            for tier in tiers[1:]:
                expected[tier][SHADOW, page.slots[tier]] += 1
            if page.node != NONE and page.holders == 0:
                klass = COVERED if number in covered else FIRST_PRIORITY + page.priority
                expected[tiers[0]][klass, page.slots[tiers[0]]] += 1
        empty_class = EMPTY_RELEASED if self.setup.config.order == "release_order" else EMPTY
        for tier, capacity in enumerate(self.slots):
            for slot in set(range(capacity)) - owner[tier] - self.filled(tier):
                expected[tier][empty_class, slot] += 1
            order = self.orders[tier].items()
            listed = Counter((self.facts.plain_class(klass), slot) for klass, slots in order for slot in slots)
            if listed != expected[tier]:
                raise BrokenInvariant(f"tier {tier}: order {listed - expected[tier]} vs {expected[tier] - listed}")

    def only_some_pages_pass(self) -> None:
        """Passed are whole blocks of windows, behind the sinks, and snapshots; beside those, in the order that learns,
        of full attention. In the order of release nothing is."""
        size, released = self.setup.block_size, self.setup.config.order == "release_order"
        cuts = self.facts.cells is not None and any(layer.bounded for layer in self.setup.layers)
        owner = [{page.slots[tier]: number for number, page in self.pages.items()} for tier in range(len(self.slots))]
        for tier, order in enumerate(self.orders):
            for slot in [slot for klass, slots in order.items() if self.facts.is_passed(klass) for slot in slots]:
                number = owner[tier][slot]
                if self.pages[number].unwanted and not released:
                    continue
                layer, way = self.view_of[number].layer, self.dump.way_to(self.pages[number].node)
                may_pass = layer.bounded or (cuts and not layer.cross)
                if not may_pass or released or way[-1].size < size or len(way) - 1 <= layer.sink(size):
                    raise BrokenInvariant(f"slot {slot} of tier {tier} is listed as passed")

    def cells_hold_their_class(self) -> None:
        """A page waits in a cell of its class, or of the first; not more is remembered than there is room for."""
        cells = self.facts.cells
        if cells is None:
            return
        owner = [{page.slots[tier]: number for number, page in self.pages.items()} for tier in range(len(self.slots))]
        known = {
            number: reuse for view in self.views if view.facts.cells for number, reuse in view.facts.cells.pages.items()
        }
        for tier, order in enumerate(self.orders):
            for klass, slots in order.items():
                for slot in slots if klass > COVERED else ():
                    number = owner[tier][slot]
                    if cells.place_of(klass)[1] not in (-1, 0, known[number].reuse):  # 0: listed by age alone
                        raise BrokenInvariant(f"page {number} of class {known[number].reuse} waits in {klass}")
        if sorted(cells.rank) != list(range(len(cells.hits))):
            raise BrokenInvariant(f"the order of cells is {cells.rank}")
        fast = self.slots if self.setup.slow_tier < 0 else self.slots[:-1]
        if len(cells.ghosts) != self.setup.config.ghosts * sum(fast):
            raise BrokenInvariant(f"{len(cells.ghosts)} ghosts have room")

    def free_count_is_true(self) -> None:
        """Free = device slots that are empty or hold an unclaimed idle page, less what is reserved for rows."""
        there = [page for page in self.pages.values() if page.slots[0] >= 0]
        idle = sum(page.node != NONE and not page.holders and not page.claims for page in there)
        reserved = 0
        for view in self.views:
            for facts in self.dump.rows.values():
                own, peak = facts.owns[view.place], facts.peaks[view.place]
                reserved += max(0, peak - own) if peak else 0
        free = self.slots[0] - len(there) + idle - reserved
        for view in self.views:
            if view.store.available(view.place) != free or view.facts.available != free:
                raise BrokenInvariant(f"free count is not {free} as group {view.group} counts it")
        registry = self.views[0].registry
        claimed = registry.open_claims or registry.open_finds or registry.background
        if free < 0 and not claimed:
            raise BrokenInvariant(f"{-free} reserved slots are not there")
