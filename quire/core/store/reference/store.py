"""The store: one object that forwards each call to the module that owns the idea.

Owns the interface shared with the compiled module. Not thread-safe: the layer above has the lock. A call that raises or
refuses has changed nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quire.core.store.dumped import Dump, PageInfo
from quire.core.store.interface import (
    AskNumbers,
    BoolArray,
    Changes,
    EventArrays,
    GroupNumbers,
    Int16Array,
    Int32Array,
    Int64Array,
    Need,
    SourceState,
    UInt64Array,
)
from quire.core.store.reference import maps
from quire.core.store.reference.dump import dump, page_info
from quire.core.store.reference.hits import claim, explain, walk
from quire.core.store.reference.hits.walk_result import NOBODY, STALE, Hit
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.learned.cells import Cells
from quire.core.store.reference.learned.ghosts import Ghosts
from quire.core.store.reference.moves import background, hinted_text, priority
from quire.core.store.reference.moves.events import log_whole
from quire.core.store.reference.moves.lasting import take_changes
from quire.core.store.reference.moves.offload import offload
from quire.core.store.reference.orders.adaptive import Adaptive
from quire.core.store.reference.orders.lru import Lru
from quire.core.store.reference.orders.release_order import ReleaseOrder
from quire.core.store.reference.pools.checks import check_back, check_chain, check_end, check_frozen, check_vacant
from quire.core.store.reference.pools.group import ALL, Group, check_groups, check_homes
from quire.core.store.reference.pools.log import Log, Moves
from quire.core.store.reference.pools.notes import Notes
from quire.core.store.reference.pools.order import EvictionOrder
from quire.core.store.reference.pools.pool import Pool, take_tenure
from quire.core.store.reference.pools.reserve import Ask, Retention
from quire.core.store.reference.pools.room import Room
from quire.core.store.reference.pools.state import NO_PAGE, Rules, State, Table
from quire.core.store.reference.pools.tables import copy_rows, take_cells
from quire.core.store.reference.pools.tenure import Tenure
from quire.core.store.reference.rows import (
    commit,
    extend,
    fork,
    grow,
    hold,
    recut,
    release,
    remove,
    restore,
    seat,
    settle,
    state_snapshots,
    teach,
    write,
)
from quire.core.store.reference.tree.point_kinds import Kinds
from quire.core.store.reference.tree.resume_points import Reads, Window
from quire.core.store.reference.tree.tree import Tree
from quire.core.store.reuse import ADAPTIVE, LRU, MOST_YOUNGER, RELEASE_ORDER

ORDERS: dict[int, Callable[[], EvictionOrder[int]]] = {LRU: Lru, RELEASE_ORDER: ReleaseOrder, ADAPTIVE: Adaptive}


class Store:
    """Everything that works per block."""

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
        limits = (min_uses, num_tiers - 1 if slow else -1)
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

    # Roots

    def new_root(self, event_hash: int) -> int:
        return self._state.tree.new_root(event_hash).number

    def dead_roots(self) -> list[int]:
        return self._state.tree.dead_roots()

    def free_root(self, node: int) -> None:
        self._state.tree.free_root(node)

    # Phase 1

    def walk(self, chain: Chain, root: int, usable: int, policy: int, first: int = 0) -> Hit:
        check_chain(self._state, chain)
        top = None if root == seat.NO_ROOT else self._state.tree.root(root)
        return walk.walk(self._state, chain, top, usable, policy, first)

    def find_pending(self, hit: Hit, chain: Chain, root: int, usable: int) -> int:
        """Lengthen a fresh hit by whole blocks that one row's steps in flight compute; the row, -1: none."""
        check_chain(self._state, chain)
        if hit.claimed or hit.owner != NOBODY:
            raise ValueError("pending blocks are looked for once, behind a fresh hit")
        top = None if root == seat.NO_ROOT else self._state.tree.root(root)
        return claim.find_pending(self._state, hit, chain, top, usable)

    def owner(self, hit: Hit) -> int:
        """The row whose steps in flight compute the last blocks of a hit now, -1: none does."""
        return hit.owner if seat.num_landed(self._state, hit) < hit.blocks else NOBODY

    def claim(self, hit: Hit, needs: Sequence[Need] | None = None, stays: bool = False) -> tuple[int, ...]:
        """Returns, per group, the held pages that must come to the device."""
        if not claim.is_still_there(self._state, hit):
            raise ValueError(STALE)
        claim.claim(self._state.pools, hit, needs, bool(stays))
        self._state.loose += not hit.frozen
        return tuple(hit.num_cold(group) for group in range(len(self._state.pools)))

    def unclaim(self, hit: Hit) -> None:
        frozen = hit.frozen
        claim.unclaim(self._state.pools, hit)
        self._state.loose -= not frozen

    def freeze(self, hit: Hit) -> None:
        """A claim of the reference store has its pages at hand; only the count is kept."""
        if not hit.claimed:
            raise ValueError("this hit is not claimed")
        self._state.loose -= not hit.frozen
        hit.frozen = True

    def source_state(self, hit: Hit) -> SourceState:
        return claim.source_state(hit)

    def explain(self, hit: Hit, chain: Chain, root: int, scope: int, usable: int) -> int:
        """Note in a fresh hit why the blocks behind it are missing."""
        check_chain(self._state, chain)
        top = None if root == seat.NO_ROOT else self._state.tree.root(root)
        return explain.explain(self._state, hit, chain, top, scope, usable)

    # Phase 2

    def seat(self, hit: Hit, row: int, chain: Chain, root: int, keep: bool) -> None:
        check_chain(self._state, chain)
        check_vacant(self._state, row)
        seat.seat(self._state, hit, row, seat.new_row(self._state, hit, chain, root, bool(keep)))
        self._state.loose -= not hit.frozen

    def settle(
        self, row: int, hit: Hit, asks: Sequence[AskNumbers],
        priorities: Int16Array | None, durations: Int64Array | None, decode_priority: int, decode_duration: int,
        handed: int = ALL,
    ) -> None:  # fmt: skip
        decode = (decode_priority, decode_duration)
        end = len(self._state.table.row(row).chain) if handed == ALL else handed
        check_end(self._state, row, end)
        settle.settle(self._state, row, hit, _asks(asks), Retention(priorities, durations), decode)
        self._state.table.hand_out(row, end)

    def extend(
        self, row: int, asks: Sequence[AskNumbers],
        priorities: Int16Array | None, durations: Int64Array | None,
    ) -> int:  # fmt: skip
        """The columns of a prompt's next chunk; pages taken, -1 without room."""
        return extend.extend(self._state, row, _asks(asks), Retention(priorities, durations))

    def open_snapshots(
        self, row: int, group: int, columns: Sequence[int], peak: int,
        priorities: Int16Array | None, durations: Int64Array | None, beside: int = -1,
    ) -> int:  # fmt: skip
        """Pages for what the row's next step writes itself behind these columns, as far as there is room; how many."""
        asked, retention = extend.Snapshots(list(columns), peak, beside), Retention(priorities, durations)
        return extend.open_snapshots(self._state, self._state.pools[group], row, asked, retention)

    def name_points(self, row: int, depths: Sequence[int]) -> None:
        commit.name_points(self._state, row, _numbers(depths))

    def hand_out(self, row: int, end: int) -> None:
        """The row's tokens before `end` are being computed, or will come; by default a commit counts so many."""
        check_end(self._state, row, end)
        state_snapshots.keep_ahead(self._state, row)
        self._state.table.hand_out(row, end)

    def launch(self, rows: Any, ends: Int32Array) -> None:
        """Steps in flight compute these rows up to `ends`, 0: none does any more."""
        for number in _numbers(rows):
            self._state.table.row(number)
        self._state.table.launched[rows] = ends

    def take_back(self, row: int, end: int, ran: bool) -> None:
        check_back(self._state, row, end)
        grow.take_back(self._state, row, end, bool(ran))

    def owned(self, row: int) -> tuple[int, ...]:
        """Pages that are the row's own, per group; right after `seat`: pages of its hit that it alone has."""
        return tuple(stake.own for stake in self._state.table.row(row).stakes)

    def promised(self, hit: Hit, group: int) -> Int32Array:
        """Pages of a claimed hit that one row alone holds and is to give up before its prompt is finished."""
        return seat.promised(self._state, hit, self._state.pools[group])

    # Rows

    def commit(self, rows: Any, computed: Int32Array | None = None, now: int | None = None) -> int:
        return commit.commit(self._state, _numbers(rows), computed, now)

    def commits(self, row: int) -> bool:
        """Whether what the row computes becomes findable."""
        return self._state.table.row(row).commits

    def commit_again(self, row: int, root: int) -> None:
        commit.commit_again(self._state, row, self._state.tree.root(root))

    @property
    def inherit(self) -> bool:
        """Whether a page that replaces a cold duplicate takes its copies over; off while a plan may still fail."""
        return self._state.inherit

    @inherit.setter
    def inherit(self, trusted: bool) -> None:
        self._state.inherit = trusted

    def commit_row(self, row: int, computed: int, now: int | None = None) -> int:
        return commit.commit(self._state, [row], np.array([computed], np.int32), now)

    def grow(self, rows: Any, tokens: Int32Array | None, k: int | Int32Array) -> int:
        counts = [k] * len(rows) if isinstance(k, int) else _numbers(k)
        return grow.grow(self._state, _numbers(rows), tokens, counts)

    def append(self, rows: Any, tokens: Int32Array, k: int) -> None:
        grow.append(self._state, _numbers(rows), tokens, k)

    def trim(self, row: int, k: int) -> int:
        return grow.trim(self._state, row, k)

    def fork(self, src: int, dst: int) -> int:
        return fork.fork(self._state, src, dst)

    def fork_needs(self, row: int) -> tuple[int, ...]:
        """Pages of its own that one fork takes, per group."""
        return fork.fork_needs(self._state, row)

    def recut(self, row: int, cut: int) -> int:
        return recut.recut(self._state, row, cut)

    def release(self, row: int, keep_tail: bool, now: int, back: int = 0, mark: bool = False) -> object:
        end = release.release(self._state, row, keep_tail, now, back)
        return end if mark else None

    def supersede(self, row: int, end: object) -> int:
        if not isinstance(end, hinted_text.End):
            raise TypeError(f"supersede: {end!r} is not where a row ended")
        return hinted_text.supersede(self._state, row, end)

    def hint(self, root: int, chain: Chain, keep: int, back: int) -> int:
        return hinted_text.hint_along(self._state, self._state.tree.root(root), chain, keep, back)

    def hold(self, group: int, row: int, first: int, last: int) -> Int32Array | None:
        return hold.hold(self._state, group, row, (first, last))

    def unhold(self, group: int, pages: Any, now: int) -> None:
        hold.unhold(self._state, group, _numbers(pages), now)

    def tokens(self, row: int) -> Int32Array:
        """Every token of a row (a copy)."""
        return self._state.table.row(row).chain.tokens()

    def note_tenure(self) -> None:
        if any(len(room.free_pages) < len(room.pages) for room in self._state.rooms):
            raise ValueError("tenure is noted from the first page on, and some are there")
        for room in self._state.rooms:
            room.tenure = room.tenure or Tenure(len(room.pages), self._state.makes)

    def take_tenure(self, group: int) -> Int32Array:
        return take_tenure(self._state.pools[group])

    def take_cells(self, group: int) -> Int32Array:
        """Rows, columns and slots of the cells that are not as they were told last; [3, cells]."""
        return take_cells(self._state, group)

    def copy_rows(self, group: int, rows: Any, out: Int32Array) -> int:
        return copy_rows(self._state, group, _numbers(rows), out)

    def num_spares(self, group: int, row: int) -> int:
        return len(self._state.table.row(row).spares[group])

    def use(self, root: int, chain: Chain, blocks: int) -> None:
        check_chain(self._state, chain)
        if not 0 <= blocks <= min(len(chain) // self._state.rules.block_size, self._state.table.columns):
            raise ValueError(f"{blocks} blocks of a chain of {len(chain)} tokens, or of a row")
        teach.use_chain(self._state, self._state.tree.root(root), chain, blocks)

    def write(
        self, root: int, chain: Chain, tier: int, blocks: Sequence[Int32Array],
        priorities: Int16Array | None, durations: Int64Array | None, *, now: int,
    ) -> list[tuple[Int32Array, Int32Array, Int32Array]] | tuple[int, int, int]:  # fmt: skip
        check_chain(self._state, chain)
        top = None if root == seat.NO_ROOT else self._state.tree.root(root)
        wanted = [_numbers(some) for some in blocks]
        limit = min(len(chain) // self._state.rules.block_size, self._state.table.columns)
        if len(wanted) != len(self._state.pools) or any(not 0 <= block < limit for some in wanted for block in some):
            raise ValueError(f"blocks are named for each group, and are among {limit}")
        retention = Retention(priorities, durations)
        retention.check(limit)
        return write.write_blocks(self._state, top, chain, tier, wanted, retention, now=now)

    def publish(
        self, root: int, chain: Chain, blocks: Sequence[Int32Array], pages: Sequence[Int32Array], now: int,
        edge: int = 0, named: Sequence[int] = (),
    ) -> int:  # fmt: skip
        check_chain(self._state, chain)
        where, which = [_numbers(some) for some in blocks], [_numbers(some) for some in pages]
        top = self._state.tree.root(root)
        self._state.tell_time(now)
        return write.publish(self._state, top, chain, where, which, commit.Prompt(edge, named))

    # Tree and tiers

    def truncate(self, root: int, chain: Chain, usable: int, keep: int) -> int:
        check_chain(self._state, chain)
        check_frozen(self._state)
        return remove.truncate(self._state, self._state.tree.root(root), chain, usable, keep)

    def clear(self) -> int:
        check_frozen(self._state)
        return remove.clear(self._state)

    def forget(self, root: int) -> int:
        check_frozen(self._state)
        return remove.forget_below(self._state, self._state.tree.root(root))

    def offload(self, group: int, limit: int) -> int:
        return offload(self._state, self._state.pools[group], limit)

    def lose(self, group: int, page: int, stamp: int) -> bool:
        return remove.lose(self._state, group, page, stamp)

    def drop_copy(self, group: int, page: int, tier: int) -> bool:
        pool = self._state.pools[group]
        return pool.drop_copy(pool.page(page), tier)

    def refresh(self, now: int) -> None:
        priority.refresh(self._state, now)

    # The slow tier

    def copy_down(self, group: int, limit: int) -> Int32Array:
        self._check_slow()
        return background.copy_down(self._state, self._state.pools[group], limit)

    def bring_up(self, group: int, pages: Int32Array) -> Int32Array:
        self._check_slow()
        pool = self._state.pools[group]
        return background.bring_up(self._state, pool, [pool.page(number) for number in _numbers(pages)])

    def land(self, moves: Int32Array, failed: BoolArray) -> None:
        background.land(self._state, moves, failed.tolist())

    def room_in(self, group: int, tier: int) -> int:
        return write.room_in(self._state.pools[group], tier)

    def keep(self, group: int, pages: Int32Array) -> Int32Array:
        pool = self._state.pools[group]
        found = [pool.page(number) for number in _numbers(pages)]
        for page in found:
            pool.keep_page(page)
        return np.array([page.stamp for page in found], np.int32)

    def unkeep(self, group: int, pages: Int32Array, stamps: Int32Array) -> None:
        pool = self._state.pools[group]
        for number, stamp in zip(_numbers(pages), _numbers(stamps), strict=True):
            page = pool.page(number)
            if page.stamp == stamp and page.stays:
                pool.unkeep_page(page)

    def take_changes(self) -> Changes:
        return take_changes(self._state)

    def restore(
        self, roots: Sequence[int], blocks: Int64Array, tokens: Int32Array, words: UInt64Array, word_at: Int64Array,
        pages: Int32Array, now: int,
    ) -> None:  # fmt: skip
        self._check_slow()
        nodes = restore.restore_blocks(self._state, roots, restore.Restored(blocks, tokens, words, word_at))
        restore.restore_pages(self._state, nodes, pages, now)

    @property
    def numbered(self) -> int:
        return self._state.tree.numbered

    def _check_slow(self) -> None:
        if self._state.rules.slow < 0:
            raise ValueError("this store has no slow tier")

    # Log

    def take_moves(self) -> Int32Array:
        return self._state.moves.take_moves()

    @property
    def num_moves(self) -> int:
        return len(self._state.moves)

    def is_pending(self, group: int, page: int) -> bool:
        """Whether a move that waits brings a page its bytes: no plan has it yet."""
        return self._state.moves.is_pending(group, self._state.pools[group].page(page))

    @property
    def num_events(self) -> int:
        """What waits in the log: more than 0 when there are events to take."""
        return len(self._state.log)

    @property
    def num_lost(self) -> int:
        """Hashes that the log has given up since events were last taken."""
        return self._state.log.lost

    def take_events(self, whole: bool = False) -> EventArrays:
        if whole:
            log_whole(self._state)
        return self._state.log.take_events()

    # The adaptive order

    def is_due(self, group: int) -> bool:
        """Whether a group's order shall be learned anew."""
        cells = self._state.pools[group].cells
        return cells is not None and cells.is_due

    def take_counts(self, group: int) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """By cell: hits and lost ghosts since the last call, and a census of what is there and what is remembered; then
        gained and missed since the last call, and pages watched."""
        pool = self._state.pools[group]
        if pool.cells is None:
            raise ValueError(f"group {group} learns no order")
        return pool.cells.take_counts(pool.pages)

    def set_rank(self, group: int, cells: Int32Array, recency: bool) -> None:
        """Evict in this order of cells from now on."""
        self._state.pools[group].set_rank(_numbers(cells), bool(recency))

    def weigh(self, group: int, depths: Sequence[int]) -> None:
        """A page of a group counts as one age younger for each of these depths, in blocks, that it reaches."""
        pool = self._state.pools[group]
        if pool.cells is None or self._state.tree.num_nodes or not 0 < len(depths) <= MOST_YOUNGER:
            raise ValueError(f"group {group}: only an empty adaptive order takes depths, 1 to {MOST_YOUNGER} of them")
        pool.dear_from = tuple(depths)

    def fallback(self, group: int) -> tuple[bool, int]:
        """Whether pages go by age alone, and how often it has come to that since an order was learned."""
        cells = self._state.pools[group].cells
        return (False, 0) if cells is None else (cells.recency, cells.falls)

    def ghost_room(self, group: int) -> tuple[int, int]:
        """The number of ghosts, and roughly the bytes they take."""
        ghosts = self._state.pools[group].ghosts
        return (0, 0) if ghosts is None else (len(ghosts), 300 * len(ghosts.places))

    # Questions

    def available(self, group: int) -> int:
        return self._state.pools[group].available

    def reserved(self, group: int) -> int:
        """Slots reserved for rows; `available` is net of them."""
        return self._state.pools[group].room.reserved

    def num_empty(self, group: int, tier: int) -> int:
        return self._state.pools[group].orders[tier].num_empty

    def num_idle(self, group: int, tier: int) -> int:
        return self._state.pools[group].orders[tier].num_idle

    def num_shadow(self, group: int, tier: int) -> int:
        return self._state.pools[group].orders[tier].num_shadow

    @property
    def num_nodes(self) -> int:
        """Blocks in the tree; roots are not counted."""
        return self._state.tree.num_nodes

    def nbytes(self) -> tuple[int, int]:
        """Metadata bytes and token bytes, roughly."""
        state = self._state
        tables = sum(array.nbytes for array in (*self.pages, *self.slots, *self.capacity))
        tables += sum(array.nbytes for array in self.row_counters)
        pages = sum(len(room.pages) for room in state.rooms)
        return tables + 300 * pages + 600 * state.tree.num_nodes, state.tree.identity_bytes

    def page_info(self, group: int, page: int) -> PageInfo:
        """One page now."""
        return page_info(self._state.pools[group].page(page))

    def page_in(self, group: int, tier: int, slot: int) -> int:
        owner = self._state.pools[group].owner(tier, slot)
        return NO_PAGE if owner is None else owner.number

    def page_slots(self, group: int, page: int) -> tuple[int, ...]:
        return tuple(self._state.pools[group].page(page).slots)

    def slots_in(self, group: int, tier: int, pages: Int32Array) -> Int32Array:
        pool = self._state.pools[group]
        return np.array([pool.page(page).slots[tier] for page in _numbers(pages)], np.int32)

    def dump(self) -> Dump:
        return dump(self._state)

    def map_slots(self, group: int, tier: int, first: int, stop: int) -> Int32Array:
        pool = self._state.pools[group]
        return maps.map_slots(pool, tier, max(0, first), min(stop, len(pool.orders[tier].owner)))

    def map_order(self, group: int, tier: int, limit: int) -> Int32Array:
        return maps.map_order(self._state.pools[group], tier, limit)

    def map_nodes(self, first: int, limit: int) -> tuple[Int32Array, int]:
        if first < 0 or limit < 1:
            raise ValueError(f"{limit} nodes from number {first} on")
        return maps.map_nodes(self._state, first, limit)


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


def _numbers(given: Any) -> list[int]:
    return [int(number) for number in given]


def _asks(given: Sequence[AskNumbers]) -> list[Ask]:
    return [Ask(*numbers) for numbers in given]
