"""The slots and page numbers of one pool, and what its order has learned; groups may share it. Decides nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fuzzing.oracle.cells import Cells
from fuzzing.oracle.gone import Gone
from fuzzing.oracle.page import Page
from fuzzing.world.plain import World

if TYPE_CHECKING:
    from fuzzing.oracle.pools import Pools


class Room:
    """Who is in which slot, since when."""

    def __init__(self, world: World, number: int) -> None:
        sizes = [tier[number] for tier in world.tiers]
        self.groups: dict[int, Pools] = {}  # by place in their stream
        self.owner: list[list[Page | None]] = [[None] * size for size in sizes]
        self.stamp = [list(range(size)) for size in sizes]
        self.turn = sum(sizes)
        self.front = -1  # the stamp of the next that goes to the front
        self.numbers = list(range(sum(sizes) - 1, -1, -1))  # free page numbers, the next one last
        self.pages: dict[int, Page] = {}
        fast = sum(sizes[tier] for tier in world.fast)
        self.cells = Cells(fast, world.ghosts) if world.adaptive else None
        self.gone = Gone(world.ghosts * fast if world.receipts and not world.adaptive else 0)
        self.filling: set[tuple[int, int]] = set()  # slots that background plans fill
        self.reached: Counter[str] = Counter()  # how often what happened
