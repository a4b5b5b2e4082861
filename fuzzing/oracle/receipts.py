"""Receipts by definition: the cause of every missed token, asked of each by itself; then equal neighbours are one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from fuzzing.oracle import claims, reach
from fuzzing.oracle.cells import SPOILT
from fuzzing.oracle.gone import Loss
from fuzzing.oracle.pools import Pools
from fuzzing.oracle.state import Claim, Row, State, name_of
from fuzzing.oracle.tree import common_tokens, path_of
from fuzzing.world import build
from fuzzing.world.plain import TICKS, MissFacts, Path, ReceiptFacts

Reason = tuple[str, int | None, int | None, int | None, str | None, int]  # cause, group, ticks, admission, who, hint
SHORT: Reason = ("short", None, None, None, None, 0)
POLICY: Reason = ("policy", None, None, None, None, 0)
NEW: Reason = ("new", None, None, None, None, 0)


def num_remembered(pools: Pools) -> int:
    """Pages of a group that are gone, and that something is known of."""
    known: Sequence[object] = pools.gone.recent() if pools.cells is None else pools.cells.ring
    return len(known) - known.count(None)


def loss_of(pools: Pools, path: Path) -> Loss | None:
    """What is known of a group's page that is gone."""
    name = (pools.group, path)
    if pools.cells is None:
        return next((entry[1] for entry in reversed(pools.gone.recent()) if entry and entry[0] == name), None)
    one = pools.cells.newest(path, pools.group)
    quarter = TICKS // 4
    if one is None:
        return None
    gone = (one.used + one.rest * quarter + quarter // 2) // quarter * quarter
    return Loss(gone, one.why, one.admission, max(0, one.reuse - 3))


def explain(state: State, claim: Claim) -> ReceiptFacts:
    """The receipt of a claim that was just found."""
    full = claim.full or claim
    ask, why = claim.ask, Why(state, full)
    reasons = [(POLICY, token) for token in range(claim.start, full.start)]
    reasons += [(why.reason(token), token) for token in range(full.start, ask.compute_end)]
    misses: list[MissFacts] = []
    for (cause, group, ticks, admission, request, hint), run in groupby(reasons, lambda item: item[0]):
        tokens = [token for _, token in run]
        misses.append(MissFacts(cause, tokens[0], tokens[-1] + 1, group, ticks, admission, request, hint))
    return ReceiptFacts(ask.compute_end, claim.start, tuple(sorted(hits(state, claim).items())), tuple(misses))


def hits(state: State, claim: Claim) -> dict[tuple[int, int], int]:
    """Tokens of the pages that going on at its start reads, by tier and group; a state stands for all before it."""
    size, count = state.world.block_size, dict[tuple[int, int], int]()
    for group, kind in enumerate(state.kinds):
        if claim.sources:
            whole = claim.start if kind.kind == "state" else claim.start - claim.blocks * size
            place = (claim.sources[group].hottest, group)
            count[place] = count.get(place, 0) + whole
        for block in () if claim.sources and kind.kind == "state" else reach.needed(kind, claim.blocks * size, size):
            place = (claim.found[group][block].hottest, group)
            count[place] = count.get(place, 0) + (claim.blocks * size if kind.kind == "state" else size)
    return count


class Why:
    """Everything that tells why a claim has not more."""

    def __init__(self, state: State, claim: Claim) -> None:
        self.state, self.claim, self.ask = state, claim, claim.ask
        self.size = size = state.world.block_size
        self.reads = state.world.reuse and claim.ask.keeps
        last = claim.ask.compute_end - (claim.purpose == "compute")
        limit = claim.ask.reuse_limit
        self.usable = last if limit is None else min(last, limit)
        self.path = path_of(claim.ask.root, claim.ask.identities[: self.usable // size * size], size)
        self.whole = len(self.path) - 1
        self.found = claims.pages_along(state, self.path)
        known = claims.pages_along(state, self.path, slow=True) if state.world.slow else self.found
        both = zip(known, self.found, strict=True)
        self.slow = [known.keys() - near.keys() for known, near in both]  # blocks in the slow tier only
        self.walked = state.tree.depth(self.path)
        self.losses: dict[tuple[int, int], Loss | None] = {}  # by group and block, asked so far
        self.known = self.how_far_known()
        self.row = self.who_computes()
        self.parted = self.where_parted()
        self.blocks: dict[int, Reason] = {}  # asked so far
        self.elsewhere: int | None = None  # leading blocks that another scope has, once asked for

    def prefix(self, block: int) -> Path:
        """The path up to and with a block."""
        return self.path[: block + 2]

    def how_far_known(self) -> int:
        """Blocks in the tree, and ghosts behind them: up to two in a row that nobody knows; all, if states are kept."""
        known, patience = self.walked, self.whole if self.state.world.has_state else 2
        block = known
        while block < min(self.whole, known + patience):
            if any(self.loss(group, block) for group in range(len(self.state.pools))):
                known = block + 1
            block += 1
        return known

    def loss(self, group: int, block: int) -> Loss | None:
        """What is known of a group's page of a block that is gone."""
        if (group, block) not in self.losses:
            self.losses[group, block] = loss_of(self.state.pools[group], self.prefix(block))
        return self.losses[group, block]

    def shares(self, row: Row) -> int:
        """Leading whole blocks that a row has too."""
        theirs = path_of(row.ask.root, row.tokens[: len(row.tokens) // self.size * self.size], self.size)
        same = [self.path[:blocks] == theirs[:blocks] for blocks in range(min(len(self.path), len(theirs)) + 1)]
        return sum(same) - 2  # nothing, and the scope, are no blocks

    def hidden_from(self, row: Row, group: int) -> int:
        """The first block of a row that the tree has not been offered."""
        return row.committed if self.state.kinds[group].kind == "state" else row.showns[group]

    def who_computes(self) -> Row | None:
        """The row with most of the prompt that has some of it to come, beyond what the claim has."""
        able = [
            row
            for row in self.state.rows.values()
            if row.tip is not None and row.keep and row.ask.root == self.ask.root
        ]
        groups, shared = range(len(self.state.kinds)), {row: self.shares(row) for row in able}
        busy = [row for row in able if min(self.hidden_from(row, group) for group in groups) < shared[row]]
        useful = [row for row in busy if shared[row] > self.claim.blocks]
        return max(useful, key=lambda row: (shared[row], -row.number), default=None)

    def where_parted(self) -> int:
        """The first token that no path in the tree has: the blocks that exist, and part of one that comes next."""
        first, there = self.walked * self.size, self.path[: self.walked + 1]
        identities = self.ask.identities[first : self.whole * self.size]
        next_ones = [path[-1] for path in self.state.tree.next_blocks(there)]
        return first + max((common_tokens(block, identities) for block in next_ones), default=0)

    # -- one token ---------------------------------------------------------------------------------------------------

    def reason(self, token: int) -> Reason:
        """The first that applies."""
        limit = self.ask.reuse_limit
        if not self.reads or (limit is not None and token >= limit):
            return POLICY
        if token >= self.usable:
            return ("last_token", None, None, None, None, 0)
        if token >= self.whole * self.size:
            return SHORT
        block = token // self.size
        reason = self.blocks[block] = self.blocks.get(block) or self.reason_of_block(block)
        return self.nothing_known(token, block) if reason == NEW else reason

    def reason_of_block(self, block: int) -> Reason:
        """What the group to blame for it says."""
        group, bound = self.culprit(block)
        if self.state.kinds[group].kind == "state":
            return self.no_snapshot(group, block, bound)
        return self.no_page(group, block)

    def nothing_known(self, token: int, block: int) -> Reason:
        """What a block shares with others is not new, but no whole block; what others have is not new to all."""
        if token < self.parted and block == self.walked:
            return SHORT
        if self.elsewhere is None:
            self.elsewhere = max(map(self.has, self.others()), default=0) if self.state.world.scopes else 0
        return ("other_scope", None, None, None, None, 0) if block < self.elsewhere else NEW

    def culprit(self, block: int) -> tuple[int, int]:
        """The group to blame for a block, and the edge below which it could not resume."""
        bound, groups = self.whole, range(len(self.state.kinds))
        while True:
            points = [self.own_point(group, bound) for group in groups]
            if min(points) <= block:
                return points.index(min(points)), bound
            bound = min(points)

    def own_point(self, group: int, bound: int) -> int:
        """The last edge up to `bound` at which a group could resume by itself."""
        edges = range(min(bound, self.walked), -1, -1)
        alone = next(edge for edge in edges if claims.resumable(self.state, self.found, group, edge))
        return max(alone, self.claim.blocks)  # a tail brings a state of its own

    def no_page(self, group: int, block: int) -> Reason:
        """Of what resuming behind a block needs, the last block that is not there."""
        kind = self.state.kinds[group]
        needed = reach.needed(kind, (block + 1) * self.size, self.size)
        missing = [other for other in needed if other not in self.found[group]] if block < self.walked else [block]
        hole = missing[-1]
        if self.row is not None and self.hidden_from(self.row, group) <= hole < self.shares(self.row):
            return ("under_way", group, None, None, name_of(self.row), 0)
        if hole in self.slow[group]:
            return ("slow", group, None, None, None, 0)
        if hole < self.known:
            loss = self.loss(group, hole)
            unknown: Reason = ("window" if kind.kind == "window" else "forgotten", group, None, None, None, 0)
            return unknown if loss is None else self.lost(loss, group)
        return NEW

    def lost(self, loss: Loss, group: int) -> Reason:
        """A page that is gone."""
        cause = "failed" if loss.why == SPOILT else "evicted"
        return (cause, group, max(0, self.state.now() - loss.when), loss.admission, None, loss.hint)

    def no_snapshot(self, group: int, block: int, bound: int) -> Reason:
        """The nearest snapshot from a block on that was there, or that somebody will take."""
        for ahead in range(block, bound):
            row = self.row
            to_come = row is not None and self.hidden_from(row, group) <= ahead < self.shares(row)
            if row is not None and to_come and row.pages[group][ahead : ahead + 1] not in ([], [None]):
                return ("under_way", group, None, None, name_of(row), 0)
            if ahead in self.slow[group]:
                return ("slow", group, None, None, None, 0)
            loss = self.loss(group, ahead) if ahead < self.known else None
            if loss is not None:
                return self.lost(loss, group)
        return ("snapshot", group, None, None, None, 0) if block < self.known else NEW

    # -- other scopes ------------------------------------------------------------------------------------------------

    def others(self) -> list[int]:
        """Scopes besides its own that have blocks, with pages or without, over the same encoder's input."""
        roots = {path[0] for path in self.state.tree.exists()} - {self.ask.root}
        mine = build.space(self.ask.encoder)
        return [root for root in roots if build.space(build.ORIGINS[root][1]) == mine]

    def has(self, root: int) -> int:
        """Leading blocks of the prompt after which every group could go on in another scope."""
        path = (root, *self.path[1:])
        return claims.longest(self.state, claims.pages_along(self.state, path), self.state.tree.depth(path))
