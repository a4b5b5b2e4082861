"""The slots and page numbers of one pool, and what its order has learned; groups may share it. Decides nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fuzzing.oracle.cells import Cells
from fuzzing.oracle.gone import Gone
from fuzzing.oracle.page import Page
from fuzzing.world.plain import World

EVICTIONS = (6, 8, 9)  # counts of pages that were offloaded, dropped, demoted


class Room:
    """Who is in which slot, since when."""

    def __init__(self, world: World, number: int) -> None:
        sizes = [tier[number] for tier in world.tiers]
        self.groups: dict[int, Any] = {}  # their Pools, by place in their stream
        self.owner: list[list[Page | None]] = [[None] * size for size in sizes]
        self.stamp = [list(range(size)) for size in sizes]
        self.turn = sum(sizes)
        self.front = -1  # the stamp of the next that goes to the front
        self.numbers = list(range(sum(sizes) - 1, -1, -1))  # free page numbers, the next one last
        self.pages: dict[int, Page] = {}
        fast = sum(sizes[tier] for tier in world.fast)
        self.cells = Cells(fast, world.ghosts, sum(sizes)) if world.adaptive else None
        if self.cells is not None and world.kinds[number].kind != "cross":
            self.cells.doubles_at, self.cells.block_size = world.doubles_at, world.block_size
            reach = {"full": world.max_length + 1, "state": 1}
            self.cells.reach = [reach.get(one.kind, one.window or 1) for one in world.kinds]
        self.gone = Gone(world.ghosts * fast if world.receipts and not world.adaptive else 0)
        self.filling: set[tuple[int, int]] = set()  # slots that background plans fill
        self.evicted_before = 0  # the present call
        self.reached: Counter[str] = Counter()  # how often what happened

    def free(self) -> int:
        """Device slots that can be had: empty, or of an idle page nobody claims."""
        count = 0
        for page in self.owner[0]:
            if page is None or (page.path is not None and not page.holders and not page.claims):
                count += 1
        return count

    def first_empty(self, tier: int) -> int | None:
        """The slot that has been empty for longest; one that a background plan fills is not."""
        owners = self.owner[tier]
        if None not in owners:
            return None
        empty = [slot for slot, page in enumerate(owners) if page is None and (tier, slot) not in self.filling]
        return min(empty, key=self.stamp[tier].__getitem__, default=None)

    def evicted(self) -> int:
        """Pages that have left a slot for others: offloaded, demoted or dropped."""
        return sum([one.counts[what] for one in self.groups.values() for what in EVICTIONS])

    def usage(self, tier: int) -> tuple[int, int, int]:
        """Empty slots, idle pages, shadows."""
        pages = [page for page in self.owner[tier] if page is not None]
        shadows = sum(tier > page.hottest for page in pages)
        filling = sum(place == tier for place, _ in self.filling)
        return (
            len(self.owner[tier]) - len(pages) - filling,
            sum(page.idle and tier == page.hottest for page in pages),
            shadows,
        )
