"""The pages of one group in the slots of its pool. The next victim is the least of a list by (class, stamp).

A slot's stamp is renewed whenever it joins a class: becomes empty, a shadow, the hottest copy of an idle page.
"""

from __future__ import annotations

from fuzzing.oracle import cut, reach
from fuzzing.oracle.cells import AGES, Cells
from fuzzing.oracle.classes import COVERED, EMPTY, IDLE, LISTS, SHADOW, victim_of
from fuzzing.oracle.gone import Loss
from fuzzing.oracle.page import DEFAULT, Page
from fuzzing.oracle.room import Room
from fuzzing.oracle.tree import Tree
from fuzzing.world.plain import Move, Path, World

ONBOARD, OFFLOAD, COPY, EXCHANGE = range(4)
TOTAL, NEW, FULL, PARTIAL, MISSED, ONBOARDED, OFFLOADED, COPIED, DROPPED, DEMOTED, GROWN, COPIED_TOKENS = range(12)
FROM_TIER, PARTIAL_FROM, SKIPPED, BEHIND, COPIED_DOWN, PREFETCHED, PENDING, NUM_COUNTS = 12, 20, 28, 29, 30, 31, 39, 40


class Pools:
    """One group, in a pool that others may share: a page has its group, and what is asked of it that group answers."""

    def __init__(
        self, world: World, group: tuple[int, int], tree: Tree, moves: list[tuple[Move, tuple[Page, ...]]], room: Room
    ) -> None:
        self.group, self.number = group  # in its stream, and in the cache
        self.world, self.tree, self.moves, self.room = world, tree, moves, room
        room.groups[self.group] = tree.groups[self.group] = self
        self.owner, self.stamp, self.numbers, self.pages = room.owner, room.stamp, room.numbers, room.pages
        self.cells, self.gone, self.filling = room.cells, room.gone, room.filling
        self.counts = [0] * NUM_COUNTS
        self.leaves_only = world.kinds[self.number].kind in ("full", "cross")
        self.now = 0  # as the cache was last told
        self.admissions = 0  # rows settled so far

    # -- questions ---------------------------------------------------------------------------------------------------

    def klass(self, tier: int, slot: int) -> int | None:
        """The class a slot waits in, None when it cannot be taken: whose page is held, or open."""
        page = self.owner[tier][slot]
        if page is None and (tier, slot) in self.filling:
            return None
        if page is None:
            return IDLE + 2 * DEFAULT + 1 if self.world.release_order else EMPTY
        if len(page.copies) > 1 and tier > page.hottest:
            return SHADOW
        if page.holders or page.path is None:
            return None
        if self.cells is None:
            return IDLE + 2 * page.priority + (not page.passed)
        return COVERED if page.covered else COVERED + 1 + page.priority * LISTS + 1 + self.place(page)

    def before(self, klass: int) -> tuple[int, int]:
        """Sorts classes in the order in which they are taken."""
        if self.cells is None or klass < COVERED:
            return klass, 0
        priority, cell = divmod(klass - COVERED - 1, LISTS)
        return (COVERED, 0) if klass == COVERED else (IDLE + 2 * priority, self.cells.turn_of(cell - 1))

    def place(self, page: Page) -> int:
        """Its cell; before all of them those that are passed."""
        return -1 if page.passed else page.cell

    def of(self, page: Page) -> Pools:
        """The group that a page of the pool belongs to."""
        mine: Pools = self.room.groups[page.group]
        return mine

    def own_pages(self) -> list[Page]:
        """Pages of the pool that are the group's."""
        return [page for page in self.pages.values() if page.group == self.group]

    def is_passed(self, page: Page) -> bool:
        """Whether nobody can be expected to resume where its window reaches: at its block, or a few below."""
        if page.unwanted or page.group != self.group:
            return page.unwanted or self.of(page).is_passed(page)
        kind, size, path = self.world.kinds[self.number], self.world.block_size, page.path
        if self.world.release_order or path is None:
            return False
        if kind.kind == "state":
            return self.tree.is_overtaken(path, self.group)
        if self.leaves_only and self.cells is not None:
            return cut.is_cut_off(self.tree, path, size)
        if kind.kind != "window" or len(path[-1]) < size or len(path) - 2 < reach.sink(kind, size):
            return False
        states = [group for group, other in enumerate(self.world.kinds) if other.kind == "state"]
        return not self.tree.reaches_point(path, reach.keeps(kind, size), states, size)

    def look_again(self, page: Page | None) -> None:
        """An idle page joins the back of another class if it belongs there now."""
        if page is not None and page.idle and page.passed != self.is_passed(page):
            self.restamp(page.hottest, page.copies[page.hottest])

    def is_taboo(self, tier: int, page: Page | None) -> bool:
        """Whether a copy must not be taken: the hottest of a claimed page, and below the device one that must stay."""
        return page is not None and bool((page.claims and tier == page.hottest) or (page.stays and tier))

    def victim(self, tier: int, shadows: bool = True) -> int | None:
        """The slot to take next; claimed pages are passed over, their shadows are not."""
        return victim_of(self, tier, shadows)

    # -- slots -------------------------------------------------------------------------------------------------------

    def restamp(self, tier: int, slot: int, front: bool = False) -> None:
        """The slot goes to the back of its class, or to its front."""
        room = self.room
        self.stamp[tier][slot] = room.front if front else room.turn
        room.turn, room.front = room.turn + (not front), room.front - front
        page = self.owner[tier][slot]
        if page is None or not page.idle or tier != page.hottest:
            return
        page.covered = self.has_child(page, tier)
        page.passed = not page.covered and self.is_passed(page)
        if self.cells is not None:
            page.cell = self.cells.listed(page)
            self.cells.reached["passed"] += page.passed

    # -- parents and children ----------------------------------------------------------------------------------------

    def has_child(self, page: Page, tier: int) -> bool:
        """Whether a child of its block is in that tier or a hotter one, where a child needs its parents."""
        if page.group != self.group:
            return self.of(page).has_child(page, tier)
        if self.cells is None or not self.leaves_only or page.path is None:
            return False
        children = [pages[self.group] for _, pages in self.tree.children(page.path)]
        return any(child is not None and child.seen is not None and child.seen <= tier for child in children)

    def see(self, page: Page, path: Path) -> None:
        """The page of this path has come, gone, or come to another tier: its parent may join another class."""
        page.seen = page.hottest if page.path is not None else None
        parent = self.tree.page(path[:-1], self.group)
        if self.cells is None or parent is None or not parent.idle or not parent.copies:
            return
        tier = parent.hottest
        covered = self.has_child(parent, tier)
        if covered != parent.covered:
            self.cells.reached["covered" if covered else "released by a child"] += 1
            self.restamp(tier, parent.copies[tier], not covered and self.is_oldest(self.cells, parent, tier, page))

    def is_oldest(self, cells: Cells, page: Page, tier: int, child: Page) -> bool:
        """Whether no page is older that is first in the list which this one will join; the child may wait there yet."""
        place = -1 if self.is_passed(page) else cells.listed(page)
        others = [other for other in self.owner[tier] if other and other is not page]
        others = [other for other in others if other.idle or (other is child and not other.holders)]
        idle = [other for other in others if other.copies]  # not what is on its way from one tier to another
        there = [other for other in idle if other.hottest == tier and not other.covered]
        same = [other for other in there if (other.priority, self.place(other)) == (page.priority, place)]
        first = min(same, key=lambda other: self.stamp[tier][other.copies[tier]], default=page)
        return page.used <= first.used

    def attach(self, page: Page, path: Path, replaces: bool = False) -> None:
        """The page stands for this path now, for which another may have stood."""
        self.tree.attach(page, path)
        if self.cells is not None:
            self.cells.inserted += 1
            if len(path[-1]) == self.world.block_size:
                self.cells.watch(page, path)
        self.see(page, path)
        if self.world.kinds[self.number].kind == "state" and not replaces:
            self.look_again(self.tree.page_before(path, self.group))  # it may be passed now, or not any more

    def detach(self, page: Page, why: int = 0) -> None:
        """The page stands for nothing now; with a reason it is remembered."""
        path = page.path
        assert path is not None
        if self.cells is not None:
            self.cells.leave(page, self.admissions, why if len(path[-1]) == self.world.block_size else 0)
        loss = Loss(self.now, why, self.admissions, 3 * page.unwanted) if why else None
        self.gone.note(self.group, path, loss, self.world.block_size)
        self.tree.detach(page)
        self.see(page, path)

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
        size = tokens or self.world.block_size
        self.moves.append(((kind, self.number, *source, *target, size, pages[0].number, number), pages))

    def count(self, what: int, number: int = 1) -> None:
        """Statistics."""
        self.counts[what] += number

    # -- pages -------------------------------------------------------------------------------------------------------

    def open_page(self, priority: int, duration: int | None) -> Page:
        """A new private page on the device."""
        slot = self.take()
        page = Page(self.numbers.pop(), self.group, priority, duration, holders=1)
        self.pages[page.number] = page
        if self.cells is not None:
            self.cells.made += 1
            self.cells.begin(page)
        self.put(page, 0, slot)
        return page

    def remove(self, page: Page) -> None:
        """The page is no more; its slots are empty, the hottest first."""
        assert page.path is None and not page.holders
        for tier in sorted(page.copies):
            self.empty(page, tier)
        self.remove_number(page)

    def remove_unused(self, page: Page) -> None:
        """A page outside the tree that nobody holds or claims is no more."""
        if not (page.path or page.holders or page.claims or page.gone):
            self.remove(page)

    def unclaim(self, page: Page) -> None:
        """One claim less."""
        page.claims -= 1
        self.remove_unused(page)

    def remove_number(self, page: Page) -> None:
        """The page is no more; its copies are somebody else's already."""
        page.gone, page.stays = True, 0
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
            self.remove_unused(page)
            return
        self.restamp(page.hottest, page.copies[page.hottest])
        if page.duration is not None and page.priority != DEFAULT:
            page.expiry, page.since = now + page.duration, self.room.turn

    def refresh(self, now: int) -> None:
        """Retention that has run out ends, the earliest first; pages that have become older join other cells."""
        self.tell_time(now)
        over = [page for page in self.pages.values() if page.expiry is not None and page.expiry <= now]
        for page in sorted(over, key=lambda page: (page.expiry, page.since)):
            page.expiry = None
            if page.idle:
                page.priority = DEFAULT
                self.restamp(page.hottest, page.copies[page.hottest])
        if self.cells is not None and self.cells.is_aging():
            self.age(self.cells)

    def tell_time(self, now: int) -> None:
        """It is `now`."""
        self.now = now
        if self.cells is not None:
            self.cells.now = max(self.cells.now, now)

    def age(self, cells: Cells) -> None:
        """Whoever is first in a cell and too old for it joins the one it belongs in, the oldest ages first."""
        for tier, owners in enumerate(self.owner):
            idle = [page for page in owners if page and page.idle and page.hottest == tier]
            idle = [page for page in idle if not page.covered and not page.passed]
            for old in sorted({(page.priority, page.cell) for page in idle}, reverse=True):
                waiting = [page for page in idle if (page.priority, page.cell) == old]
                for page in sorted(waiting, key=lambda page: self.stamp[tier][page.copies[tier]]):
                    if cells.listed(page) % AGES <= page.cell % AGES:
                        break
                    cells.reached["page aged"] += 1
                    self.restamp(tier, page.copies[tier])
                    page.passed = False  # growing old is not being looked at

    # -- taking slots ------------------------------------------------------------------------------------------------

    def take(self) -> int:
        """A device slot, whatever it costs."""
        slot = self.victim(0)
        assert slot is not None, "the dry count was wrong"
        self.count(TOTAL)
        self.count(NEW, int(self.owner[0][slot] is None))
        if self.owner[0][slot] is not None:
            self.evict(0, slot)
        return slot

    def evict(self, tier: int, slot: int) -> None:
        """The idle page with its hottest copy here loses it: it is demoted to a colder copy, offloaded, or dropped."""
        page = self.owner[tier][slot]
        assert page is not None
        if page.group != self.group:
            self.room.reached["page of another group evicted"] += 1
            self.of(page).evict(tier, slot)
            return
        if self.cells is not None and page.covered:
            self.cells.reached["covered page evicted"] += 1
        self.lift(page, tier)
        fast = bool(self.fast_copies(page))
        if not fast and self.offload_anywhere(page, tier, slot):
            return
        if page.copies:
            self.restamp(page.hottest, page.copies[page.hottest])
            self.arrived(page)
            self.count(DEMOTED)
            return
        if self.world.slow and tier in self.world.fast and self.is_worth_copying(page):
            self.count(BEHIND)
        cut.detach_evicted(self, page)
        self.remove_number(page)
        self.count(DROPPED)

    def offload_anywhere(self, page: Page, tier: int, slot: int) -> bool:
        """A page that has lost its only fast copy goes to the first fast tier below that has room for it."""
        hidden, page.copies = page.copies, {}  # it is on its way somewhere
        for colder in self.world.fast[tier + 1 :] if page.priority >= self.world.offload_min else ():
            room = self.make_room(colder, page)
            if room is not None:
                self.move(OFFLOAD, (tier, slot), (colder, room), page)
                self.put(page, colder, room)
                self.arrived(page)
                self.count(OFFLOADED)
                break
        found = bool(page.copies)
        page.copies |= hidden
        return found

    def is_worth_copying(self, page: Page) -> bool:
        """Whether a page should have a copy in the slow tier: a whole block, used often enough."""
        if page.path is None or len(page.path[-1]) < self.world.block_size:
            return False
        return page.priority >= self.world.offload_min and (self.cells is None or page.uses >= self.world.min_uses)

    def arrived(self, page: Page) -> None:
        """The page's hottest copy is in another tier now."""
        if page.path is not None:
            self.see(page, page.path)

    def make_room(self, tier: int, newcomer: Page) -> int | None:
        """A slot of a colder tier for a page; never at the cost of a more precious one."""
        slot = self.victim(tier)
        if slot is None or self.soft(tier, slot):
            return slot
        page = self.owner[tier][slot]
        assert page is not None
        if self.is_outranked(newcomer, page, tier):
            return None
        self.evict(tier, slot)
        return slot

    def is_outranked(self, newcomer: Page, there: Page, tier: int) -> bool:
        """Whether a page is worth more than one that would come in its place."""
        if self.cells is None:
            return (there.priority, not there.passed) > (newcomer.priority, not self.is_passed(newcomer))
        self.cells.reached["compared in a colder tier"] += 1
        if there.covered:
            self.cells.reached["covered page stays"] += 1
            return True
        mine = -1 if self.is_passed(newcomer) else self.cells.listed(newcomer)
        place = self.cells.turn_of(self.place(there))
        worth_more = (there.priority, place) > (newcomer.priority, self.cells.turn_of(mine))
        return worth_more and not self.has_child(newcomer, tier)

    def soft(self, tier: int, slot: int) -> bool:
        """Free a slot that costs nothing: an empty one, or a shadow, which goes. False for anybody's last copy."""
        page = self.owner[tier][slot]
        if page is not None and tier == page.hottest:
            return False
        if page is not None:
            self.lift(page, tier)
        return True

    def fast_copies(self, page: Page) -> list[int]:
        """Tiers in which it can be read without waiting."""
        return [tier for tier in sorted(page.copies) if tier in self.world.fast]
