"""Handle: what a caller has of something that the cache keeps open for it; its loss is noted.

The cache knows what is kept, and the handle only weakly. A handle may be garbage collected in any thread, in the middle
of any call: it is noted then, and the next call gives back what was kept.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

Kept = TypeVar("Kept")

Handles = dict["weakref.ref[Handle[Kept]]", Kept]  # of one cache, in the order they were made
Lost = list["weakref.ref[Handle[Kept]]"]


class Handle(Generic[Kept]):
    """Open until it is closed; its cache has what belongs to it under its reference."""

    __slots__ = ("__weakref__", "_kept", "_lock", "_open", "_ref")

    def __init__(
        self, lock: AbstractContextManager[bool], handles: Handles[Kept], lost: Lost[Kept], kept: Kept
    ) -> None:  # fmt: skip
        self._lock = lock
        self._open = handles
        self._kept = kept
        self._ref: weakref.ref[Handle[Kept]] | None = weakref.ref(self, lost.append)
        handles[self._ref] = kept

    def _end(self) -> bool:
        """Nothing is kept for it from now on; whether something was. What is closed is not noted when it goes."""
        ref, self._ref = self._ref, None
        return ref is not None and self._open.pop(ref, None) is not None

    @property
    def closed(self) -> bool:
        """Nothing is kept for it any more."""
        return self._ref is None or self._ref not in self._open


def handles_of(handles: Handles[Kept]) -> list[Handle[Kept]]:
    """Those that were not lost, in the order they were made."""
    return [handle for ref in handles if (handle := ref()) is not None]


def take_lost(handles: Handles[Kept], lost: Lost[Kept]) -> list[Kept]:
    """What was kept for handles that were lost."""
    found: list[Kept] = []
    while lost:  # another thread may have been here before
        kept = handles.pop(lost.pop(), None)
        if kept is not None:
            found.append(kept)
    return found
