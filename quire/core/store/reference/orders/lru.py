"""The order "lru": lower priorities first; within one, what is passed, then the rest, first in, first out.

Knows no ages, nor why a key is listed.
"""

from typing import TypeVar

from quire.core.store.reference.pools.order import Entry, Lists, idle_level

K = TypeVar("K")


class Lru(Lists[K]):
    """First in, first out."""

    __slots__ = ()

    def add(self, key: K, entry: Entry, released: bool = False) -> None:
        self.push(key, idle_level(entry.priority, entry.passed), entry)

    def outranks(self, key: K, entry: Entry) -> bool:
        return self.level[key] > idle_level(entry.priority, entry.passed)
