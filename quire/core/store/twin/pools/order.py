"""The order of one tier: which slot is taken next.

Owns the class lists (EMPTY, SHADOW, 2 + priority), each first in, first out, and who owns each slot. Knows nothing of
why a slot is listed, nor of other tiers.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from quire.core.records.errors import BrokenInvariant
from quire.core.store.twin.tree.node import DEFAULT_PRIORITY, Page

EMPTY = 0
SHADOW = 1
IDLE = 2  # class of a page of priority p: IDLE + p
NUM_CLASSES = IDLE + 101
UNLISTED = -1


class Queue:
    """First in, first out; entries passed over are parked and come back to their own place.

    `turns` is the list itself. The heap finds its first entry that is not parked, without scanning the parked ones
    again and again; entries that left the list stay in the heap until they are met or swept.
    """

    __slots__ = ("_heap", "_parked", "turns")

    def __init__(self) -> None:
        self.turns: dict[int, int] = {}  # slot -> when it was pushed, front to back
        self._heap: list[tuple[int, int]] = []
        self._parked: set[int] = set()

    def push(self, slot: int, turn: int) -> None:
        self.turns[slot] = turn
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


class Order:
    """The slots of one tier: their owners and the lists they wait in."""

    __slots__ = ("_turn", "empty_class", "empty_slots", "level", "num_idle", "num_shadow", "owner", "queues")

    def __init__(self, num_slots: int, release_order: bool) -> None:
        self._turn = 0
        self.empty_class = IDLE + DEFAULT_PRIORITY if release_order else EMPTY
        self.owner: list[Page | None] = [None] * num_slots
        self.level = [UNLISTED] * num_slots
        self.queues = [Queue() for _ in range(NUM_CLASSES)]
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

    def push_idle(self, slot: int, priority: int) -> None:
        self.num_idle += 1
        self._push(slot, IDLE + priority)

    def _push(self, slot: int, level: int) -> None:
        if self.level[slot] != UNLISTED:
            raise BrokenInvariant(f"slot {slot} is listed already")
        self.level[slot] = level
        self.queues[level].push(slot, self._turn)
        self._turn += 1

    def unlist(self, slot: int) -> None:
        level = self.level[slot]
        self.queues[level].remove(slot)
        self.level[slot] = UNLISTED
        if self.owner[slot] is None:
            del self.empty_slots[slot]
        elif level == SHADOW:
            self.num_shadow -= 1
        else:
            self.num_idle -= 1

    def is_listed(self, slot: int) -> bool:
        return self.level[slot] != UNLISTED

    def is_claimed(self, slot: int) -> bool:
        """Whether the slot holds the hottest copy of a claimed page; a shadow is never claimed."""
        owner = self.owner[slot]
        return owner is not None and owner.claims > 0 and self.level[slot] != SHADOW

    def unpark(self, slot: int) -> None:
        """The page of a listed slot has no claims any more."""
        self.queues[self.level[slot]].unpark(slot)

    def first_unclaimed(self) -> int:
        """The slot to take next, -1 when every listed one is claimed."""
        for queue in self.queues:
            if queue.turns:
                slot = queue.first(self.is_claimed)
                if slot >= 0:
                    return slot
        return -1

    def first_empty(self) -> int:
        return next(iter(self.empty_slots), -1)

    def idle_pages(self, lowest: int) -> Iterator[Page]:
        """Idle pages of at least this priority, first to be evicted first."""
        for queue in self.queues[IDLE + lowest :]:
            for slot in queue.turns:
                owner = self.owner[slot]
                if owner is not None:
                    yield owner
