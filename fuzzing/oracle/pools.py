"""The slots of one group in every tier. The next victim is the least of a list by (class, stamp); no order is kept.

A slot's stamp is renewed whenever it joins a class: becomes empty, a shadow, the hottest copy of an idle page.
"""

from __future__ import annotations

from fuzzing.oracle.page import DEFAULT, Page
from fuzzing.oracle.tree import Tree
from fuzzing.world.plain import Move, World

ONBOARD, OFFLOAD, COPY, EXCHANGE = range(4)
TOTAL, NEW, FULL, PARTIAL, MISSED, ONBOARDED, OFFLOADED, COPIED, DROPPED, DEMOTED, GROWN, COPIED_TOKENS = range(12)
FROM_TIER, PARTIAL_FROM, SKIPPED, NUM_COUNTS = 12, 20, 28, 29
EMPTY, SHADOW, IDLE = 0, 1, 2  # classes; an idle page of priority p is in IDLE + p


class Pools:
    """One group: who is in which slot, since when."""

    def __init__(
        self, world: World, group: tuple[int, int], tree: Tree, moves: list[tuple[Move, tuple[Page, ...]]]
    ) -> None:
        self.group, self.number = group  # in its stream, and in the cache
        sizes = [tier[self.number] for tier in world.tiers]
        self.world, self.tree, self.moves = world, tree, moves
        self.owner: list[list[Page | None]] = [[None] * size for size in sizes]
        self.stamp = [list(range(size)) for size in sizes]
        self.turn = sum(sizes)
        self.numbers = list(range(sum(sizes) - 1, -1, -1))  # free page numbers, the next one last
        self.pages: dict[int, Page] = {}
        self.counts = [0] * NUM_COUNTS

    # -- questions ---------------------------------------------------------------------------------------------------

    def klass(self, tier: int, slot: int) -> int | None:
        """The class a slot waits in, None when it cannot be taken: whose page is held, or open."""
        page = self.owner[tier][slot]
        if page is None:
            return IDLE + DEFAULT if self.world.release_order else EMPTY
        if tier > page.hottest:
            return SHADOW
        return IDLE + page.priority if page.idle else None

    def victim(self, tier: int) -> int | None:
        """The slot to take next; claimed pages are passed over, their shadows are not."""
        best: tuple[int, int, int] | None = None
        for slot, page in enumerate(self.owner[tier]):
            klass = self.klass(tier, slot)
            if klass is None or (page is not None and page.claims and tier == page.hottest):
                continue
            if best is None or (klass, self.stamp[tier][slot]) < best[:2]:
                best = (klass, self.stamp[tier][slot], slot)
        return None if best is None else best[2]

    def free(self) -> int:
        """Device slots that can be had: empty, or of an idle page nobody claims."""
        return sum(page is None or (page.idle and not page.claims) for page in self.owner[0])

    def usage(self, tier: int) -> tuple[int, int, int]:
        """Empty slots, idle pages, shadows."""
        empty = idle = shadows = 0
        for page in self.owner[tier]:
            if page is None:
                empty += 1
            elif tier > page.hottest:
                shadows += 1
            elif page.idle:
                idle += 1
        return empty, idle, shadows

    # -- slots -------------------------------------------------------------------------------------------------------

    def restamp(self, tier: int, slot: int) -> None:
        """The slot goes to the back of its class."""
        self.stamp[tier][slot] = self.turn
        self.turn += 1

    def put(self, page: Page, tier: int, slot: int) -> None:
        """The slot holds a copy of the page now."""
        assert self.owner[tier][slot] is None
        self.owner[tier][slot] = page
        page.copies[tier] = slot
        self.restamp(tier, slot)

    def lift(self, page: Page, tier: int) -> int:
        """The page loses its copy in a tier; the slot is the caller's."""
        slot = page.copies.pop(tier)
        self.owner[tier][slot] = None
        return slot

    def empty(self, page: Page, tier: int) -> None:
        """The page loses its copy in a tier; the slot is empty."""
        self.restamp(tier, self.lift(page, tier))

    def move(self, kind: int, source: tuple[int, int], target: tuple[int, int], *pages: Page, tokens: int = 0) -> None:
        """Bytes must follow."""
        number = pages[1].number if len(pages) > 1 else -1
        row = (kind, self.number, *source, *target, tokens or self.world.block_size, pages[0].number, number)
        self.moves.append((row, pages))

    def count(self, what: int, number: int = 1) -> None:
        """Statistics."""
        self.counts[what] += number

    # -- pages -------------------------------------------------------------------------------------------------------

    def open_page(self, priority: int, duration: int | None) -> Page:
        """A new private page on the device."""
        slot = self.take()
        page = Page(self.numbers.pop(), self.group, priority, duration, holders=1)
        self.pages[page.number] = page
        self.put(page, 0, slot)
        return page

    def remove(self, page: Page) -> None:
        """The page is no more; its slots are empty, the hottest first."""
        assert page.path is None and not page.holders
        for tier in sorted(page.copies):
            self.empty(page, tier)
        self.remove_number(page)

    def remove_number(self, page: Page) -> None:
        """The page is no more; its copies are somebody else's already."""
        page.gone = True
        self.numbers.append(page.number)
        del self.pages[page.number]

    def hold(self, page: Page) -> None:
        """One more holder."""
        page.holders += 1
        page.expiry = None

    def let_go(self, page: Page, now: int) -> None:
        """One holder less; the last one leaves an idle page, or none."""
        page.holders -= 1
        if page.holders:
            return
        if page.path is None:
            self.remove(page)
            return
        self.restamp(page.hottest, page.copies[page.hottest])
        if page.duration is not None and page.priority != DEFAULT:
            page.expiry, page.since = now + page.duration, self.turn

    def refresh(self, now: int) -> None:
        """Retention that has run out ends, the earliest first."""
        over = [page for page in self.pages.values() if page.expiry is not None and page.expiry <= now]
        for page in sorted(over, key=lambda page: (page.expiry, page.since)):
            page.expiry = None
            if page.idle:
                page.priority = DEFAULT
                self.restamp(page.hottest, page.copies[page.hottest])

    # -- taking slots ------------------------------------------------------------------------------------------------

    def take(self) -> int:
        """A device slot, whatever it costs."""
        slot = self.victim(0)
        assert slot is not None, "the dry count was wrong"
        self.count(TOTAL)
        if self.owner[0][slot] is None:
            self.count(NEW)
        else:
            self.evict(0, slot)
        return slot

    def evict(self, tier: int, slot: int) -> None:
        """The idle page with its hottest copy here loses it: it is demoted to a colder copy, offloaded, or dropped."""
        page = self.owner[tier][slot]
        assert page is not None
        self.lift(page, tier)
        if page.copies:
            self.restamp(page.hottest, page.copies[page.hottest])
            self.count(DEMOTED)
            return
        if page.priority >= self.world.offload_min:
            for colder in range(tier + 1, len(self.owner)):
                room = self.make_room(colder, page.priority)
                if room is not None:
                    self.move(OFFLOAD, (tier, slot), (colder, room), page)
                    self.put(page, colder, room)
                    self.count(OFFLOADED)
                    return
        self.tree.detach(page)
        self.remove_number(page)
        self.count(DROPPED)

    def make_room(self, tier: int, priority: int) -> int | None:
        """A slot of a colder tier for a page of this priority; never at the cost of a more precious page."""
        slot = self.victim(tier)
        if slot is None or self.soft(tier, slot):
            return slot
        page = self.owner[tier][slot]
        assert page is not None
        if page.priority > priority:
            return None
        self.evict(tier, slot)
        return slot

    def soft(self, tier: int, slot: int) -> bool:
        """Free a slot that costs nothing: an empty one, or a shadow, which goes. False for anybody's last copy."""
        page = self.owner[tier][slot]
        if page is not None and tier == page.hottest:
            return False
        if page is not None:
            self.lift(page, tier)
        return True

    def onboard(self, page: Page) -> None:
        """A held page comes to the device; when all else is full it changes places with the victim."""
        tier = page.hottest
        slot = page.copies[tier]
        target = self.victim(0)
        assert target is not None, "the dry count was wrong"
        self.count(TOTAL)
        victim = self.owner[0][target]
        if victim is None:
            self.count(NEW)
        elif len(victim.copies) > 1 or victim.priority < self.world.offload_min:
            self.evict(0, target)
        elif not self.offload_softly(victim):
            self.exchange(page, victim)
            return
        self.move(ONBOARD, (tier, slot), (0, target), page)
        self.put(page, 0, target)
        self.count(ONBOARDED)
        if self.world.shadows:
            self.restamp(tier, slot)
        else:
            self.empty(page, tier)

    def offload_softly(self, victim: Page) -> bool:
        """Offload a device page where it costs nobody the last copy, if the next in line is such a place."""
        for tier in range(1, len(self.owner)):
            room = self.victim(tier)
            if room is not None and self.soft(tier, room):
                self.move(OFFLOAD, (0, self.lift(victim, 0)), (tier, room), victim)
                self.put(victim, tier, room)
                self.count(OFFLOADED)
                return True
        return False

    def exchange(self, page: Page, victim: Page) -> None:
        """Two pages change places."""
        tier = page.hottest
        target, slot = self.lift(victim, 0), self.lift(page, tier)
        self.move(EXCHANGE, (0, target), (tier, slot), page, victim)
        self.put(victim, tier, slot)
        self.put(page, 0, target)
        self.count(OFFLOADED)
        self.count(ONBOARDED)

    def offload_early(self, limit: int) -> None:
        """The next victims of the device get shadows, in empty slots only."""
        waiting = [page for page in self.owner[0] if page and page.idle and not page.claims and len(page.copies) == 1]
        worthy = [page for page in waiting if page.priority >= self.world.offload_min]
        for page in sorted(worthy, key=lambda page: (page.priority, self.stamp[0][page.copies[0]]))[:limit]:
            room = self.first_empty()
            if room is None:
                return
            self.move(OFFLOAD, (0, page.copies[0]), room, page)
            self.put(page, *room)
            self.count(OFFLOADED)

    def first_empty(self) -> tuple[int, int] | None:
        """The empty slot that has waited longest, of the first colder tier that has one."""
        for tier in range(1, len(self.owner)):
            empty = [slot for slot, page in enumerate(self.owner[tier]) if page is None]
            if empty:
                return tier, min(empty, key=lambda slot: self.stamp[tier][slot])
        return None
