"""What the steps of an engine call: look up, claim, seat rows and give them pages, until they are released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.core.store.interface.arrays import AskNumbers, Int16Array, Int32Array, Int64Array, Need, SourceState
from quire.core.store.interface.texts import Chain, Hit


class RowCalls(Protocol):
    """Rows and what they hold. The arrays are live, and only the store writes them."""

    inherit: bool  # a page that replaces a cold duplicate takes its copies over; off while a plan may still fail

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

    def recut(self, row: int, cut: int, shared: int = 0) -> int:
        """Columns from `cut` on must be computed again, into pages of its own; pages taken, -1 without room. Those
        before `shared` may be another row's, pending."""

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

    # Time

    def refresh(self, now: int) -> None:
        """Idle pages whose time is over fall back to the default priority; in the adaptive order all become older."""

    def is_due(self, group: int) -> bool:
        """Whether a group's order shall be learned anew."""

    # Events and moves that wait

    @property
    def num_events(self) -> int:
        """More than 0 when there are events to take."""

    @property
    def num_lost(self) -> int:
        """Hashes that the log has given up since events were last taken."""

    @property
    def num_moves(self) -> int:
        """Moves that wait."""

    def is_pending(self, group: int, page: int) -> bool:
        """Whether one of them brings a page its bytes: no plan has it yet."""

    def take_moves(self) -> Int32Array:
        """All moves since the last call; [moves, 11]."""

    # Room

    def available(self, group: int) -> int:
        """Device slots for any request; below zero while claims rest on reserved slots."""

    def reserved(self, group: int) -> int:
        """Slots reserved for rows; `available` is net of them."""
