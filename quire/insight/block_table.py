"""BlockTable: blocks by key, with the use that had each last. Open addressing in NumPy arrays; knows no requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]  # of blocks: spread evenly over 64 bits, never 0
Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
LEAST_SLOTS = 1 << 10
_WINDOW = np.arange(8)  # slots that are looked at together
MOST_COUNTED = (1 << 16) - 1  # uses of one block


class BlockTable:
    """At most half full. A key stands in the first slot, from its own on, that was empty when it came."""

    def __init__(self) -> None:
        self._allocate(LEAST_SLOTS)
        self._count = 0

    def _allocate(self, slots: int) -> None:
        self.keys = np.zeros(slots, np.uint64)  # 0: empty
        self.last = np.zeros(slots, np.int32)  # number of the use
        self.uses = np.zeros(slots, np.uint16)
        self.hot = np.zeros(slots, np.bool_)  # counted whatever the sample is

    def __len__(self) -> int:
        return self._count

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return self.keys.nbytes + self.last.nbytes + self.uses.nbytes + self.hot.nbytes

    def reserve(self, count: int) -> None:
        """Room for so many more; slots are good until the next call of this, or of `keep`."""
        if 2 * (self._count + count) > len(self.keys):
            self._rebuild((self.keys != 0).nonzero()[0], 2 * (self._count + count))

    def num_leading(self, keys: Keys) -> int:
        """How many are there, of keys of which those that are there come first."""
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if self._has(int(keys[middle])):
                low = middle + 1
            else:
                high = middle
        return low

    def _has(self, key: int) -> bool:
        mask = len(self.keys) - 1
        place = key & mask
        while there := int(self.keys[place]):
            if there == key:
                return True
            place = (place + 1) & mask
        return False

    def find(self, keys: Keys) -> Int64:
        """The slots of keys that are all there."""
        return self._search(keys, self._equals)

    def insert(self, keys: Keys, last: int) -> Int64:
        """Different ones that are not there, and have room; their slots."""
        slots = self._search(keys, self._settles)
        self.last[slots] = last
        self._count += len(keys)
        return slots

    def _search(self, keys: Keys, ends: Callable[[Int64, Keys], tuple[Int64, Bools]]) -> Int64:
        """Look at a few slots at a time, from each key's own on, until each has its slot."""
        mask = len(self.keys) - 1
        place = (keys & np.uint64(mask)).astype(np.int64)
        slots = place.copy()
        left = np.arange(len(keys))
        while len(left):
            step, done = ends((place[:, None] + _WINDOW) & mask, keys[left])
            place = (place + step) & mask
            slots[left[done]] = place[done]
            more = ~done
            left, place = left[more], place[more]
        return slots

    def _equals(self, window: Int64, keys: Keys) -> tuple[Int64, Bools]:
        """Steps to the slot that has the key, and whether it was in the window."""
        same = self.keys[window] == keys[:, None]
        step = same.argmax(1)
        done = same[np.arange(len(keys)), step]
        return np.where(done, step, len(_WINDOW)), done

    def _settles(self, window: Int64, keys: Keys) -> tuple[Int64, Bools]:
        """Steps to the first empty slot, and whether the key has got it: of several that want it the last one does."""
        empty = self.keys[window] == 0
        step = empty.argmax(1)
        rows = np.arange(len(keys))
        there = empty[rows, step]
        place = window[rows, step]
        self.keys[place[there]] = keys[there]
        return np.where(there, step, len(_WINDOW)), there & (self.keys[place] == keys)

    def keep(self, kept: Bools) -> None:
        """Forget every block whose slot is not marked."""
        self._rebuild((kept & (self.keys != 0)).nonzero()[0], 0)

    def _rebuild(self, kept: Int64, least: int) -> None:
        keys, last, uses, hot = self.keys[kept], self.last[kept], self.uses[kept], self.hot[kept]
        slots = LEAST_SLOTS
        while slots < max(least, 2 * len(kept)):
            slots *= 2
        self._allocate(slots)
        places = self._search(keys, self._settles)
        self.last[places], self.uses[places], self.hot[places] = last, uses, hot
        self._count = len(kept)

    def count_use(self, slots: Int64) -> None:
        """One more use of each."""
        self.uses[slots] = np.minimum(self.uses[slots], MOST_COUNTED - 1) + 1
