"""What is remembered of pages that are gone, where no order learns from them: the last so many. Knows no pages.

The adaptive order has a memory of its own (`cells.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from fuzzing.world.plain import Path


class Loss(NamedTuple):
    """When a page went, why, and how many admissions there had been."""

    when: int
    why: int
    admission: int
    hint: int = 0


class Gone:
    """Losses in the order they happened, with gaps where one is not so any more."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.history: list[tuple[tuple[int, Path], Loss] | None] = []  # by group and path

    def note(self, group: int, path: Path, loss: Loss | None, size: int) -> None:
        """The page of a path is gone; None: for no reason to be remembered. Of partial blocks nothing is."""
        if len(path[-1]) != size or not self.room:
            return
        recent = self.history[-self.room :]
        if loss is None:
            self.history = [None if entry and entry[0] == (group, path) else entry for entry in recent]
        else:
            self.history = [*recent, ((group, path), loss)]

    def forget(self) -> None:
        """Nothing was ever there."""
        self.history.clear()

    def recent(self) -> list[tuple[tuple[int, Path], Loss] | None]:
        """What has not been crowded out, with the gaps."""
        return self.history[-self.room :] if self.room else []
