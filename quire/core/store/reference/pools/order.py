"""What an eviction order is, and the slots of one tier that it ranks.

Owns the interface between a tier and its order (docs/reference/order.md): the tier says which keys may go, and asks the
order which go next. Owns the tier itself, too: the owner of each slot, which are empty, which hold shadows. Here the
keys are slots; an order knows nothing of them, so that it can rank anything. Owns lists by number, too, on which orders
are built. Knows no order, nor why a slot is listed.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from quire.core.records.errors import BrokenInvariant
from quire.core.store.reference.tree.node import DEFAULT_PRIORITY, Page
from quire.core.store.reuse import ONCE

K = TypeVar("K", bound=Hashable)
EMPTY = 0
SHADOW = 1
IDLE = 2  # class of a passed page of priority 0; then come the others of that priority
COVERED = IDLE + 2 * 101
NUM_CLASSES = COVERED + 1


class Entry(NamedTuple):
    """What an order learns of a key."""

    priority: int = DEFAULT_PRIORITY  # retention, 0 to 100
    passed: bool = False  # no request will continue from there, or it is unwanted
    covered: bool = False  # another key that is here would be of no use without it
    reuse: int = ONCE  # class, by uses or hint
    used: int = 0  # when it was last used, in ticks
    younger: int = 0  # ages that it counts as younger: it costs more to compute it again


class EvictionOrder(Protocol[K]):
    """Keys that may go, and in which order. The caller that asks for one to go removes it."""

    empties_wait: bool  # empty slots wait among the keys, as entries without owner, instead of going before them

    def add(self, key: K, entry: Entry, released: bool = False) -> None:
        """A key may go from now on; `released`: since the last key that covered it has gone."""

    def remove(self, key: K) -> None:
        """The key may no longer go: it is going, or is used."""

    def first(self, spared: Callable[[K], bool]) -> K | None:
        """The key to go next that is not spared. One that is may be left out of sight until `spare_no_more`."""

    def spare_no_more(self, key: K) -> None:
        """A key is no longer spared, if it was."""

    def __iter__(self) -> Iterator[K]:
        """All keys, first to go first, spared or not."""

    def outranks(self, key: K, entry: Entry) -> bool:
        """Whether a key shall stay rather than a newcomer come in its place."""

    def age(self, now: int) -> None:
        """Time has passed: a 32nd of the keys has come since the last call."""

    def census(self) -> dict[int, list[K]]:
        """The keys by list, first to go first; lists without keys left out. How lists are numbered: `idle_level`."""


def victims(order: EvictionOrder[K], count: int, spared: Callable[[K], bool]) -> list[K] | None:
    """So many keys that go next and are not spared, or None if there are fewer. Nothing has changed."""
    found = list(islice((key for key in order if not spared(key)), count))
    return found if len(found) == count else None


def idle_level(priority: int, passed: bool = False) -> int:
    """The number of the list of a priority."""
    return IDLE + 2 * priority + (not passed)


class Queue(Generic[K]):
    """First in, first out; entries passed over are parked and come back to their own place.

    `turns` is the list itself. The heap finds its first entry that is not parked, without scanning the parked ones
    again and again; entries that left the list stay in the heap until they are met or swept.
    """

    __slots__ = ("_heap", "_parked", "turns")

    def __init__(self) -> None:
        self.turns: OrderedDict[K, int] = OrderedDict()  # key -> when it was pushed, front to back
        self._heap: list[tuple[int, K]] = []
        self._parked: set[K] = set()

    def push(self, key: K, turn: int) -> None:
        """To the back; a turn below 0, to the front."""
        self.turns[key] = turn
        if turn < 0:
            self.turns.move_to_end(key, last=False)
        heappush(self._heap, (turn, key))

    def remove(self, key: K) -> None:
        del self.turns[key]
        self._parked.discard(key)
        if len(self._heap) > 2 * len(self.turns) + 16:
            self._heap = [(turn, key) for key, turn in self.turns.items() if key not in self._parked]

    def unpark(self, key: K) -> None:
        if key in self._parked:
            self._parked.remove(key)
            heappush(self._heap, (self.turns[key], key))

    def first(self, passed_over: Callable[[K], bool]) -> K | None:
        """The first key that is not passed over."""
        while self._heap:
            turn, key = self._heap[0]
            listed = self.turns.get(key) == turn
            if listed and not passed_over(key):
                return key
            heappop(self._heap)
            if listed:
                self._parked.add(key)
        return None


class Lists(Generic[K]):
    """Keys in numbered lists, each first in, first out; the lists are taken by their numbers."""

    __slots__ = ("_front", "_turn", "entries", "level", "queues")
    empties_wait = False

    def __init__(self) -> None:
        self._turn = 0
        self._front = -1  # the turn of the next that goes to the front
        self.queues: defaultdict[int, Queue[K]] = defaultdict(Queue)  # made when first used
        self.level: dict[K, int] = {}  # key -> the list it waits in
        self.entries: dict[K, Entry] = {}

    def push(self, key: K, level: int, entry: Entry, front: bool = False) -> None:
        """A key joins the back of a list, or its front."""
        self.queues[level].push(key, self._front if front else self._turn)
        self.level[key], self.entries[key] = level, entry
        if front:
            self._front -= 1
        else:
            self._turn += 1

    def remove(self, key: K) -> None:
        self.queues[self.level.pop(key)].remove(key)
        del self.entries[key]

    def levels(self) -> Iterable[int]:
        """The lists in which keys have waited, first to be taken first."""
        return sorted(self.queues)

    def first(self, spared: Callable[[K], bool]) -> K | None:
        for level in self.levels():
            if self.queues[level].turns and (key := self.queues[level].first(spared)) is not None:
                return key
        return None

    def spare_no_more(self, key: K) -> None:
        self.queues[self.level[key]].unpark(key)

    def __iter__(self) -> Iterator[K]:
        return (key for level in self.levels() for key in self.queues[level].turns)

    def age(self, now: int) -> None:
        """What came first goes first, however long ago."""

    def census(self) -> dict[int, list[K]]:
        return {level: list(queue.turns) for level, queue in sorted(self.queues.items()) if queue.turns}


class Order:
    """The slots of one tier: their owners, and where each waits."""

    __slots__ = ("_cold", "_turn", "empty_slots", "entries", "owner", "ranking", "shadows")

    def __init__(self, num_slots: int, ranking: EvictionOrder[int], cold: bool = False) -> None:
        self._cold = cold  # it is not the device's
        self._turn = 0
        self.ranking = ranking  # of the idle pages
        self.owner: list[Page | None] = [None] * num_slots
        self.entries: dict[int, Entry] = {}  # what the order has learned of slots with idle pages
        self.shadows: Queue[int] = Queue()
        self.empty_slots: OrderedDict[int, None] = OrderedDict()  # in the order in which they became so
        for slot in range(num_slots):
            self.push_empty(slot)

    @property
    def num_empty(self) -> int:
        return len(self.empty_slots)

    @property
    def num_shadow(self) -> int:
        return len(self.shadows.turns)

    @property
    def num_idle(self) -> int:
        return len(self.entries)

    def push_empty(self, slot: int) -> None:
        self._check(slot, self.owner[slot] is None)
        self.empty_slots[slot] = None
        if self.ranking.empties_wait:
            self.ranking.add(slot, Entry())

    def push_shadow(self, slot: int) -> None:
        self._check(slot, self.owner[slot] is not None)
        self.shadows.push(slot, self._turn)
        self._turn += 1

    def push_idle(self, slot: int, entry: Entry, released: bool = False) -> None:
        self._check(slot, self.owner[slot] is not None)
        self.entries[slot] = entry
        self.ranking.add(slot, entry, released)

    def _check(self, slot: int, fits: bool) -> None:
        if self.is_listed(slot) or not fits:
            raise BrokenInvariant(f"slot {slot} is listed already, or as what it is not")

    def unlist(self, slot: int) -> None:
        if slot in self.shadows.turns:
            self.shadows.remove(slot)
            return
        if self.owner[slot] is not None:
            del self.entries[slot]
            self.ranking.remove(slot)
            return
        del self.empty_slots[slot]
        if self.ranking.empties_wait:
            self.ranking.remove(slot)

    def is_listed(self, slot: int) -> bool:
        return slot in self.entries or slot in self.empty_slots or slot in self.shadows.turns

    def is_claimed(self, slot: int) -> bool:
        """Whether the slot holds the hottest copy of a claimed page, or below the device a copy that must stay there.

        Else a shadow is never claimed.
        """
        owner = self.owner[slot]
        if owner is None:
            return False
        return (owner.claims > 0 and slot not in self.shadows.turns) or (self._cold and owner.stays > 0)

    def unpark(self, slot: int) -> None:
        """The page of a listed slot has no claims any more."""
        if slot in self.shadows.turns:
            self.shadows.unpark(slot)
        else:
            self.ranking.spare_no_more(slot)

    def first_unclaimed(self, shadows: bool = True) -> int:
        """The slot to take next, -1 when every listed one is claimed; with shadows or without."""
        if self.empty_slots and not self.ranking.empties_wait:
            return self.first_empty()
        slot = self.shadows.first(self.is_claimed) if shadows else None
        slot = self.ranking.first(self.is_claimed) if slot is None else slot
        return -1 if slot is None else slot

    def first_empty(self) -> int:
        return next(iter(self.empty_slots), -1)

    def with_pages(self) -> Iterator[int]:
        """Slots of idle pages, first to be evicted first."""
        return (slot for slot in self.ranking if self.owner[slot] is not None)

    def idle_pages(self, lowest: int) -> Iterator[Page]:
        """Idle pages of at least this priority, first to be evicted first."""
        owners = (self.owner[slot] for slot in self.with_pages())
        return (owner for owner in owners if owner is not None and owner.priority >= lowest)
