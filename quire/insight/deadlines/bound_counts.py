"""BoundCounts: how many bounds were given, kept and broken, and why. Nothing but numbers.

slow         the steps took longer than steps like them did before: other programs, a hot machine, the network
overtaken    more was computed before it than stood there when it was accepted
preempted    it lost its pages to another
recomputed   less of its prompt was found than was held or counted: a failed move, a hold that had to be given up
"""

from __future__ import annotations

from typing import Literal, get_args

Fate = Literal["kept", "slow", "overtaken", "preempted", "recomputed", "left", "unbounded"]
FATES = tuple(fate for fate in get_args(Fate) if fate != "unbounded")
Reason = Literal["own", "others", "dear"]
BROKEN = ("slow", "overtaken", "preempted", "recomputed")


class BoundCounts:
    """Since the beginning. Read from any thread: single words."""

    def __init__(self) -> None:
        self.bounded = self.unbounded = 0  # accepted with a bound / before anything was known
        self.refused: dict[Reason, int] = {"own": 0, "others": 0, "dear": 0}  # for its own deadline / one behind / cost
        self.late = 0  # first tokens behind their deadline, whatever the bound was
        self.fates = dict.fromkeys(FATES, 0)

    def __repr__(self) -> str:
        kept, broken = self.fates["kept"], self.broken
        return f"BoundCounts({self.bounded} given, {kept} kept, {broken} broken, {self.num_refused} refused)"

    @property
    def broken(self) -> int:
        """Bounds that were not kept."""
        return sum(self.fates[cause] for cause in BROKEN)

    @property
    def num_refused(self) -> int:
        """Requests that were refused."""
        return sum(self.refused.values())

    def accept(self, bounded: bool) -> None:
        """One was accepted."""
        self.bounded += bounded
        self.unbounded += not bounded

    def refuse(self, reason: Reason) -> None:
        """One was not."""
        self.refused[reason] += 1

    def settle(self, fate: Fate) -> None:
        """What became of a bound."""
        self.fates[fate] += 1
