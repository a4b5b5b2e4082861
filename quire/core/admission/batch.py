"""Batch: what one admission decided, as the caller sees it. Knows no pages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from quire.core.records.errors import StateError, shown
from quire.core.records.plan import Plan
from quire.core.records.reports.receipt import Receipt
from quire.core.records.span import Span
from quire.core.state.claim import RECEIPTS_OFF, Claim, Promise, Refusal
from quire.core.state.sequence import Sequence

SequenceSpan = tuple[Sequence, int, int]  # what a sequence computes now: from and to; most never ask for the Span


class Snapshot(NamedTuple):
    """A state that a step must write while it computes a span: of which group, after how many tokens, where to."""

    group: int
    position: int
    slot: int


Snapshots = Mapping[Sequence, tuple[Snapshot, ...]]
NO_SNAPSHOTS: Snapshots = MappingProxyType({})


class Batch:
    """What one admission decided: sequences in order, the span each computes now, the moves, and the refusals."""

    __slots__ = ("_claims", "_parts", "_spans", "plan", "refused", "sequences", "snapshots", "waiting")

    def __init__(
        self,
        sequences: list[Sequence],
        parts: list[SequenceSpan],
        plan: Plan,
        refused: list[Refusal],
        waiting: list[Sequence],
        claims: list[Promise] | None = None,
        *,
        snapshots: Snapshots = NO_SNAPSHOTS,
    ) -> None:
        self.sequences = sequences
        self.plan = plan
        self.refused = refused
        self.waiting = waiting  # continuing ones without a span: no budget left, or open claims hold what they need
        self.snapshots = snapshots  # states to write inside the spans, where groups are `snapshot_inside`
        self._parts = parts
        self._claims = claims  # of the sequences, for their receipts; None: there are none
        self._spans: dict[Sequence, Span] | None = None

    @property
    def spans(self) -> dict[Sequence, Span]:
        """What to compute in this step; continuing sequences first."""
        if self._spans is None:
            self._spans = {sequence: Span(start, end) for sequence, start, end in self._parts}
        return self._spans

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Why each of the sequences missed what it missed, as things were when it was claimed; in their order."""
        if self._claims is None:
            raise StateError(RECEIPTS_OFF)
        return tuple(Claim(promise).receipt for promise in self._claims)

    @property
    def num_tokens(self) -> int:
        """Tokens this step computes: never more than the budget."""
        return sum([end - start for _, start, end in self._parts])

    def __repr__(self) -> str:
        who = f"{len(self.sequences)} sequences, {len(self.refused)} refused, {len(self.waiting)} waiting"
        return f"Batch({who}, {self.num_tokens} tokens, {shown(self.plan)})"
