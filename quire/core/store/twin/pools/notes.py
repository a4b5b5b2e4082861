"""Notes: which slots of the slow tier have changed since somebody was told.

Owns what was told of each slot. Costs no more than the slots there are, however long nobody asks. Knows no pages.
"""


class Notes:
    """Of one pool."""

    __slots__ = ("_changed", "told")

    def __init__(self) -> None:
        self._changed: dict[int, None] = {}
        self.told: dict[int, int] = {}  # slots that were told to hold a page -> its group

    def mark_changed(self, slot: int) -> None:
        """What is in the slot may not be what was told of it."""
        self._changed.setdefault(slot)

    def take_changed(self) -> list[int]:
        """Slots that have changed, ascending, which is told then."""
        slots = sorted(self._changed)
        self._changed.clear()
        return slots
