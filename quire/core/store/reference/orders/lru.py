"""The order "lru": lower priorities first; within one, what is passed, then the rest, first in, first out.

Owns lists by number, first in, first out, on which other orders are built. Knows no ages.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from quire.core.store.reference.pools.order import Entry, Queue, idle_level

K = TypeVar("K")


class Lists(Generic[K]):
    """Keys in numbered lists, each first in, first out; the lists are taken by their numbers."""

    __slots__ = ("_front", "_turn", "entries", "level", "queues")
    empties_wait = False

    def __init__(self) -> None:
        self._turn = 0
        self._front = -1  # the turn of the next that goes to the front
        self.queues: dict[int, Queue[K]] = {}  # made when first used
        self.level: dict[K, int] = {}  # key -> the list it waits in
        self.entries: dict[K, Entry] = {}

    def push(self, key: K, level: int, entry: Entry, front: bool = False) -> None:
        """A key joins the back of a list, or its front."""
        self.queues.setdefault(level, Queue()).push(key, self._front if front else self._turn)
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


class Lru(Lists[K]):
    """First in, first out."""

    __slots__ = ()

    def add(self, key: K, entry: Entry, released: bool = False) -> None:
        self.push(key, idle_level(entry.priority, entry.passed), entry)

    def outranks(self, key: K, entry: Entry) -> bool:
        return self.level[key] > idle_level(entry.priority, entry.passed)
