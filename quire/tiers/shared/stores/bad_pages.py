"""BadPages: names under which a store has something that is not their page. Owns that memory; knows no store.

A store says that such a page exists, so a machine that only asks never sends it again. A machine that has read it
remembers its name here, and puts a sound page in its place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from quire.tiers.shared.stores.store import StoreMiss

MOST_BAD = 1 << 16  # names: the latest
DAMAGE = frozenset({StoreMiss.DAMAGED, StoreMiss.SIZE})
UNUSABLE = DAMAGE | {StoreMiss.FAILED, StoreMiss.ABSENT}  # ABSENT: a page that exists may have lost a part
"""Reasons for which a page that exists is replaced. Not FORMAT: the version that wrote it can read it."""


class BadPages:
    """Names of pages to replace; for any thread."""

    def __init__(self, most: int = MOST_BAD) -> None:
        self._names: OrderedDict[bytes, None] = OrderedDict()
        self._most, self._lock = most, Lock()

    def add(self, names: Iterable[bytes]) -> None:
        """Their pages were read, and are unusable."""
        with self._lock:
            for name in names:
                self._names.pop(name, None)
                self._names[name] = None
            while len(self._names) > self._most:
                self._names.popitem(last=False)

    def discard(self, names: Iterable[bytes]) -> None:
        """Sound pages have been sent."""
        with self._lock:
            for name in names:
                self._names.pop(name, None)

    def __contains__(self, name: bytes) -> bool:
        with self._lock:
            return name in self._names

    def __len__(self) -> int:
        return len(self._names)
