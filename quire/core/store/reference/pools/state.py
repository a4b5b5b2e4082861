"""The whole state of one store, and its rows: the numpy tables that others read, and what only the store
knows.

Owns the tables and keeps page ids and device slots in step. Knows nothing of how pages come and go.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from quire.core.store.interface import Int32Array, Int64Array
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.pools.group import Group
from quire.core.store.reference.pools.log import Log, Moves
from quire.core.store.reference.pools.pool import NUM_COUNTERS, Pool
from quire.core.store.reference.pools.reserve import Stake
from quire.core.store.reference.pools.room import Room
from quire.core.store.reference.tree.node import DEFAULT_PRIORITY, NEVER, Node, Page
from quire.core.store.reference.tree.point_kinds import Kinds
from quire.core.store.reference.tree.tree import Tree

NO_PAGE = -1
NO_ROW = -1
NO_ROOM = -1  # the answer of a call that cannot have all its pages and has changed nothing


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that all groups share."""

    block_size: int
    shadows: bool
    offload_min: int
    tails: bool  # a released row's last, partial block becomes findable
    min_uses: int  # of a page that is copied down early, in the adaptive order
    slow: int  # the tier that no step waits for, the coldest; -1: there is none
    num_fast: int  # tiers that plans of steps read and write
    asks: bool  # whether it matters where prompts end that are asked for again: windows resume there


class Row:
    """What the store knows of a live row besides its numbers."""

    __slots__ = (
        "ahead",
        "begun",
        "chain",
        "duration",
        "edge",
        "keep",
        "named",
        "priority",
        "prompt",
        "reached",
        "spares",
        "stakes",
        "tip",
        "twins",
    )

    def __init__(self, chain: Chain, tip: Node | None, keep: bool, stakes: list[Stake]) -> None:
        self.chain = chain
        self.tip = tip  # deepest committed node; None: commits nothing any more
        self.keep = keep
        self.edge = (len(chain) - 1) // chain.block_size  # blocks after which the same prompt could begin again
        self.named: tuple[int, ...] = ()  # depths at which its caller expects others to resume
        self.ahead = False  # holds more than `computed` needs, and its state is not that of `computed`
        self.begun = 0  # blocks of its hit
        self.reached = 0  # as far as tokens were handed out and taken back since
        self.prompt = len(chain)  # tokens before it are handed out by admission, in parts
        self.priority = DEFAULT_PRIORITY  # of pages made while decoding
        self.duration = NEVER
        self.twins = 0  # committed columns whose node had another page
        self.stakes = stakes  # one per group
        self.spares: list[list[Page]] = [[] for _ in stakes]

    @property
    def commits(self) -> bool:
        """Whether its blocks become findable."""
        return self.keep and self.tip is not None


class Table:
    """Rows by number."""

    __slots__ = (
        "block_size", "capacity", "columns", "committed", "computed", "current_slots", "currents", "groups", "handed",
        "launched", "length", "pages", "pools", "row_counters", "rows", "slots", "told", "touched",
    )  # fmt: skip

    def __init__(
        self, block_size: int, rows: int, columns: int, pools: Sequence[Pool], groups: Sequence[Group]
    ) -> None:
        self.block_size = block_size
        self.columns = columns
        self.pools = pools
        self.groups = groups
        self.rows: list[Row | None] = [None] * rows
        self.pages: list[Int32Array] = [np.full((rows, columns), NO_PAGE, np.int32) for _ in pools]
        self.slots: list[Int32Array] = [np.full((rows, columns), -1, np.int32) for _ in pools]
        self.touched: list[dict[int, range]] = [{} for _ in pools]  # by row: columns that may have changed since `told`
        self.told: list[Int32Array | None] = [None for _ in pools]  # the slots as they were reported last, None: never
        self.currents: list[Int32Array] = [np.full(rows, NO_PAGE, np.int32) for _ in pools]
        self.current_slots: list[Int32Array] = [np.full(rows, -1, np.int32) for _ in pools]
        self.length: Int32Array = np.zeros(rows, np.int32)
        self.handed: Int32Array = np.zeros(rows, np.int32)  # leading tokens that were handed out to be computed
        self.launched: Int32Array = np.zeros(rows, np.int32)  # of those: steps in flight compute up to here; 0: none
        self.computed: Int32Array = np.zeros(rows, np.int32)
        self.committed: Int32Array = np.zeros(rows, np.int32)
        self.capacity: list[Int32Array] = [np.zeros(rows, np.int32) for _ in pools]
        self.row_counters: list[Int64Array] = [np.zeros((rows, NUM_COUNTERS), np.int64) for _ in pools]

    def row(self, number: int) -> Row:
        """A live row."""
        found = self.rows[number] if 0 <= number < len(self.rows) else None
        if found is None:
            raise LookupError(f"row {number} is not live")
        return found

    def occupy(self, number: int, row: Row, computed: int, committed: int) -> None:
        """Make a row live, its tip included."""
        self.rows[number] = row
        if row.tip is not None:
            row.tip.tips += 1
        self.length[number] = len(row.chain)
        self.handed[number] = self.computed[number] = computed
        self.committed[number] = committed

    def vacate(self, number: int) -> None:
        self.rows[number] = None
        for numbers in (self.length, self.handed, self.launched, self.computed, self.committed, *self.capacity):
            numbers[number] = 0

    def hand_out(self, number: int, end: int) -> None:
        """The row's tokens before `end` are being computed, or will come; the others are parts of a prompt, as far as
        they have pages: growing brings those of the tokens that have come since."""
        row, most = self.row(number), int(self.length[number])
        for group, capacity in zip(self.groups, self.capacity, strict=True):
            most = min(most, group.longest(int(capacity[number]), self.block_size))
        self.handed[number] = end
        row.prompt = max(row.prompt, most)

    def set_tip(self, number: int, node: Node | None, tree: Tree) -> None:
        """Move a row's tip to a node (None: nowhere); what it leaves behind may go."""
        row = self.row(number)
        if node is not None:
            node.tips += 1
        old, row.tip = row.tip, node
        if old is not None:
            tree.drop_tip(old)

    def is_under_way(self, number: int) -> bool:
        """Whether a part of a row's prompt was not handed out yet."""
        return int(self.handed[number]) < self.row(number).prompt

    def is_past(self, number: int) -> bool:
        """Whether a step may have gone on behind what was reported: a state is then not the one after `computed`."""
        row = self.row(number)
        return row.ahead or max(int(self.handed[number]), row.reached) > int(self.computed[number])

    def is_at_edge(self, number: int) -> bool:
        """Whether a row has computed something, and whole blocks only."""
        computed = int(self.computed[number])
        return computed > 0 and computed == int(self.committed[number]) * self.block_size

    def page(self, group: int, row: int, column: int) -> Page | None:
        """The page in a column, None for a hole."""
        number = int(self.pages[group][row, column])
        return None if number == NO_PAGE else self.pools[group].pages[number]

    def pages_in(self, group: int, row: int, columns: Iterable[int]) -> list[Page | None]:
        return [self.page(group, row, column) for column in columns]

    def set_column(self, group: int, row: int, column: int, page: Page) -> None:
        self.pages[group][row, column] = page.number
        self.slots[group][row, column] = page.slots[0]
        self.mark_cell(group, row, column)

    def take_column(self, group: int, row: int, column: int) -> Page | None:
        """Make a hole; the page that was there."""
        page = self.page(group, row, column)
        self.pages[group][row, column] = NO_PAGE
        self.slots[group][row, column] = -1
        self.mark_cell(group, row, column)
        return page

    def mark_cell(self, group: int, row: int, column: int) -> None:
        """A column of a row has got another slot."""
        before = self.touched[group].get(row, range(column, column))
        self.touched[group][row] = range(min(before.start, column), max(before.stop, column + 1))

    def set_current(self, group: int, number: int, page: Page | None) -> None:
        """The page of a row's current state, None for none."""
        self.row(number).stakes[group].current = page
        self.currents[group][number] = NO_PAGE if page is None else page.number
        self.current_slots[group][number] = -1 if page is None else page.slots[0]


@dataclass(slots=True)
class State:
    """A store's parts. `now` is the last time given to it: for pages that become idle in a call without one."""

    rules: Rules
    groups: Sequence[Group]
    tree: Tree
    moves: Moves
    log: Log
    pools: Sequence[Pool]  # by group
    rooms: Sequence[Room]  # by pool
    table: Table
    kinds: Kinds | None  # of resume points; None: pages are not ranked by them
    now: int = 0
    inherit: bool = True  # a replaced page's copies may be trusted: no plan is under way
    admissions: int = 0  # rows settled so far
    loose: int = 0  # claims that find their pages through the tree
    makes: list[int] = field(
        default_factory=lambda: [NO_ROW]
    )  # one number: the row that pages are being made for, or -1

    def tell_time(self, now: int) -> None:
        """It is `now`."""
        self.now = now
        for room in self.rooms:
            if room.cells is not None:
                room.cells.now = max(room.cells.now, now)

    def count_admission(self) -> None:
        """One more row is settled."""
        self.admissions += 1
        for room in self.rooms:
            if room.cells is not None:
                room.cells.next_admission()


def lacks_room(state: State, wanted: Sequence[int], own: Sequence[int] | None = None) -> bool:
    """Whether a pool has fewer slots than are wanted of its groups together; `own`: reserved for the asker, per group.

    What one group leaves of its own is not another's. While claims rest on reserved slots own room may not be there.
    """
    kept = [0] * len(state.pools) if own is None else own
    for room in state.rooms:
        asked = [(count, has) for pool, count, has in zip(state.pools, wanted, kept, strict=True)
                 if pool.room is room and count > 0]  # fmt: skip
        beyond = sum(max(0, count - has) for count, has in asked)
        if asked and (beyond or sum(count - has for count, has in asked)) > room.available:
            return True
    return False


def counters_now(state: State) -> list[Int64Array]:
    """What every group has counted so far."""
    return [pool.counters.copy() for pool in state.pools]


def note_counters(state: State, number: int, before: list[Int64Array]) -> None:
    """Charge a row with what has happened since; in a shared pool also to groups that it asked nothing of."""
    for pool, old in zip(state.pools, before, strict=True):
        state.table.row_counters[pool.group][number] += pool.counters - old
