"""The store's interface, once: what a chain, a hit, a ledger and a store can do, in both implementations.

Owns the names and types that the layers above use. `docs/reference/store.md` says what each call does, the reference
store how. A call that raises or refuses has changed nothing. Nothing here is thread-safe: the layer above has the lock.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quire.core.store.dumped import Dump, PageInfo

Int8Array = NDArray[np.int8]
UInt8Array = NDArray[np.uint8]
Int16Array = NDArray[np.int16]
Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
UInt64Array = NDArray[np.uint64]
BoolArray = NDArray[np.bool_]
GroupNumbers = tuple[int, int, int, int, int, int, Sequence[int]]  # tail, sink, keep, every, extra, current, slots
AskNumbers = tuple[int, int, int, int]  # of one group: columns from first to stop, peak, spare
Need = tuple[int, int, int]  # of one group: blocks before sink, and from first to stop
SourceState = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # leaf; per group: held, claims, tier
Explained = tuple[bytes, bytes]  # runs of causes, tokens by group and tier
Changes = (
    tuple[  # freed (group, slot); blocks (number, parent), where their tokens start, tokens, words, where those are;
        Int32Array, Int64Array, Int64Array, Int32Array, UInt64Array, Int64Array, list[int], Int64Array  # roots; pages
    ]
)
EventArrays = tuple[Int64Array, UInt64Array, Int32Array, Int32Array, int]  # records, hashes, details, tokens, lost


class Chain(Protocol):
    """A growing token sequence whose private keys are computed on demand."""

    def __init__(self, block_size: int, tokens: Int32Array, extras: UInt64Array | None = None) -> None: ...

    def __len__(self) -> int: ...

    def tokens(self) -> Int32Array:
        """A copy of the tokens."""

    def extras(self) -> UInt64Array | None:
        """The extra words, three a token; None when every token is plain."""

    def extend_keys(self, num_blocks: int = -1) -> int:
        """Make the keys of the first `num_blocks` full blocks (-1: all); how many keys are ready."""

    def key(self, block: int) -> int:
        """A key that two chains share exactly when their identities up to and including full block `block` match."""

    def event_hashes(self, root: int, seed: bytes = ...) -> UInt64Array:
        """The event hashes of all full blocks under a root's."""

    def add_tokens(self, tokens: Int32Array) -> None:
        """Add plain tokens; not to a chain that is a row's."""

    def cut_tokens(self, length: int) -> None:
        """Keep the first `length` tokens; likewise."""

    def clone(self) -> Chain:
        """A chain of its own with the same tokens, extras and keys."""


class Hit(Protocol):
    """The result of a walk: leading blocks, and perhaps a block that shares some tokens of the next one."""

    @property
    def blocks(self) -> int:
        """Full blocks that can be reused."""

    @property
    def coming(self) -> int:
        """Full blocks that could be reused if pages that are only in the slow tier had been brought up."""

    def reach(self, group: int) -> tuple[Int32Array, Int32Array]:
        """Page and hottest tier now of each block that resuming at `coming` reads."""

    @property
    def matched(self) -> int:
        """Tokens of the next block that can be reused."""

    @property
    def start(self) -> int:
        """First token to compute."""

    @property
    def source(self) -> int:
        """Node that has the matched tokens, or -1."""

    @property
    def num_nodes(self) -> int:
        """Blocks that were walked."""

    @property
    def parts(self) -> bool:
        """Whether texts went on behind the last walked block at the time of the walk, full or partial."""

    @property
    def claimed(self) -> bool:
        """Whether a claim is on it."""

    def explained(self) -> Explained:
        """What `explain` noted: int64 runs (`causes.py`), and tokens of the pages it reads, int64 [groups, tiers]."""

    def node(self, block: int) -> int:
        """Node of a walked block, -1 out of range; meaningless once the hit is frozen."""

    def present(self, group: int) -> BoolArray:
        """Which walked blocks had a page of the group, outside the slow tier, at the time of the walk."""

    def held(self, group: int) -> Int32Array:
        """Blocks the claim is on, ascending; without a claim those it would be on."""

    def tiers(self, group: int) -> Int32Array:
        """Hottest tier now of each held block, -1 where none is held."""

    def pages(self, group: int) -> Int32Array:
        """Page of each held block, in the order of `held`."""

    def places(self, group: int) -> tuple[Int32Array, Int32Array]:
        """Tier and slot of the hottest copy of each of those, now."""

    def sources(self) -> tuple[int, ...]:
        """Page of the source per group that the claim is on; nothing without."""


class Ledger(Protocol):
    """Which worker has which published page, in which tier, according to the records."""

    def __init__(self, num_workers: int = 1, num_groups: int = 1) -> None: ...

    def __len__(self) -> int: ...

    def widen(self, num_workers: int, num_groups: int) -> None:
        """Room for that many workers and groups."""

    def apply(self, worker: int, records: Int32Array, hashes: UInt64Array, priorities: UInt8Array) -> int:
        """Apply records in order, all or none; how many of them did not fit what was known."""

    def clear(self, worker: int) -> None:
        """Forget a worker's pages."""

    def num_pages(self, worker: int) -> int:
        """Pages of a worker, in all its groups."""

    def sums_by_tier(self, worker: int) -> UInt64Array:
        """Per group and tier: number of pages and two lanes of their sum; [groups, 8, 3]."""

    def pages(self, worker: int, group: int) -> tuple[UInt64Array, UInt8Array, UInt8Array]:
        """A worker's pages in no order: hashes, tiers, priorities."""

    def runs(self, group: int, hashes: UInt64Array, workers: list[int]) -> Int32Array:
        """For each of some workers, how many leading blocks it has, and how many in each tier; [workers, 9]."""

    def walk(self, group: int, hashes: UInt64Array, workers: list[int]) -> Int8Array:
        """Tier by worker and block, holes and all, -1: no page; [workers, blocks]."""


class Store(Protocol):
    """Tree, pools and rows of one stream. Its arrays are live, and only it writes them."""

    inherit: bool  # a page that replaces a cold duplicate takes its copies over; off while a plan may still fail

    def __init__(  # noqa: PLR0913
        self, block_size: int, groups: Sequence[GroupNumbers], rows: int, columns: int,
        order: int, shadows: bool, offload_min: int, events: bool, max_events: int, tails: bool = True,
        seed: bytes = ..., ghosts: int = 0, min_uses: int = 1, slow: bool = False, lasting: bool = False,
        pools: Sequence[int] | None = None, spacing: int = 0,
    ) -> None: ...  # fmt: skip

    # Arrays

    @property
    def pages(self) -> list[Int32Array]:
        """Per group: [rows, columns], -1: a hole."""

    @property
    def slots(self) -> list[Int32Array]:
        """The same: device slots."""

    @property
    def capacity(self) -> list[Int32Array]:
        """Per group: columns of a row."""

    @property
    def currents(self) -> list[Int32Array]:
        """Per group: pages of current states, -1: none."""

    @property
    def current_slots(self) -> list[Int32Array]:
        """Their device slots."""

    @property
    def counters(self) -> list[Int64Array]:
        """Per group: what has happened so far, by counter."""

    @property
    def row_counters(self) -> list[Int64Array]:
        """The same of one row: [rows, counters]."""

    @property
    def length(self) -> Int32Array:
        """Tokens of a row."""

    @property
    def handed(self) -> Int32Array:
        """Handed out to steps: places of tokens that come too."""

    @property
    def launched(self) -> Int32Array:
        """Of these, what steps in flight compute; 0: none does."""

    @property
    def computed(self) -> Int32Array:
        """Of them computed."""

    @property
    def committed(self) -> Int32Array:
        """Committed blocks."""

    # Roots

    def new_root(self, event_hash: int) -> int:
        """A new root, named so in events."""

    def dead_roots(self) -> list[int]:
        """Roots without child and tip that lost one since the last call."""

    def free_root(self, node: int) -> None:
        """Forget a root without child and tip."""

    # Phase 1

    def walk(self, chain: Chain, root: int, usable: int, policy: int, first: int = 0) -> Hit:
        """Look up what is cached of a chain under a root (-1: none), ignoring tokens from `usable` on. Partial blocks
        with policy 0: none, 1: idle leaves, 2: any. Blocks before `first` count as present and are not claimed."""

    def find_pending(self, hit: Hit, chain: Chain, root: int, usable: int) -> int:
        """Lengthen a fresh hit by whole blocks that one row's steps in flight compute, up to where every group could
        resume; that row, -1: there is none, or a group has a current page. A claim keeps their pages by number."""

    def owner(self, hit: Hit) -> int:
        """The row whose steps in flight compute the last blocks of a hit now, -1: none does."""

    def claim(self, hit: Hit, needs: Sequence[Need] | None = None, stays: bool = False) -> tuple[int, ...]:
        """Keep pages from being evicted: those the hit needs, or those of `needs` that the walk found. Per group, how
        many of them must come to the device. With `stays` their copies below the device stay where they are."""

    def unclaim(self, hit: Hit) -> None:
        """Give a claim back, as if it had never been made."""

    def freeze(self, hit: Hit) -> None:
        """A claim keeps its pages by number from now on; before a call that takes claimed pages out of the tree."""

    def source_state(self, hit: Hit) -> SourceState:
        """Of the source now: is a leaf; and per group: its page is held, its claims, its hottest tier."""

    def explain(self, hit: Hit, chain: Chain, root: int, scope: int, usable: int) -> int:
        """Note in a fresh hit why the whole blocks behind it, up to `usable`, are missing; returns the row that
        computes those under way, -1: none are. `scope` is the event hash of a scope without root."""

    # Phase 2

    def seat(self, hit: Hit, row: int, chain: Chain, root: int, keep: bool) -> None:
        """A claimed hit becomes the holds of a new row; settle must follow."""

    def settle(
        self, row: int, hit: Hit, asks: Sequence[AskNumbers],
        priorities: Int16Array | None, durations: Int64Array | None, decode_priority: int, decode_duration: int,
        handed: int = -1,
    ) -> None:  # fmt: skip
        """Give a seated row all it asks for, on the device; its tokens before `handed` (-1: all) are computed next."""

    def extend(
        self, row: int, asks: Sequence[AskNumbers], priorities: Int16Array | None, durations: Int64Array | None
    ) -> int:
        """The columns of a prompt's next part; pages taken, -1 without room."""

    def open_snapshots(
        self, row: int, group: int, columns: Sequence[int], peak: int,
        priorities: Int16Array | None, durations: Int64Array | None, beside: int = -1,
    ) -> int:  # fmt: skip
        """Pages for what a prompt's step itself writes behind these columns (ascending), in a group with a current
        page. If something is reserved for the row there, the last columns get one, as far as there is room; with
        `beside` (0 or more) the very last only if that leaves so many slots. A commit offers these pages as they are.
        Afterwards `peak` is reserved. Returns how many were taken."""

    def name_points(self, row: int, depths: Sequence[int]) -> None:
        """Others may be expected to resume at these depths of the row's prompt: ascending, at most 64; after `seat`."""

    def hand_out(self, row: int, end: int) -> None:
        """The row's tokens before `end` are being computed, or will come; those behind it are handed out like this."""

    def launch(self, rows: Int32Array, ends: Int32Array) -> None:
        """Steps in flight compute these rows up to `ends`; 0: none does any more."""

    def take_back(self, row: int, end: int, ran: bool) -> None:
        """What the row was handed out from `end` on is not computed; `ran`: a step may have begun it."""

    def owned(self, row: int) -> tuple[int, ...]:
        """Pages that are the row's own, per group; right after `seat`: pages of its hit that it alone has."""

    def promised(self, hit: Hit, group: int) -> Int32Array:
        """Pages of a claimed hit that one row alone holds and is to give up before its prompt is finished."""

    # Rows

    def commit(self, rows: Int32Array, computed: Int32Array | None = None, now: int | None = None) -> int:
        """KV of the rows exists up to `computed` (None: what was handed out); returns how many pages became findable.
        With `now`, what has run out by then is refreshed first, unless the call is refused."""

    def commit_row(self, row: int, computed: int, now: int | None = None) -> int:
        """The same for one row."""

    def commits(self, row: int) -> bool:
        """Whether what the row computes becomes findable: it keeps its blocks, and they were not forgotten."""

    def commit_again(self, row: int, root: int) -> None:
        """After `clear`: a row that committed before does so again, under this root. Its next commit offers all that it
        has computed and holds."""

    def grow(self, rows: Int32Array, tokens: Int32Array | None, k: int | Int32Array) -> int:
        """k more tokens of every row (or of each so many) are handed out, or places of such (None); pages taken, -1
        without room."""

    def append(self, rows: Int32Array, tokens: Int32Array, k: int) -> None:
        """Up to k tokens a row that steps have made; a negative one ends those of its row."""

    def trim(self, row: int, k: int) -> int:
        """Take back the last k tokens and the columns nothing needs then; pages given back."""

    def fork(self, src: int, dst: int) -> int:
        """A second row on the first one's full pages; pages taken, -1 without room."""

    def fork_needs(self, row: int) -> tuple[int, ...]:
        """Pages of its own that one fork takes, per group, spares or not."""

    def hold(self, group: int, row: int, first: int, last: int) -> Int32Array | None:
        """One more holder for what the row has in columns [first, last); page ids, None without room."""

    def unhold(self, group: int, pages: Int32Array, now: int) -> None:
        """Give up such holds, last to first."""

    def recut(self, row: int, cut: int) -> int:
        """Columns from `cut` on must be computed again, into pages of its own; pages taken, -1 without room."""

    def tokens(self, row: int) -> Int32Array:
        """A copy of the row's tokens."""

    def take_cells(self, group: int) -> Int32Array:
        """Rows, columns and slots of cells of `slots` that have changed since the last call, ascending; [3, cells]."""

    def copy_rows(self, group: int, rows: Int32Array, out: Int32Array) -> int:
        """Copy of some rows the columns that one of them uses into an array [at least rows, at least columns]; how many
        columns that are."""

    def num_spares(self, group: int, row: int) -> int:
        """Open pages the row keeps aside for its forks."""

    def release(self, row: int, keep_tail: bool, now: int, back: int = 0, mark: bool = False) -> object:
        """Give up a row; with `keep_tail` what it computed stays findable. `back`: a hint, when its text comes back.
        With `mark`: where it ended, for `supersede`; None: it has left nothing."""

    def supersede(self, row: int, end: object) -> int:
        """A seated row is the next of a session whose last row ended there: text of that row which it does not continue
        never comes back. Returns that text's page count."""

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

    def refresh(self, now: int) -> None:
        """Idle pages whose time is over fall back to the default priority; in the adaptive order all become older."""

    # The adaptive order

    def is_due(self, group: int) -> bool:
        """Whether a group's order shall be learned anew."""

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

    # Log

    @property
    def num_moves(self) -> int:
        """Moves that wait."""

    def is_pending(self, group: int, page: int) -> bool:
        """Whether one of them brings a page its bytes: no plan has it yet."""

    @property
    def num_events(self) -> int:
        """More than 0 when there are events to take."""

    @property
    def num_lost(self) -> int:
        """Hashes that the log has given up since events were last taken."""

    def take_moves(self) -> Int32Array:
        """All moves since the last call; [moves, 11]."""

    def take_events(self, whole: bool = False) -> EventArrays:
        """All events since the last call, or instead the whole state."""

    # Questions

    @property
    def num_nodes(self) -> int:
        """Blocks in the tree; roots do not count."""

    def available(self, group: int) -> int:
        """Device slots for any request; below zero while claims rest on reserved slots."""

    def reserved(self, group: int) -> int:
        """Slots reserved for rows; `available` is net of them."""

    def num_empty(self, group: int, tier: int) -> int: ...

    def num_idle(self, group: int, tier: int) -> int: ...

    def num_shadow(self, group: int, tier: int) -> int: ...

    def nbytes(self) -> tuple[int, int]:
        """Bytes of metadata and of tokens."""

    def page_info(self, group: int, page: int) -> PageInfo:
        """One page now."""

    def page_in(self, group: int, tier: int, slot: int) -> int:
        """The page that has a copy in a slot, -1: none."""

    def page_slots(self, group: int, page: int) -> tuple[int, ...]:
        """Its slot per tier, -1: no copy there."""

    def slots_in(self, group: int, tier: int, pages: Int32Array) -> Int32Array:
        """The slot of each of these pages in one tier, -1: no copy there."""

    def dump(self) -> Dump:
        """Everything, as plain values that are the same in both stores."""

    # Maps, to be drawn

    def map_slots(self, group: int, tier: int, first: int, stop: int) -> Int32Array:
        """What lies in the slots [first, stop), cut to those there are: [slots, 4], by SlotColumn."""

    def map_order(self, group: int, tier: int, limit: int) -> Int32Array:
        """Slots of shadows and idle pages in the order in which they would be taken, claimed or not; so many."""

    def map_nodes(self, first: int, limit: int) -> tuple[Int32Array, int]:
        """Nodes from a number on, by NodeColumn, and the number to go on from, -1: that was all. Looks at `limit` nodes
        at most. Between two calls the tree may change, and a number may be given to another node."""


class KeyOrder(Protocol):
    """Which of a caller's keys go next: an order without tree, tiers and bytes. Keys are bytes."""

    def __init__(self, room: int, ghosts: int = 8, adaptive: bool = True) -> None: ...

    def __len__(self) -> int: ...

    def __contains__(self, key: object) -> bool: ...

    def clear(self) -> None:
        """All keys go, held ones too, and all that was learned."""

    @property
    def num_free(self) -> int:
        """Keys that may go."""

    def set_time(self, now: int) -> None:
        """In microseconds; it never goes back."""

    def meet(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """These will come: how many of them were there before, and the class of the last of those."""

    def come(self, key: bytes) -> None:
        """A key is there from now on, and held."""

    def hold(self, key: bytes) -> None:
        """A key may not go from now on."""

    def let_go(self, key: bytes) -> None:
        """A key may go from now on."""

    def take(self, count: int, spared: Collection[bytes] = ()) -> list[bytes] | None:
        """So many keys go, neither held nor spared; None: there are fewer, and nothing has changed."""

    def drop(self, key: bytes) -> None:
        """A key is gone, held or not, and not for want of room."""

    def chain(self, keys: Sequence[bytes]) -> None:
        """Each key continues the one before it: it is of no use without it, and goes before it."""

    def use(self, keys: Sequence[bytes], reused: Container[bytes], continued: bool) -> int:
        """A request is over that used these keys, found the `reused` ones there, and made the others; `continued`: it
        went on from known text. Its last key goes first. The class that the last reused key had."""

    def hint(self, keys: Sequence[bytes], back: int) -> int:
        """When the text of these keys comes back (0: unknown): of the last ones, which no other text shares. How many
        keys that is."""

    def retain(self, keys: Sequence[bytes], priority: int) -> None:
        """These keys have this priority from now on: lower ones go before them."""

    @property
    def is_due(self) -> bool:
        """Whether there is enough new to learn from."""

    def take_counts(self) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """As `Store.take_counts` of a group."""

    def set_rank(self, cells: Int32Array, recency: bool) -> None:
        """Evict in this order of cells from now on; all are named. `recency`: by age alone."""


class StoreModule(Protocol):
    """What `open_store` gives."""

    @property
    def Chain(self) -> type[Chain]: ...

    @property
    def KeyOrder(self) -> type[KeyOrder]: ...

    @property
    def Ledger(self) -> type[Ledger]: ...

    @property
    def Store(self) -> type[Store]: ...

    def read_tokens(self, items: list[int], first: int, out: Int32Array, /) -> None:
        """Fill an int32 array with the items from number `first` on; if it raises, a part of it may be filled."""
