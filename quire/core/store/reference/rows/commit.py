"""Commit: pages of full, computed blocks become findable; columns behind a window's edge, or snapshots of a state once
it has gone on, leave their row.

Owns how far a row has got, and when its pages are offered: at once, even those that are to leave the row later. A row
that comes to hold one of these is charged for it (`promised`). Owns when a column becomes a hole: only numbers decide,
a group keeps the last `keep` blocks and the first `sink`. Knows nothing of how rows end.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from quire.core.store.interface import Int32Array
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.moves.attach import attach_row
from quire.core.store.reference.moves.columns import clear_columns
from quire.core.store.reference.moves.priority import refresh
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.state import Row, State
from quire.core.store.reference.rows.state_snapshots import keep_snapshot
from quire.core.store.reference.tree.node import Node
from quire.core.store.reference.tree.point_kinds import NAMED
from quire.core.store.reference.tree.resume_points import ask_again, learn_parting, set_kind
from quire.core.store.reference.tree.tree import ancestor, climb, extend_path

MOST_NAMED = 64


class Prompt(NamedTuple):
    """Where others may be expected to resume in a text, in blocks."""

    edge: int  # after which the same prompt could begin again
    named: Sequence[int]  # by its caller


def commit(state: State, rows: list[int], computed: Int32Array | None, now: int | None = None) -> int:
    """KV of these rows exists up to `computed` (None: what was handed out); pages newly attached. `now`: if told."""
    table = state.table
    if computed is not None and len(computed) != len(rows):
        raise ValueError(f"{len(computed)} numbers given for {len(rows)} rows")
    if len(set(rows)) != len(rows):
        raise LookupError("a row is named twice")
    chains = [table.row(number).chain for number in rows]
    ends = np.minimum(table.handed[rows], table.length[rows]) if computed is None else computed
    marks = [int(mark) for mark in ends]
    for number, chain, mark in zip(rows, chains, marks, strict=True):
        if not 0 <= mark <= len(chain):
            raise ValueError(f"row {number} has {len(chain)} tokens, {mark} cannot be computed")
    if now is not None:
        refresh(state, now)
    attached = 0
    for number, mark in zip(rows, marks, strict=True):
        attached += commit_row(state, number, mark)
    return attached


def commit_row(state: State, number: int, computed: int) -> int:
    table = state.table
    row = table.row(number)
    row.ahead = False
    table.computed[number] = max(int(table.computed[number]), computed)
    table.handed[number] = max(int(table.handed[number]), computed)  # `computed` may be more than was handed out
    first, stop = int(table.committed[number]), int(table.computed[number]) // table.block_size
    goes_on = stop > first
    if goes_on:
        table.committed[number] = stop
        if row.commits:
            table.set_tip(number, _reach_tip(state, row, first, stop), state.tree)
    attached = 0
    for pool, group in zip(state.pools, state.groups, strict=True):
        if not group.current:
            attached += _show(state, pool, number)
        if goes_on and group.is_bounded:
            attached += leave(state, pool, number)
    return attached


def _reach_tip(state: State, row: Row, first: int, stop: int) -> Node:
    """The node of a row's block `stop` - 1; where its prompt ends it is seen whether the text was known to go on."""
    assert row.tip is not None
    prompt, tip = Prompt(row.edge, row.named), row.tip
    if state.rules.asks and first < row.edge <= stop:
        tip = extend_known(state, row.chain, tip, first, row.edge)
        assert state.kinds is not None
        ask_again(state.kinds, state.rules.block_size, tip)
    tip = extend_known(state, row.chain, tip, tip.depth, stop)
    set_kinds_along(state, prompt, tip, first)
    return tip


def extend_known(state: State, chain: Chain, tip: Node, first: int, last: int) -> Node:
    """As `extend_path`; where the text parts from one that is known something is learned."""
    for block in range(first, last):
        if state.kinds is not None and chain.block(block) not in tip.children:
            learn_parting(state.kinds, state.rules.block_size, tip)
        tip = extend_path(state.tree, chain, tip, block, block + 1)
    return tip


def set_kinds_along(state: State, prompt: Prompt, tip: Node, first: int) -> None:
    """The nodes of blocks from `first` up to the tip's are points of their kinds."""
    kinds = state.kinds
    if kinds is None:
        return
    for node in climb(tip, first):
        guessed = kinds.kind_at(node.depth, prompt.edge) if node.depth <= prompt.edge else 0
        set_kind(kinds, node, NAMED if node.depth in prompt.named else guessed)


def name_points(state: State, number: int, depths: Sequence[int]) -> None:
    """The row's caller expects others to resume at these depths of its prompt, ascending."""
    row = state.table.row(number)
    edges = range(1, len(row.chain) // state.rules.block_size + 1)
    if len(depths) > MOST_NAMED or list(depths) != sorted({*depths} & {*edges}):
        raise ValueError(f"{list(depths)} are not at most {MOST_NAMED} block edges of {len(row.chain)} tokens")
    if state.kinds is None or not row.commits:
        return
    assert row.tip is not None
    row.named = tuple(depths)
    for depth in depths:
        if depth <= row.tip.depth:
            set_kind(state.kinds, ancestor(row.tip, depth), NAMED)


def commit_again(state: State, number: int, root: Node) -> None:
    """A row whose blocks were forgotten with everything commits again, under a new root: the next commit offers all."""
    table = state.table
    row = table.row(number)
    table.set_tip(number, extend_path(state.tree, row.chain, root, 0, int(table.committed[number])), state.tree)
    for pool in state.pools:
        stake = row.stakes[pool.group]
        stake.shown = stake.shown if state.groups[pool.group].current else 0


def _show(state: State, pool: Pool, number: int) -> int:
    """Offer the committed columns that were not offered yet, those that are to leave too; pages newly attached."""
    row = state.table.row(number)
    stake, stop = row.stakes[pool.group], int(state.table.committed[number])
    if stake.shown >= stop:
        return 0
    first, stake.shown = stake.shown, stop
    if not row.keep or row.tip is None:
        return 0
    pages = state.table.pages_in(pool.group, number, range(first, stop))
    attached, twins = attach_row(state, pool, climb(row.tip, first), pages)
    row.twins += twins
    return attached


def leave(state: State, pool: Pool, number: int) -> int:
    """A bounded group lets go what the committed boundary has left behind; pages newly attached on the way out."""
    group, stake = state.groups[pool.group], state.table.row(number).stakes[pool.group]
    edge = int(state.table.committed[number]) - group.keep
    columns = range(max(stake.front, group.sink), edge)
    if group.current:
        attached = _last_offer(state, pool, number, range(columns.start, min(columns.stop, stake.written)))
        attached += keep_snapshot(state, pool, number, columns)
        stake.shown = edge
    else:
        attached = _last_offer(state, pool, number, columns)
        rank_twins(state, pool, number, columns)
    clear_columns(state, pool, number, columns)
    stake.front = max(stake.front, edge)
    return attached


def rank_twins(state: State, pool: Pool, number: int, columns: range) -> None:
    """Idle pages of blocks in whose columns the row has pages of its own are ranked anew, the last first."""
    row = state.table.row(number)
    if pool.window is None or not row.commits or not columns:
        return
    assert row.tip is not None
    nodes = climb(row.tip, columns.start)[: len(columns)]
    pages = state.table.pages_in(pool.group, number, columns)
    for node, page in reversed(list(zip(nodes, pages, strict=True))):
        if page is not None and page.is_open:
            pool.rank_anew(node.pages[pool.group])


def _last_offer(state: State, pool: Pool, number: int, columns: range) -> int:
    """Pages about to go that have no place in the tree get one if it is free now."""
    row = state.table.row(number)
    if not row.commits or not columns:
        return 0
    assert row.tip is not None
    nodes = climb(row.tip, columns.start)[: len(columns)]
    return attach_row(state, pool, nodes, state.table.pages_in(pool.group, number, columns))[0]
