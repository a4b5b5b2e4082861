"""PoolPlace: where the pages of one pool lie: a disk, a shared store, or both. Knows no SGLang.

write   to both             good: one of them has it
read    from the disk, what it has not or no longer from the store
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from quire.tiers.base import Bytes
from quire.tiers.disk.keyed import KeyDisk
from quire.tiers.disk.keyed.key_place import THERE
from quire.tiers.shared.calls.crew import Crew
from quire.tiers.shared.keyed import KeyStore


class PoolPlace:
    """Pages of one size by key; any number of threads."""

    def __init__(self, disk: KeyDisk | None, store: KeyStore | None) -> None:
        self.disk, self.store = disk, store
        self._due: float | None = None  # when the disk is to be tidied
        self._upkeep = Crew("pool-upkeep", 1, 1, self._tidy, self._until_due) if disk is not None else None

    def on_disk(self, key: bytes) -> bool:
        """Known in memory; a disk that does not answer has nothing."""
        return self.disk is not None and key in self.disk and not self.disk.hanging

    def write(self, keys: Sequence[bytes], pages: Sequence[Bytes]) -> list[bool]:
        """Keep these pages, in the order of their text."""
        good = [False] * len(keys)
        for place in (self.disk, self.store):
            if place is not None and keys and not place.hanging:
                answers = place.write(keys, pages, lambda: True)
                good = [was or answer == THERE for was, answer in zip(good, answers, strict=True)]
        if self.disk is not None and self._upkeep is not None:
            self.disk.use(keys, ())
            self._due = time.monotonic()
            self._upkeep.wake()
        return good

    def read(self, keys: Sequence[bytes], pages: Sequence[Bytes]) -> list[bool]:
        """Fill the pages, each checked."""
        good = [False] * len(keys)
        for place in (self.disk, self.store):
            left = [nth for nth, came in enumerate(good) if not came]
            if place is None or not left or place.hanging:
                continue
            answers = place.read([keys[nth] for nth in left], [pages[nth] for nth in left], lambda: True)
            for nth, answer in zip(left, answers, strict=True):
                good[nth] = answer == THERE
        if self.disk is not None:
            self.disk.use(keys, {key for key, came in zip(keys, good, strict=True) if came})
        return good

    def _tidy(self) -> None:
        """Fences, on a thread of its own."""
        self._due = None
        wait = None if self.disk is None else self.disk.tidy()
        if wait is not None:
            self._due = time.monotonic() + wait

    def _until_due(self) -> float | None:
        due = self._due
        return None if due is None else due - time.monotonic()

    def clear(self) -> None:
        """Nothing is kept any more, but what is read just now."""
        if self.disk is not None:
            self.disk.clear()
        if self.store is not None:
            self.store.clear()

    def close(self) -> None:
        """Make it durable, and let go."""
        if self._upkeep is not None:
            self._upkeep.close(30.0)
        for place in (self.disk, self.store):
            if place is not None:
                place.close()
