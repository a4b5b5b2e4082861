"""How a store is opened: its groups, pools, tree and rows, from the numbers that the interface names.

Owns which order of eviction each number means. Knows no calls.
"""

from collections.abc import Callable, Sequence

from quire.core.store.interface import (
    GroupNumbers,
)
from quire.core.store.reference.learned.cells import Cells
from quire.core.store.reference.learned.ghosts import Ghosts
from quire.core.store.reference.orders.adaptive import Adaptive
from quire.core.store.reference.orders.lru import Lru
from quire.core.store.reference.orders.release_order import ReleaseOrder
from quire.core.store.reference.pools.group import ALL, Group, check_groups, check_homes
from quire.core.store.reference.pools.log import Log, Moves
from quire.core.store.reference.pools.notes import Notes
from quire.core.store.reference.pools.order import EvictionOrder
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.room import Room
from quire.core.store.reference.pools.state import Rules, State, Table
from quire.core.store.reference.tree.point_kinds import Kinds
from quire.core.store.reference.tree.resume_points import Reads, Window
from quire.core.store.reference.tree.tree import Tree
from quire.core.store.reuse import ADAPTIVE, LRU, RELEASE_ORDER

ORDERS: dict[int, Callable[[], EvictionOrder[int]]] = {LRU: Lru, RELEASE_ORDER: ReleaseOrder, ADAPTIVE: Adaptive}


class OpenStore:
    """What every call works on. The arrays are live, and only the store writes them."""

    __slots__ = (
        "_state", "capacity", "committed", "computed", "counters", "current_slots", "currents", "handed",
        "launched", "length", "pages", "row_counters", "slots",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913
        self, block_size: int, groups: Sequence[GroupNumbers], rows: int, columns: int,
        order: int, shadows: bool, offload_min: int, events: bool, max_events: int, tails: bool = True,
        seed: bytes = bytes(16), ghosts: int = 0, min_uses: int = 1, slow: bool = False, lasting: bool = False,
        pools: Sequence[int] | None = None, spacing: int = 0,
    ) -> None:  # fmt: skip
        check_groups(groups)
        homes = check_homes(groups, pools)
        if block_size < 1 or rows < 0 or columns < 0 or order not in ORDERS or ghosts < 0:
            raise ValueError(f"one of {block_size=}, {rows=}, {columns=}, {order=}, {ghosts=} is out of range")
        num_tiers = len(groups[0][-1])
        if (slow and num_tiers < 3) or (lasting and not slow):
            raise ValueError(f"{num_tiers} tiers: a slow one, whose changes may be noted, is behind two others")
        states = tuple(number for number, group in enumerate(groups) if Group(*group[:-1]).current)
        kinds = _kinds(groups, spacing) if order != RELEASE_ORDER else None
        reads = _read_before(groups, block_size)
        windows = [None if kinds is None else _window(group, states, kinds, reads) for group in groups]
        asks = not states and any(window is not None for window in windows)
        limits = (min_uses, num_tiers - 1 if slow else -1, num_tiers - bool(slow))
        rules = Rules(block_size, bool(shadows), offload_min, bool(tails), *limits, asks)
        adaptive = order == ADAPTIVE
        tree = Tree(len(groups), bool(events), seed, num_tiers if adaptive else 0, adaptive or ghosts > 0)
        moves, log = Moves(block_size), Log(len(groups), bool(events), max_events)
        rooms = [_room(groups[homes.index(home)][-1], order, ghosts, slow) for home in range(max(homes) + 1)]
        by_group = [Pool(nth, rooms[homes[nth]], group[0] == ALL) for nth, group in enumerate(groups)]
        for room in rooms if lasting else ():
            room.notes = Notes()
        for pool, window in zip(by_group, windows, strict=True):
            pool.window = window
            pool.reads = reads if adaptive and pool.leaves_only and reads.tails else None
            pool.kinds, pool.overtakes = kinds, kinds is not None and pool.group in states
        table = Table(block_size, rows, columns, by_group, [Group(*numbers) for *numbers, _ in groups])
        self._state = State(rules, table.groups, tree, moves, log, by_group, rooms, table, kinds)
        self.pages, self.slots, self.capacity = table.pages, table.slots, table.capacity
        self.currents, self.current_slots = table.currents, table.current_slots
        self.length, self.handed, self.launched = table.length, table.handed, table.launched
        self.computed, self.committed = table.computed, table.committed
        self.row_counters, self.counters = table.row_counters, [pool.counters for pool in by_group]
        for number, (*_, slots) in enumerate(groups):
            log.log_created(number, slots)


def _room(slots: Sequence[int], order: int, ghosts: int, slow: bool) -> Room:
    fast = sum(slots[:-1] if slow else slots)  # what an order learns from, and what is remembered, goes by them
    if order == ADAPTIVE:
        return Room(slots, ORDERS[order], Cells(fast, ghosts, sum(slots)))
    return Room(slots, ORDERS[order], None, Ghosts(ghosts * fast) if ghosts else None)


def _window(numbers: GroupNumbers, states: tuple[int, ...], kinds: Kinds, reads: Reads) -> Window | None:
    group = Group(*numbers[:-1])
    if group.current or group.tail == ALL:
        return None
    return Window(group.tail, group.sink, reads.block_size, states, kinds, reads)


def _read_before(groups: Sequence[GroupNumbers], block_size: int) -> Reads:
    return Reads(tuple((number, group[0]) for number, group in enumerate(groups) if group[0] != ALL), block_size)


def _kinds(groups: Sequence[GroupNumbers], spacing: int) -> Kinds | None:
    """What guessed resume points take: of each window the pages before it, of each state one."""
    reads = [(Group(*group[:-1]), sum(group[-1])) for group in groups]
    ranked = [(group, slots) for group, slots in reads if group.current or group.tail != ALL]
    if not ranked:
        return None
    windows = 0 if any(group.current for group, _ in ranked) else len(ranked)
    return Kinds(spacing, windows, sum(group.tail for group, _ in ranked), max(1, ranked[0][1]), len(groups))
