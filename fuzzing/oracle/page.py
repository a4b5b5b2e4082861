"""Page: the KV of one block for one group, as the oracle keeps it. Knows nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from fuzzing.world.plain import Path, World

DEFAULT = 35


@dataclass(eq=False, slots=True)
class Page:
    """Who holds it, which tiers have a copy and in which slot, how long it should stay."""

    number: int
    group: int
    priority: int = DEFAULT
    duration: int | None = None
    path: Path | None = None
    holders: int = 0
    claims: int = 0
    stays: int = 0  # who needs its copies below the device where they are
    copying: bool = False  # a background copy of it is being made
    expiry: int | None = None
    since: int = 0  # when its expiry was set, in turns
    gone: bool = False
    unwanted: bool = False  # said to come back never; in an order without classes
    uses: int = 0  # this and what follows is kept for the adaptive order
    reuse: int = 0
    used: int = 0
    cell: int = 0  # where it waits
    watched: bool = False  # the order is judged by it
    covered: bool = False
    passed: bool = False  # nobody can be expected to resume where a window reads it; when it was last listed
    seen: int | None = None  # the tier in which it counts as a child of its parent
    copies: dict[int, int] = field(default_factory=dict)  # tier -> slot

    @property
    def hottest(self) -> int:
        """The lowest tier that has a copy."""
        return next(iter(self.copies)) if len(self.copies) == 1 else min(self.copies)

    def is_near(self, world: World) -> bool:
        """Whether it can be read without waiting for the slow tier."""
        return self.hottest != world.slow_tier

    @property
    def idle(self) -> bool:
        """In the tree and held by nobody."""
        return self.path is not None and self.holders == 0
