"""Notes: which slots of the slow tier have changed since the last report.

Owns what was last reported of each slot. Costs no more than the slots there are, however long no report is taken. Knows
no pages.
"""


class Notes:
    """Of one pool."""

    __slots__ = ("_changed", "told")

    def __init__(self) -> None:
        self._changed: dict[int, None] = {}
        self.told: dict[int, int] = {}  # slots that were reported to hold a page -> its group

    def mark_changed(self, slot: int) -> None:
        """The slot may no longer hold what was reported of it."""
        self._changed.setdefault(slot)

    def take_changed(self) -> list[int]:
        """Slots that have changed since the last report, ascending; they count as reported then."""
        slots = sorted(self._changed)
        self._changed.clear()
        return slots
