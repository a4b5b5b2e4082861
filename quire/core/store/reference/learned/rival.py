"""The rival of the adaptive order: which of the watched pages would be there if the oldest always went first.

Owns that list, of as many pages as are watched in the tree, and the two counts that show which is ahead: pages that an
admission found and the rival had given up, and pages that the rival would have had and the order had given up. A small
pool watches all pages, a large one those of some blocks, chosen by their tokens: a block that comes again is watched
again, and both stores watch the same ones. Knows nothing of pages beyond their keys, nor of what follows from the
counts.
"""

from collections import OrderedDict

from quire.core.store.interface import Int32Array
from quire.core.store.reference.learned.ghosts import Key
from quire.core.store.reuse import MOST_WATCHED

MASK32 = 0xFFFFFFFF
FIRST_FACTOR, LAST_FACTOR = 0x9E3779B1, 0x85EBCA77


class Rival:
    """The watched pages of one pool, in the order of their last use."""

    __slots__ = ("_keys", "_limit", "gained", "missed", "room", "watched")

    def __init__(self, num_slots: int) -> None:
        self._keys: OrderedDict[Key, None] = OrderedDict()  # the oldest first
        self.room = min(num_slots, 2 * MOST_WATCHED)
        self._limit = MASK32  # of a block's number: it is not greater if its pages are watched
        while num_slots * (self._limit + 1) >> 32 > MOST_WATCHED:
            self._limit >>= 1
        self.watched = 0  # pages in the tree
        self.gained = 0
        self.missed = 0

    def __len__(self) -> int:
        return len(self._keys)

    def chooses(self, tokens: Int32Array) -> bool:
        """Whether pages of a block are watched: by its first token and its last."""
        return (int(tokens[0]) * FIRST_FACTOR + int(tokens[-1]) * LAST_FACTOR) & MASK32 <= self._limit

    def come_watched(self, key: Key) -> bool:
        """A page has come into the tree; whether there is room to watch it."""
        if self.watched >= self.room:
            return False
        self.watched += 1
        self.renew_watched(key)
        return True

    def renew_watched(self, key: Key) -> bool:
        """A page is used: the last to go now; whether it was there."""
        known = key in self._keys
        self._keys[key] = None
        self._keys.move_to_end(key)
        while len(self._keys) > self.watched:
            self._keys.popitem(last=False)
        return known

    def find_watched(self, key: Key) -> None:
        """An admission found a watched page."""
        self.gained += not self.renew_watched(key)

    def miss_watched(self, key: Key) -> None:
        """An admission asked for a page that has gone."""
        if key in self._keys:
            self.missed += 1
            self._keys.move_to_end(key)
