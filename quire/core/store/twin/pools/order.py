"""The order of one tier: which slot is taken next.

Owns the class lists (EMPTY, SHADOW, two for each priority), each first in, first out, and who owns each slot. The
adaptive order has lists for the cells of a priority, and a last one for pages that are COVERED: a child is there as
well. Knows nothing of why a slot is listed, nor of other tiers.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

from quire.core.records.errors import BrokenInvariant
from quire.core.store.reuse import NUM_AGES, NUM_CELLS
from quire.core.store.twin.learned.ages import age_bin, cell_number
from quire.core.store.twin.tree.node import DEFAULT_PRIORITY, Page

EMPTY = 0
SHADOW = 1
IDLE = 2  # class of a passed page of priority 0; then come the others of that priority
COVERED = IDLE + 2 * 101
NUM_CLASSES = COVERED + 1
NUM_LISTS = 1 + NUM_CELLS  # of a priority in the adaptive order: pages nobody can resume at, then cells
UNLISTED = -1


class Queue:
    """First in, first out; entries passed over are parked and come back to their own place.

    `turns` is the list itself. The heap finds its first entry that is not parked, without scanning the parked ones
    again and again; entries that left the list stay in the heap until they are met or swept.
    """

    __slots__ = ("_heap", "_parked", "turns")

    def __init__(self) -> None:
        self.turns: OrderedDict[int, int] = OrderedDict()  # slot -> when it was pushed, front to back
        self._heap: list[tuple[int, int]] = []
        self._parked: set[int] = set()

    def push(self, slot: int, turn: int) -> None:
        """To the back; a turn below 0, to the front."""
        self.turns[slot] = turn
        if turn < 0:
            self.turns.move_to_end(slot, last=False)
        heappush(self._heap, (turn, slot))

    def remove(self, slot: int) -> None:
        del self.turns[slot]
        self._parked.discard(slot)
        if len(self._heap) > 2 * len(self.turns) + 16:
            self._heap = [(turn, slot) for slot, turn in self.turns.items() if slot not in self._parked]

    def unpark(self, slot: int) -> None:
        if slot in self._parked:
            self._parked.remove(slot)
            heappush(self._heap, (self.turns[slot], slot))

    def first(self, passed_over: Callable[[int], bool]) -> int:
        """The first slot that is not passed over, or -1."""
        while self._heap:
            turn, slot = self._heap[0]
            listed = self.turns.get(slot) == turn
            if listed and not passed_over(slot):
                return slot
            heappop(self._heap)
            if listed:
                self._parked.add(slot)
        return -1


def idle_level(priority: int, passed: bool = False) -> int:
    """The class of idle pages of a priority."""
    return IDLE + 2 * priority + (not passed)


def cell_level(priority: int, cell: int) -> int:
    """The class of the pages of a priority in a cell; -1: of those that are passed."""
    return NUM_CLASSES + priority * NUM_LISTS + 1 + cell


class Order:
    """The slots of one tier: their owners and the lists they wait in."""

    __slots__ = (
        "_cold", "_front", "_turn", "celled", "empty_class", "empty_slots", "level", "num_idle", "num_shadow", "owner",
        "places", "queues", "rank",
    )  # fmt: skip

    def __init__(self, num_slots: int, release_order: bool, cold: bool = False) -> None:
        self._cold = cold  # it is not the device's
        self._turn = 0
        self._front = -1  # the turn of the next that goes to the front
        self.empty_class = idle_level(DEFAULT_PRIORITY) if release_order else EMPTY
        self.owner: list[Page | None] = [None] * num_slots
        self.level = [UNLISTED] * num_slots
        self.queues: dict[int, Queue] = {}  # made when first used
        self.rank: list[int] | None = None  # of the adaptive order: the cells, first to be evicted first
        self.places: dict[int, int] = {}  # and where each of them stands
        self.celled: Counter[int] = Counter()  # pages in cells, by priority
        self.empty_slots: OrderedDict[int, None] = OrderedDict()  # the EMPTY ones in list order, whatever their class
        self.num_shadow = 0
        self.num_idle = 0
        for slot in range(num_slots):
            self.push_empty(slot)

    @property
    def num_empty(self) -> int:
        return len(self.empty_slots)

    def push_empty(self, slot: int) -> None:
        if self.owner[slot] is not None:
            raise BrokenInvariant(f"slot {slot} is to be listed as empty, and it holds a page")
        self.empty_slots[slot] = None
        self._push(slot, self.empty_class)

    def push_shadow(self, slot: int) -> None:
        self.num_shadow += 1
        self._push(slot, SHADOW)

    def push_idle(self, slot: int, level: int, front: bool = False) -> None:
        self.num_idle += 1
        self._push(slot, level, front)

    def first_page(self, level: int) -> Page | None:
        """The first page of a class, claimed or not."""
        queue = self.queues.get(level)
        return self.owner[next(iter(queue.turns))] if queue is not None and queue.turns else None

    def _push(self, slot: int, level: int, front: bool = False) -> None:
        if self.level[slot] != UNLISTED:
            raise BrokenInvariant(f"slot {slot} is listed already")
        self.level[slot] = level
        if level not in self.queues:
            self.queues[level] = Queue()
        self.queues[level].push(slot, self._front if front else self._turn)
        if level >= NUM_CLASSES:
            self.celled[(level - NUM_CLASSES) // NUM_LISTS] += 1
        if front:
            self._front -= 1
        else:
            self._turn += 1

    def unlist(self, slot: int) -> None:
        level = self.level[slot]
        self.queues[level].remove(slot)
        self.level[slot] = UNLISTED
        if level >= NUM_CLASSES:
            self.celled[(level - NUM_CLASSES) // NUM_LISTS] -= 1
        if self.owner[slot] is None:
            del self.empty_slots[slot]
        elif level == SHADOW:
            self.num_shadow -= 1
        else:
            self.num_idle -= 1

    def is_listed(self, slot: int) -> bool:
        return self.level[slot] != UNLISTED

    def is_claimed(self, slot: int) -> bool:
        """Whether the slot holds the hottest copy of a claimed page, or below the device a copy that must stay there.

        Else a shadow is never claimed.
        """
        owner = self.owner[slot]
        if owner is None:
            return False
        return (owner.claims > 0 and self.level[slot] != SHADOW) or (self._cold and owner.stays > 0)

    def unpark(self, slot: int) -> None:
        """The page of a listed slot has no claims any more."""
        self.queues[self.level[slot]].unpark(slot)

    def first_unclaimed(self, shadows: bool = True) -> int:
        """The slot to take next, -1 when every listed one is claimed; with shadows or without."""
        for level in self.levels():
            if level == SHADOW and not shadows:
                continue
            queue = self.queues.get(level)
            if queue is not None and queue.turns:
                slot = queue.first(self.is_claimed)
                if slot >= 0:
                    return slot
        return -1

    def place(self, cell: int) -> int:
        """Where a cell stands in the learned order; pages that are passed (-1) come before all."""
        return self.places.get(cell, -1)

    def rank_cells(self, cells: Sequence[int]) -> None:
        """Evict in this order of cells from now on."""
        self.rank, self.places = list(cells), {cell: place for place, cell in enumerate(cells)}

    def levels(self) -> Iterator[int]:
        """The classes that somebody has waited in, in the order in which they are taken."""
        if self.rank is None:
            yield from sorted(self.queues)
            return
        yield from (EMPTY, SHADOW)
        for priority in sorted(priority for priority, count in self.celled.items() if count):
            base = cell_level(priority, 0)
            filled = [level for level in self.queues if base - 1 <= level < base + NUM_CELLS]
            yield from sorted(filled, key=lambda level: self.place(level - base))
        yield COVERED

    def age(self, now: int, recency: bool) -> None:
        """Pages in cells that have become too old for them go to the back of those they belong to now."""
        for level in sorted(self.queues, reverse=True):  # the oldest first: they come before those that follow
            cell = (level - NUM_CLASSES) % NUM_LISTS - 1  # -1: of pages that are passed, which have no age
            if level >= NUM_CLASSES and cell >= 0 and cell % NUM_AGES < NUM_AGES - 1:
                self._age_cell(level, cell, now, recency)

    def _age_cell(self, level: int, cell: int, now: int, recency: bool) -> None:
        queue = self.queues.get(level)
        while queue is not None and queue.turns:
            slot = next(iter(queue.turns))
            page = self.owner[slot]
            assert page is not None
            older = age_bin(now - page.used)
            if older <= cell % NUM_AGES:
                break
            self.unlist(slot)
            self.push_idle(slot, level - cell + cell_number(0 if recency else page.reuse, older))

    def first_empty(self) -> int:
        return next(iter(self.empty_slots), -1)

    def idle_pages(self, lowest: int) -> Iterator[Page]:
        """Idle pages of at least this priority, first to be evicted first."""
        for level in self.levels():
            queue = self.queues.get(level)
            for slot in queue.turns if queue is not None and level >= IDLE else ():
                owner = self.owner[slot]
                if owner is not None and owner.priority >= lowest:
                    yield owner
