"""The store: one object that forwards each call to the module that owns the idea.

Owns the interface shared with the compiled module. Not thread-safe: a lock above it. A call that raises or refuses has
changed nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.core.store.twin import admission, chunk, commit, evict, fork, growth, hits, life, removal
from quire.core.store.twin.chain import Chain, IntArray
from quire.core.store.twin.chunk import Ask, Durations, Priorities, Retention
from quire.core.store.twin.dump import dump
from quire.core.store.twin.hits import Hit, Need
from quire.core.store.twin.log import EventArrays, Events, Moves
from quire.core.store.twin.parts import Parts
from quire.core.store.twin.pool import Pool, Rules, Shared
from quire.core.store.twin.reach import ALL, Group, Reach, check_groups
from quire.core.store.twin.table import Table
from quire.core.store.twin.tree import Tree


class Store:
    """Everything that works per block."""

    __slots__ = (
        "_parts", "capacity", "committed", "computed", "counters", "current_slots", "currents", "handed",
        "length", "pages", "row_counters", "slots",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913
        self, block_size: int, groups: Sequence[Group], rows: int, columns: int,
        order: int, shadows: bool, offload_min: int, events: bool, max_events: int, tails: bool = True,
        seed: bytes = bytes(16),
    ) -> None:  # fmt: skip
        check_groups(groups)
        if block_size < 1 or rows < 0 or columns < 0 or order not in (0, 1):
            raise ValueError(f"one of {block_size=}, {rows=}, {columns=}, {order=} is out of range")
        rules = Rules(block_size, order == 1, bool(shadows), offload_min, bool(tails))
        tree, moves = Tree(len(groups), bool(events), seed), Moves(block_size)
        log = Events(len(groups), bool(events), max_events, block_size)
        shared = Shared(rules, tree, moves, log)
        pools = [Pool(number, slots, shared) for number, (*_, slots) in enumerate(groups)]
        table = Table(block_size, rows, columns, pools)
        reaches = [Reach(*numbers) for *numbers, _ in groups]
        self._parts = Parts(rules, reaches, tree, moves, log, pools, table)
        self.pages, self.slots, self.capacity = table.pages, table.slots, table.capacity
        self.currents, self.current_slots = table.currents, table.current_slots
        self.length, self.handed = table.length, table.handed
        self.computed, self.committed = table.computed, table.committed
        self.row_counters, self.counters = table.row_counters, [pool.counters for pool in pools]
        for number, (*_, slots) in enumerate(groups):
            log.created(number, slots)

    # Roots

    def new_root(self, event_hash: int) -> int:
        return self._parts.tree.new_root(event_hash).number

    def dead_roots(self) -> list[int]:
        return self._parts.tree.dead_roots()

    def free_root(self, node: int) -> None:
        self._parts.tree.free_root(node)

    # Phase 1

    def walk(self, chain: Chain, root: int, usable: int, policy: int) -> Hit:
        self._check_chain(chain)
        top = None if root == admission.NO_ROOT else self._parts.tree.root(root)
        return hits.walk(self._parts.reaches, chain, top, usable, policy)

    def claim(self, hit: Hit, needs: Sequence[Need] | None = None) -> tuple[int, ...]:
        """Returns, per group, the held pages that must come to the device."""
        hits.claim(self._parts.pools, hit, needs)
        return tuple(hit.num_cold(group) for group in range(len(self._parts.pools)))

    def unclaim(self, hit: Hit) -> None:
        hits.unclaim(self._parts.pools, hit)

    def source_state(self, hit: Hit) -> hits.SourceState:
        return hits.source_state(hit)

    # Phase 2

    def seat(self, hit: Hit, row: int, chain: Chain, root: int, keep: bool) -> None:
        self._check_chain(chain)
        self._parts.table.check_vacant(row)
        admission.seat(self._parts, hit, row, admission.new_row(self._parts, hit, chain, root, bool(keep)))

    def settle(
        self, row: int, hit: Hit, asks: Sequence[tuple[int, int, int, int]],
        priorities: Priorities | None, durations: Durations | None, decode_priority: int, decode_duration: int,
        handed: int = ALL,
    ) -> None:  # fmt: skip
        decode = (decode_priority, decode_duration)
        end = len(self._parts.table.row(row).chain) if handed == ALL else handed
        chunk.check_end(self._parts, row, end)
        admission.settle(self._parts, row, hit, _asks(asks), Retention(priorities, durations), decode)
        chunk.hand_out(self._parts, row, end)

    def extend(
        self, row: int, asks: Sequence[tuple[int, int, int, int]],
        priorities: Priorities | None, durations: Durations | None,
    ) -> int:  # fmt: skip
        """The columns of a prompt's next chunk; pages taken, -1 without room."""
        return chunk.extend(self._parts, row, _asks(asks), Retention(priorities, durations))

    def hand_out(self, row: int, end: int) -> None:
        """The row's tokens before `end` are being computed, or will come; by default a commit counts so many."""
        chunk.hand_out(self._parts, row, end)

    # Rows

    def commit(self, rows: Any, computed: IntArray | None = None) -> int:
        return commit.commit(self._parts, _numbers(rows), computed)

    @property
    def inherit(self) -> bool:
        """Whether a page that replaces a cold duplicate takes its copies over; off while a plan may still fail."""
        return self._parts.inherit

    @inherit.setter
    def inherit(self, trusted: bool) -> None:
        self._parts.inherit = trusted

    def commit_row(self, row: int, computed: int) -> int:
        return commit.commit(self._parts, [row], np.array([computed], np.int32))

    def grow(self, rows: Any, tokens: IntArray | None, k: int) -> int:
        return growth.grow(self._parts, _numbers(rows), tokens, k)

    def trim(self, row: int, k: int) -> int:
        return growth.trim(self._parts, row, k)

    def fork(self, src: int, dst: int) -> int:
        return fork.fork(self._parts, src, dst)

    def fork_needs(self, row: int) -> tuple[int, ...]:
        """Pages of its own that one fork takes, per group."""
        return fork.fork_needs(self._parts, row)

    def recut(self, row: int, cut: int) -> int:
        return growth.recut(self._parts, row, cut)

    def release(self, row: int, keep_tail: bool, now: int) -> None:
        life.release(self._parts, row, keep_tail, now)

    def hold(self, group: int, row: int, first: int, last: int) -> IntArray | None:
        return life.hold(self._parts, group, row, (first, last))

    def unhold(self, group: int, pages: Any, now: int) -> None:
        life.unhold(self._parts, group, _numbers(pages), now)

    def tokens(self, row: int) -> IntArray:
        """Every token of a row (a copy)."""
        return self._parts.table.row(row).chain.tokens()

    def num_spares(self, group: int, row: int) -> int:
        return len(self._parts.table.row(row).spares[group])

    # Tree and tiers

    def truncate(self, root: int, chain: Chain, usable: int, keep: int) -> int:
        self._check_chain(chain)
        return removal.truncate(self._parts, self._parts.tree.root(root), chain, usable, keep)

    def clear(self) -> int:
        return removal.clear(self._parts)

    def offload(self, group: int, limit: int) -> int:
        return evict.offload(self._parts.pools[group], limit)

    def lose(self, group: int, page: int, stamp: int) -> bool:
        return life.lose(self._parts, group, page, stamp)

    def drop_copy(self, group: int, page: int, tier: int) -> bool:
        return life.drop_copy(self._parts, group, page, tier)

    def refresh(self, now: int) -> None:
        self._parts.now = now
        for pool in self._parts.pools:
            pool.refresh(now)

    # Log

    def take_moves(self) -> IntArray:
        return self._parts.moves.take()

    @property
    def num_moves(self) -> int:
        return len(self._parts.moves)

    @property
    def num_events(self) -> int:
        """What waits in the log: more than 0 when there are events to take."""
        return len(self._parts.events)

    @property
    def num_lost(self) -> int:
        """Hashes that the log has given up since events were last taken."""
        return self._parts.events.lost

    def take_events(self, whole: bool = False) -> EventArrays:
        parts = self._parts
        if whole:
            pools = [[len(order.owner) for order in pool.orders] for pool in parts.pools]
            parts.events.whole(pools, list(parts.tree.roots.values()))
        return parts.events.take()

    # Questions

    def available(self, group: int) -> int:
        return self._parts.pools[group].available

    def reserved(self, group: int) -> int:
        """Pages still promised to rows; `available` is net of them."""
        return self._parts.pools[group].reserved

    def num_empty(self, group: int, tier: int) -> int:
        return self._parts.pools[group].orders[tier].num_empty

    def num_idle(self, group: int, tier: int) -> int:
        return self._parts.pools[group].orders[tier].num_idle

    def num_shadow(self, group: int, tier: int) -> int:
        return self._parts.pools[group].orders[tier].num_shadow

    @property
    def num_nodes(self) -> int:
        """Blocks in the tree; roots are not counted."""
        return self._parts.tree.num_nodes

    def nbytes(self) -> tuple[int, int]:
        """Metadata bytes and token bytes, roughly."""
        parts = self._parts
        tables = sum(array.nbytes for array in (*self.pages, *self.slots, *self.capacity))
        tables += sum(array.nbytes for array in self.row_counters)
        pages = sum(len(pool.pages) for pool in parts.pools)
        return tables + 300 * pages + 600 * parts.tree.num_nodes, parts.tree.identity_bytes

    def page_info(self, group: int, page: int) -> tuple[int, int, int, int, int, int, int]:
        """(node, holders, claims, priority, duration, expiry, stamp)."""
        found = self._parts.pools[group].page(page)
        node = -1 if found.node is None else found.node.number
        return node, found.holders, found.claims, found.priority, found.duration, found.expiry, found.stamp

    def page_slots(self, group: int, page: int) -> tuple[int, ...]:
        return tuple(self._parts.pools[group].page(page).slots)

    def dump(self) -> dict[str, Any]:
        return dump(self._parts)

    def _check_chain(self, chain: Chain) -> None:
        size = self._parts.rules.block_size
        if chain.block_size != size:
            raise ValueError(f"the chain has blocks of {chain.block_size} tokens, the store of {size}")


def _numbers(given: Any) -> list[int]:
    return [int(number) for number in given]


def _asks(given: Sequence[tuple[int, int, int, int]]) -> list[Ask]:
    return [Ask(*numbers) for numbers in given]
