"""What comes and goes without a row: pages written from outside, texts, the tiers below the device, what is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.core.store.interface.arrays import BoolArray, Changes, Int16Array, Int32Array, Int64Array, UInt64Array
from quire.core.store.interface.texts import Chain


class PageCalls(Protocol):
    """The tree, the tiers and the order of eviction, beside the rows."""

    # Texts, and pages from outside

    def note_tenure(self) -> None:
        """From now on note which pages get or lose copies; before the first page."""

    def take_tenure(self, group: int) -> Int32Array:
        """Pages of the group's pool that got or lost copies since the last call, by number: page, stamp, the row that
        it was made for (-1: none), a bit for each tier with a copy, and 256 if one of that number was dropped."""

    def hint(self, root: int, chain: Chain, keep: int, back: int) -> int:
        """Hint when the text of a chain comes back, from the first block that starts at `keep` on; its page count."""

    def use(self, root: int, chain: Chain, blocks: int) -> None:
        """A request was served from outside: its first blocks are used once more, and the ghosts behind them met."""

    def write(
        self, root: int, chain: Chain, tier: int, blocks: Sequence[Int32Array],
        priorities: Int16Array | None, durations: Int64Array | None, *, now: int,
    ) -> list[tuple[Int32Array, Int32Array, Int32Array]] | tuple[int, int, int]:  # fmt: skip
        """Make pages in a tier for blocks that have none; the caller holds them. Returns, per group, those blocks,
        their pages and slots. Without room nothing has changed, and the group, the pages wanted and the slots there are
        come back. With room, retention that is over runs out.
        """

    def publish(
        self, root: int, chain: Chain, blocks: Sequence[Int32Array], pages: Sequence[Int32Array], now: int,
        edge: int = 0, named: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """Such pages are written: they become findable, unless other pages came first, and are let go; how many became
        so. The last block edge inside the text's prompt (0: it has none), and depths that were named there, as in
        `name_points`."""

    # Tree and tiers

    def truncate(self, root: int, chain: Chain, usable: int, keep: int) -> int:
        """Forget what is stored along a chain from the first block that starts at `keep` on; pages detached."""

    def clear(self) -> int:
        """Forget everything, roots included; pages detached. Calls that remove blocks refuse while a claim is not
        frozen."""

    def forget(self, root: int) -> int:
        """Forget all below a root, and all ghosts; its rows commit nothing any more. Pages detached."""

    def lose(self, group: int, page: int, stamp: int) -> bool:
        """The bytes of a page never came; False: that page is gone already."""

    def drop_copy(self, group: int, page: int, tier: int) -> bool:
        """Give up a shadow; False when the page has none on that tier."""

    def offload(self, group: int, limit: int) -> int:
        """Copy pages down ahead of their eviction: the next victims, or in the adaptive order the last; how many."""

    # The slow tier

    def copy_down(self, group: int, limit: int) -> Int32Array:
        """Begin to copy up to `limit` pages into the slow tier, ahead of their eviction; the moves, [n, 11]."""

    def bring_up(self, group: int, pages: Int32Array) -> Int32Array:
        """Begin to bring pages up from the slow tier into the next faster one, whose slots were counted; the moves."""

    def land(self, moves: Int32Array, failed: BoolArray) -> None:
        """Such moves have been made, or have failed."""

    def room_in(self, group: int, tier: int) -> int:
        """Slots of a tier that can be taken: listed, and no copy in them is claimed or must stay; on the device, less
        the reserve."""

    def keep(self, group: int, pages: Int32Array) -> Int32Array:
        """Copies of these pages below the device stay where they are as long as the pages are there; their stamps."""

    def unkeep(self, group: int, pages: Int32Array, stamps: Int32Array) -> None:
        """Give that up; pages that are gone are left out."""

    def take_changes(self) -> Changes:
        """What changed in the slow tier since the last call."""

    def restore(
        self, roots: Sequence[int], blocks: Int64Array, tokens: Int32Array, words: UInt64Array, word_at: Int64Array,
        pages: Int32Array, now: int,
    ) -> None:  # fmt: skip
        """Full blocks, rows of (number, place of the parent or -1 - root), and pages of the slow tier, rows of (group,
        slot, place of the block), into an empty store. A duplicate block is refused, and nothing has changed."""

    @property
    def numbered(self) -> int:
        """The last number that a block got."""

    # The adaptive order

    def take_counts(self, group: int) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """By class and age: hits and lost ghosts since the last call, and a census of pages and ghosts now. Of watched
        pages: hits since then that LRU would not have had, misses that it would have hit, and how many are watched."""

    def set_rank(self, group: int, cells: Int32Array, recency: bool) -> None:
        """Evict in this order of cells from now on; all are named. `recency`: pages are ranked by age alone."""

    def weigh(self, group: int, depths: Sequence[int]) -> None:
        """In the adaptive order, before there are pages: a page of a group counts as one age younger for each of these
        depths (in blocks, at most 15) that it reaches, because it costs more to compute again."""

    def fallback(self, group: int) -> tuple[bool, int]:
        """In the adaptive order: whether pages go by age alone now, and how often it has come to that after an order
        was learned."""

    def ghost_room(self, group: int) -> tuple[int, int]:
        """The number of ghosts, and the bytes they take: room for the most there have been at once."""
