"""Tiers for tests of the mover, plans by hand, and the meaning of a plan in its plainest form. Knows no batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from quire.core.records.plan import COLUMNS, Kind, Plan
from quire.tiers import ArenaTier, Bytes, PageLayout, TierError, TierInfo

from ..waits import PATIENCE

Place = tuple[int, int, int]  # group, tier, slot
Row = tuple[Kind, int, tuple[int, int], tuple[int, int], int]  # kind, group, (tier, slot) from, (tier, slot) to, tokens


def plan_of(number: int, *rows: Row) -> Plan:
    """A plan of these moves; the cache's own columns are left at -1."""
    moves = np.full((len(rows), COLUMNS), -1, np.int32)
    for index, (kind, group, source, target, tokens) in enumerate(rows):
        moves[index, :7] = (kind, group, *source, *target, tokens)
    return Plan(number, moves)


@st.composite
def rows_among(draw: st.DrawFn, slots: Sequence[Sequence[int]], block_size: int) -> Row:
    """Any move of any group between any two slots; `slots` by tier and group."""
    group = draw(st.integers(0, len(slots[0]) - 1))
    ends = []
    for _ in range(2):
        tier = draw(st.integers(0, len(slots) - 1))
        ends.append((tier, draw(st.integers(0, slots[tier][group] - 1))))
    return draw(st.sampled_from(Kind)), group, ends[0], ends[1], draw(st.integers(1, block_size))


class FlakyTier:
    """Memory without a view, whose slots can be lost and whose writes can be refused."""

    def __init__(
        self, name: str, num_slots: Sequence[int], page_bytes: Sequence[int], pool_of: Sequence[int] = ()
    ) -> None:
        self.arena = ArenaTier(name, num_slots, page_bytes, pool_of)
        self._first_of = self.arena.info().first_of
        self.lost: set[tuple[int, int]] = set()  # (first group of the pool, slot): reads fail until it is written
        self.full: set[tuple[int, int]] = set()  # (first group of the pool, slot): writes fail
        self.bug: Exception | None = None  # raised by every read
        self.calls: list[tuple[str, int]] = []  # what was called, with how many slots

    def info(self) -> TierInfo:
        return self.arena.info()

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        self.calls.append(("read", len(slots)))
        self.arena.read(group, slots, out)
        if self.bug:
            raise self.bug
        wrong = {slot: "bad sector" for slot in slots if (self._first_of[group], slot) in self.lost}
        for slot, buffer in zip(slots, out, strict=True):
            if slot in wrong:
                buffer[:] = 0xEE  # unspecified, so make it ugly
        if wrong:
            raise TierError(self.info().name, group, wrong)

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        self.calls.append(("write", len(slots)))
        self.arena.write(group, slots, data)
        wrong = {slot: "no space left" for slot in slots if (self._first_of[group], slot) in self.full}
        self.lost -= {(self._first_of[group], slot) for slot in slots if slot not in wrong}
        if wrong:
            raise TierError(self.info().name, group, wrong)

    def close(self) -> None:
        self.arena.close()


class GateTier(FlakyTier):
    """A tier whose reads wait until the gate is opened, and say when they are there."""

    def __init__(self, name: str, num_slots: Sequence[int], page_bytes: Sequence[int]) -> None:
        super().__init__(name, num_slots, page_bytes)
        self.gate = Event()
        self.reached = Event()

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        self.reached.set()
        assert self.gate.wait(PATIENCE)
        super().read(group, slots, out)


class Meaning:
    """What plans mean: one move after the other, on pages in a dict. A lost place cannot be read until written.

    `first_of`: by group the first of its pool, under which its pages are; each group itself without.
    """

    def __init__(
        self,
        layouts: Sequence[PageLayout],
        block_size: int,
        pages: dict[Place, Bytes],
        first_of: Sequence[int] | None = None,
    ) -> None:
        self.layouts = layouts
        self.first_of = range(len(layouts)) if first_of is None else first_of
        self.block_size = block_size
        self.pages = {place: held.copy() for place, held in pages.items()}
        self.known = {place: np.ones(len(held), bool) for place, held in pages.items()}  # False: any byte will do
        self.lost: set[Place] = set()
        self.full: set[Place] = set()  # cannot be written

    def run(self, plan: Plan) -> list[int]:
        """The moves that failed."""
        return [index for index, move in enumerate(plan.moves.tolist()) if not self._move(move)]

    def assert_held(self, pages: Mapping[Place, Bytes]) -> None:
        """Every page has the bytes that it has here, as far as they are known."""
        for place, held in pages.items():
            known = self.known[place]
            assert np.array_equal(held[known], self.pages[place][known]), place

    def _move(self, move: list[int]) -> bool:
        kind, group, src_tier, src_slot, dst_tier, dst_slot, tokens, *_ = move
        pool = self.first_of[group]
        source, target = (pool, src_tier, src_slot), (pool, dst_tier, dst_slot)
        reads = {source, target} if kind == Kind.EXCHANGE else {source}
        writes = {source, target} if kind == Kind.EXCHANGE else {target}
        if reads & self.lost or writes & self.full:
            self.lost |= writes
            for place in writes:
                self.known[place][:] = False
            return False
        self.lost -= writes
        counts = self._counts(group, tokens if kind == Kind.COPY else self.block_size)
        for held in (self.pages, self.known):
            old = held[target].copy()
            held[target][counts] = held[source][counts]
            if kind == Kind.EXCHANGE:
                held[source][:] = old
        return True

    def _counts(self, group: int, tokens: int) -> NDArray[np.bool_]:
        """Which bytes of a page belong to its first tokens."""
        layout = self.layouts[group]
        strip = np.arange(layout.page_bytes) % (layout.page_bytes // (layout.planes or 1))
        token = strip * self.block_size // (layout.page_bytes // (layout.planes or 1))
        return token < tokens if layout.planes else np.ones(layout.page_bytes, bool)
