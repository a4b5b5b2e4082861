"""The order "adaptive": keys wait in cells (class and age), which are evicted in the learned order.

Owns where a key waits: by priority, first the passed keys, then its cell; covered keys come last of all. Knows nothing
of how the order of cells is learned (`learned`, `state/learner.py`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from quire.core.store.reference.learned.ages import age_bin, cell_number, listed_class
from quire.core.store.reference.pools.order import COVERED, NUM_CLASSES, Entry, Lists
from quire.core.store.reuse import FIRST_RANK, NUM_AGES, NUM_CELLS

K = TypeVar("K")
NUM_LISTS = 1 + NUM_CELLS  # of a priority: keys that are passed, then cells
PASSED = -1  # in place of a cell


def cell_level(priority: int, cell: int) -> int:
    """The number of the list of a priority and a cell."""
    return NUM_CLASSES + priority * NUM_LISTS + 1 + cell


class Adaptive(Lists[K]):
    """Fewest hits for the time in a slot first."""

    __slots__ = ("_places", "aged", "rank", "recency")

    def __init__(self) -> None:
        super().__init__()
        self.aged = 0  # when keys last went on to their next cells: they are listed by their ages then
        self.recency = True  # all are listed as if of one class, but for what never comes back
        self.rank: list[int] = []  # the cells, first to go first
        self._places: dict[int, int] = {PASSED: -1}  # and where each of them stands
        self.rank_cells(FIRST_RANK, True)

    def add(self, key: K, entry: Entry, released: bool = False) -> None:
        """One that is released goes to the front of its cell if it is no younger than the first there: the oldest go
        first, and what came together goes together."""
        level = COVERED if entry.covered else cell_level(entry.priority, self.cell_of(entry))
        first = next(iter(self.queues[level].turns), None) if level in self.queues else None
        front = released and (first is None or entry.used <= self.entries[first].used)
        self.push(key, level, entry, front)

    def cell_of(self, entry: Entry) -> int:
        """Where it waits among those of its priority."""
        if entry.passed:
            return PASSED
        age = max(0, age_bin(self.aged - entry.used) - entry.younger)
        return cell_number(listed_class(entry.reuse, self.recency), age)

    def levels(self) -> Iterator[int]:
        filled = [level for level, queue in self.queues.items() if queue.turns and level != COVERED]
        yield from sorted(filled, key=self._turn_of)
        yield from (COVERED,) if COVERED in self.queues else ()

    def _turn_of(self, level: int) -> tuple[int, int]:
        """When a list with cells is taken: by priority, then by what was learned."""
        priority, place = divmod(level - NUM_CLASSES, NUM_LISTS)
        return priority, self._places[place - 1]

    def outranks(self, key: K, entry: Entry) -> bool:
        there = self.entries[key]
        if there.covered or entry.covered:
            return there.covered
        place = self._places[self.level[key] - cell_level(there.priority, 0)]
        return (there.priority, place) > (entry.priority, self._places[self.cell_of(entry)])

    def rank_cells(self, cells: Sequence[int], recency: bool) -> None:
        """Evict in this order of cells from now on; `recency`: by age alone."""
        self.rank, self.recency = list(cells), recency
        self._places = {PASSED: -1, **{cell: place for place, cell in enumerate(cells)}}

    def age(self, now: int) -> None:
        """Keys in cells that have become too old for them go to the back of those they belong to now."""
        self.aged = now
        for level in sorted(self.queues, reverse=True):  # the oldest first: they come before those that follow
            cell = (level - NUM_CLASSES) % NUM_LISTS - 1  # -1: of keys that are passed, which have no age
            if level >= NUM_CLASSES and cell >= 0 and cell % NUM_AGES < NUM_AGES - 1:
                self._age_cell(level, cell % NUM_AGES)

    def _age_cell(self, level: int, age: int) -> None:
        turns: Iterable[K] = self.queues[level].turns
        while (key := next(iter(turns), None)) is not None:
            entry = self.entries[key]
            if self.cell_of(entry) % NUM_AGES <= age:
                break
            self.remove(key)
            self.add(key, entry)
