"""Plan: the ordered page moves that make a decision true, as one array. Knows no bytes and no tiers' insides.

    kind  group  src_tier src_slot  dst_tier dst_slot  tokens  page stamp  page2 stamp2

A plan means its moves one after the other. `tokens` is the leading part of the page that counts. The last four
columns are the core's own: which page lands in dst (and which one in src, for an exchange, or is copied from a colder
tier), to find out what a failed move has spoilt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Moves = NDArray[np.int32]
COLUMNS = 11


class MoveColumn(IntEnum):
    """Where things are in a move."""

    KIND = 0
    GROUP = 1
    SRC_TIER = 2
    SRC_SLOT = 3
    DST_TIER = 4
    DST_SLOT = 5
    PAGE = 7
    STAMP = 8


class Kind(IntEnum):
    """What a move is for; the first three copy src to dst, an exchange swaps them."""

    ONBOARD = 0
    OFFLOAD = 1
    COPY = 2
    EXCHANGE = 3


@dataclass(frozen=True, slots=True)
class Move:
    """One row of a plan, for people."""

    kind: Kind
    group: int
    src: tuple[int, int]  # tier, slot
    dst: tuple[int, int]
    tokens: int


class Plan:
    """Moves of one decision. Run it, then call `Cache.finish`.

    A `background` plan is run beside the steps' plans, late and in any order: no plan of a step touches its slots until
    it is finished. It begins when the step plan `after`, and all before that, have run (-1: at once).
    """

    __slots__ = ("__weakref__", "after", "background", "moves", "number", "pool_of")

    def __init__(
        self,
        number: int,
        moves: Moves,
        background: bool = False,
        after: int = -1,
        pool_of: tuple[int, ...] | None = None,
    ) -> None:
        self.number = number
        self.moves = moves
        self.background = background
        self.after = after
        self.pool_of = pool_of  # by group: slots of one pool are the same memory; None: every group has its own

    def __len__(self) -> int:
        return len(self.moves)

    def __iter__(self) -> Iterator[Move]:
        for kind, group, src_tier, src, dst_tier, dst, tokens, *_ in self.moves.tolist():
            yield Move(Kind(kind), group, (src_tier, src), (dst_tier, dst), tokens)

    def __repr__(self) -> str:
        return f"Plan({self.number}, {len(self.moves)} moves)"

    def copy(self) -> Plan:
        """Another plan of the same moves: what the cache keeps of one that its caller may lose."""
        return Plan(self.number, self.moves, self.background, self.after, self.pool_of)

    def touches(self, group: int, slots: NDArray[np.int32]) -> bool:
        """Some move reads or writes one of these device slots."""
        home = group if self.pool_of is None else self.pool_of[group]
        mine = self.moves[self._pools(self.moves) == home]
        read = mine[mine[:, MoveColumn.SRC_TIER] == 0, MoveColumn.SRC_SLOT]
        written = mine[mine[:, MoveColumn.DST_TIER] == 0, MoveColumn.DST_SLOT]
        return bool(np.isin(slots, np.concatenate([read, written])).any())

    def writes_source_of(self, background: Moves) -> NDArray[np.bool_]:
        """Which background moves would read what a move here writes, and may fail to."""
        swaps = self.moves[self.moves[:, MoveColumn.KIND] == Kind.EXCHANGE]
        return np.isin(self._sources(background), np.concatenate([self._targets(self.moves), self._sources(swaps)]))

    def collides(self, background: Moves) -> bool:
        """Some background move would write what a move here reads or writes, or read what one writes."""
        swaps = self.moves[self.moves[:, MoveColumn.KIND] == Kind.EXCHANGE]
        read, written = self._sources(self.moves), np.concatenate([self._targets(self.moves), self._sources(swaps)])
        if np.isin(self._sources(background), written).any():
            return True
        return bool(np.isin(self._targets(background), np.concatenate([read, written])).any())

    def count(self, kind: Kind) -> int:
        """Moves of one kind."""
        return int(np.count_nonzero(self.moves[:, MoveColumn.KIND] == kind))

    def _pools(self, moves: Moves) -> NDArray[np.int64]:
        """Whose memory each move is in."""
        groups = moves[:, MoveColumn.GROUP].astype(np.int64)
        return groups if self.pool_of is None else np.array(self.pool_of, np.int64)[groups]

    def _sources(self, moves: Moves) -> NDArray[np.int64]:
        return self._places(moves, MoveColumn.SRC_TIER)

    def _targets(self, moves: Moves) -> NDArray[np.int64]:
        return self._places(moves, MoveColumn.DST_TIER)

    def _places(self, moves: Moves, tier: MoveColumn) -> NDArray[np.int64]:
        """Pool, tier and slot as one number."""
        wide = moves.astype(np.int64)
        found: NDArray[np.int64] = (self._pools(moves) << 40) | (wide[:, tier] << 32) | wide[:, tier + 1]
        return found


NO_MOVES: Moves = np.empty((0, COLUMNS), np.int32)
NO_MOVES.flags.writeable = False
