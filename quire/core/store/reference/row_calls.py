"""What the steps of an engine call: look up, claim, seat rows and give them pages, until they are released.

Owns that each call checks its arguments and goes to the part that does the work.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.core.store.interface import (
    AskNumbers,
    Int16Array,
    Int32Array,
    Int64Array,
    Need,
    SourceState,
)
from quire.core.store.reference.hits import claim, explain, walk
from quire.core.store.reference.hits.walk_result import NOBODY, STALE, Hit
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.moves import hinted_text, priority
from quire.core.store.reference.opening import OpenStore
from quire.core.store.reference.pools.checks import check_back, check_chain, check_end, check_vacant
from quire.core.store.reference.pools.group import ALL
from quire.core.store.reference.pools.reserve import Ask, Retention
from quire.core.store.reference.pools.tables import copy_rows, take_cells
from quire.core.store.reference.rows import (
    commit,
    extend,
    fork,
    grow,
    hold,
    recut,
    release,
    seat,
    settle,
    state_snapshots,
)


class RowCalls(OpenStore):
    """Rows and what they hold."""

    __slots__ = ()

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
        return tuple(map(hit.num_cold, range(len(self._state.pools))))

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
        commit.name_points(self._state, row, numbers(depths))

    def hand_out(self, row: int, end: int) -> None:
        """The row's tokens before `end` are being computed, or will come; by default a commit counts so many."""
        check_end(self._state, row, end)
        state_snapshots.keep_ahead(self._state, row)
        self._state.table.hand_out(row, end)

    def launch(self, rows: Any, ends: Int32Array) -> None:
        """Steps in flight compute these rows up to `ends`, 0: none does any more."""
        for number in numbers(rows):
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
        return commit.commit(self._state, numbers(rows), computed, now)

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
        counts = [k] * len(rows) if isinstance(k, int) else numbers(k)
        return grow.grow(self._state, numbers(rows), tokens, counts)

    def append(self, rows: Any, tokens: Int32Array, k: int) -> None:
        grow.append(self._state, numbers(rows), tokens, k)

    def trim(self, row: int, k: int) -> int:
        return grow.trim(self._state, row, k)

    def fork(self, src: int, dst: int) -> int:
        return fork.fork(self._state, src, dst)

    def fork_needs(self, row: int) -> tuple[int, ...]:
        """Pages of its own that one fork takes, per group."""
        return fork.fork_needs(self._state, row)

    def recut(self, row: int, cut: int, shared: int = 0) -> int:
        return recut.recut(self._state, row, cut, shared)

    def release(self, row: int, keep_tail: bool, now: int, back: int = 0, mark: bool = False) -> object:
        return release.release(self._state, row, keep_tail, now, back, mark)

    def supersede(self, row: int, end: object) -> int:
        if not isinstance(end, hinted_text.End):
            raise TypeError(f"supersede: {end!r} is not where a row ended")
        return hinted_text.supersede(self._state, row, end)

    def hold(self, group: int, row: int, first: int, last: int) -> Int32Array | None:
        return hold.hold(self._state, group, row, (first, last))

    def unhold(self, group: int, pages: Any, now: int) -> None:
        hold.unhold(self._state, group, numbers(pages), now)

    def tokens(self, row: int) -> Int32Array:
        """Every token of a row (a copy)."""
        return self._state.table.row(row).chain.tokens()

    def take_cells(self, group: int) -> Int32Array:
        """Rows, columns and slots of the cells that have changed since the last report; [3, cells]."""
        return take_cells(self._state, group)

    def copy_rows(self, group: int, rows: Any, out: Int32Array) -> int:
        return copy_rows(self._state, group, numbers(rows), out)

    def num_spares(self, group: int, row: int) -> int:
        return len(self._state.table.row(row).spares[group])

    # Time

    def refresh(self, now: int) -> None:
        priority.refresh(self._state, now)

    def is_due(self, group: int) -> bool:
        """Whether a group's order shall be learned anew."""
        cells = self._state.pools[group].cells
        return cells is not None and cells.is_due

    # Events and moves that wait

    @property
    def num_events(self) -> int:
        """What waits in the log: more than 0 when there are events to take."""
        return len(self._state.log)

    @property
    def num_lost(self) -> int:
        """Hashes that the log has given up since events were last taken."""
        return self._state.log.lost

    def take_moves(self) -> Int32Array:
        return self._state.moves.take_moves()

    @property
    def num_moves(self) -> int:
        return len(self._state.moves)

    def is_pending(self, group: int, page: int) -> bool:
        """Whether a move that waits brings a page its bytes: no plan has it yet."""
        return self._state.moves.is_pending(group, self._state.pools[group].page(page))

    # Room

    def available(self, group: int) -> int:
        return self._state.pools[group].available

    def reserved(self, group: int) -> int:
        """Slots reserved for rows; `available` is net of them."""
        return self._state.pools[group].room.reserved


def numbers(given: Any) -> list[int]:
    return [int(number) for number in given]


def _asks(given: Sequence[AskNumbers]) -> list[Ask]:
    return [Ask(*numbers) for numbers in given]
