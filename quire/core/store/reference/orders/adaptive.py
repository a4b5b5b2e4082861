"""The order "adaptive": keys wait in cells (class and age), which are evicted in the learned order.

Owns where a key waits: by priority, first the passed keys, then its cell; covered keys come last of all. Knows nothing
of how the order of cells is learned (`learned`, `state/learner.py`).
"""

from collections import Counter
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

    __slots__ = ("_celled", "_places", "aged", "rank", "recency")

    def __init__(self) -> None:
        super().__init__()
        self.aged = 0  # when keys last went on to their next cells: they are listed by their ages then
        self.recency = True  # all are listed as if of one class, but for what never comes back
        self.rank: list[int] = []  # the cells, first to go first
        self._places: dict[int, int] = {PASSED: -1}  # and where each of them stands
        self._celled: Counter[int] = Counter()  # keys in cells, by priority
        self.rank_cells(FIRST_RANK, True)

    def add(self, key: K, entry: Entry, released: bool = False) -> None:
        """One that is released goes to the front of its cell if it is no younger than the first there: the oldest go
        first, and what came together goes together."""
        level = self.level_of(entry)
        first = next(iter(self.queues[level].turns), None) if level in self.queues else None
        front = released and (first is None or entry.used <= self.entries[first].used)
        self.push(key, level, entry, front)

    def push(self, key: K, level: int, entry: Entry, front: bool = False) -> None:
        super().push(key, level, entry, front)
        self._celled[entry.priority] += not entry.covered

    def remove(self, key: K) -> None:
        entry = self.entries[key]
        self._celled[entry.priority] -= not entry.covered
        super().remove(key)

    def cell_of(self, entry: Entry) -> int:
        """Where it waits among those of its priority."""
        if entry.passed:
            return PASSED
        return cell_number(listed_class(entry.reuse, self.recency), self._age_of(entry))

    def _age_of(self, entry: Entry) -> int:
        return max(0, age_bin(self.aged - entry.used) - entry.younger)

    def level_of(self, entry: Entry) -> int:
        return COVERED if entry.covered else cell_level(entry.priority, self.cell_of(entry))

    def levels(self) -> Iterator[int]:
        for priority in sorted(priority for priority, count in self._celled.items() if count):
            base = cell_level(priority, 0)
            filled = [level for level in self.queues if base - 1 <= level < base + NUM_CELLS]
            yield from sorted(filled, key=lambda level: self._places[level - base])
        yield from (COVERED,) if COVERED in self.queues else ()

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
            if self._age_of(entry) <= age:
                break
            self.remove(key)
            self.push(key, self.level_of(entry), entry)
