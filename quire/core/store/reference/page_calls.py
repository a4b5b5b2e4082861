"""What comes and goes without a row: pages written from outside, texts, the tiers below the device, what is learned.

Owns that each call checks its arguments and goes to the part that does the work.
"""

from collections.abc import Sequence

import numpy as np

from quire.core.store.interface import (
    BoolArray,
    Changes,
    Int16Array,
    Int32Array,
    Int64Array,
    UInt64Array,
)
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.moves import background, hinted_text
from quire.core.store.reference.moves.lasting import take_changes
from quire.core.store.reference.moves.offload import offload
from quire.core.store.reference.pools.checks import check_chain, check_frozen
from quire.core.store.reference.pools.pool import take_tenure
from quire.core.store.reference.pools.reserve import Retention
from quire.core.store.reference.pools.tenure import Tenure
from quire.core.store.reference.row_calls import RowCalls, numbers
from quire.core.store.reference.rows import (
    commit,
    remove,
    restore,
    seat,
    teach,
    write,
)
from quire.core.store.reuse import MOST_YOUNGER


class PageCalls(RowCalls):
    """The tree, the tiers and the order of eviction, beside the rows."""

    __slots__ = ()

    # Texts, and pages from outside

    def hint(self, root: int, chain: Chain, keep: int, back: int) -> int:
        return hinted_text.hint_along(self._state, self._state.tree.root(root), chain, keep, back)

    def note_tenure(self) -> None:
        if any(len(room.free_pages) < len(room.pages) for room in self._state.rooms):
            raise ValueError("tenure is noted from the first page on, and some are there")
        for room in self._state.rooms:
            room.tenure = room.tenure or Tenure(len(room.pages), self._state.makes)

    def take_tenure(self, group: int) -> Int32Array:
        return take_tenure(self._state.pools[group])

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
        wanted = [numbers(some) for some in blocks]
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
        where, which = [numbers(some) for some in blocks], [numbers(some) for some in pages]
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

    # The slow tier

    def copy_down(self, group: int, limit: int) -> Int32Array:
        self._check_slow()
        return background.copy_down(self._state, self._state.pools[group], limit)

    def bring_up(self, group: int, pages: Int32Array) -> Int32Array:
        self._check_slow()
        pool = self._state.pools[group]
        return background.bring_up(self._state, pool, [pool.page(number) for number in numbers(pages)])

    def land(self, moves: Int32Array, failed: BoolArray) -> None:
        background.land(self._state, moves, failed.tolist())

    def room_in(self, group: int, tier: int) -> int:
        return write.room_in(self._state.pools[group], tier)

    def keep(self, group: int, pages: Int32Array) -> Int32Array:
        pool = self._state.pools[group]
        found = [pool.page(number) for number in numbers(pages)]
        for page in found:
            pool.keep_page(page)
        return np.array([page.stamp for page in found], np.int32)

    def unkeep(self, group: int, pages: Int32Array, stamps: Int32Array) -> None:
        pool = self._state.pools[group]
        for number, stamp in zip(numbers(pages), numbers(stamps), strict=True):
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

    # The adaptive order

    def take_counts(self, group: int) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """By cell: hits and lost ghosts since the last call, and a census of what is there and what is remembered; then
        gained and missed since the last call, and pages watched."""
        pool = self._state.pools[group]
        if pool.cells is None:
            raise ValueError(f"group {group} learns no order")
        return pool.cells.take_counts(pool.pages)

    def set_rank(self, group: int, cells: Int32Array, recency: bool) -> None:
        """Evict in this order of cells from now on."""
        self._state.pools[group].set_rank(numbers(cells), bool(recency))

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
