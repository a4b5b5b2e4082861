"""Work and Turn: what one branch computes in a step, and a step as it was decided. Decides nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quire.core.admission.batch import Snapshot
from quire.core.records.request import Int32
from quire.core.records.span import Span
from quire.core.state.claim import Refusal
from quire.engine.model.packing import Segment
from quire.engine.step.runs.branch import Branch

NOT_READ = np.zeros(1, np.int32)
NO_ROWS = np.empty(0, np.int32)


class Work(NamedTuple):
    """What one branch computes in a step."""

    branch: Branch
    span: Span
    num_logits: int
    snapshots: tuple[Snapshot, ...] = ()  # states to write on the way

    def segment(self) -> Segment:
        """The same for the batch builder."""
        branch, span = self.branch, self.span
        assert branch.sequence is not None
        known = branch.tokens[span.start : span.end]  # drafts are not part of the answer yet
        if span.start >= branch.length:
            known = NOT_READ  # the device has it
        tokens = np.concatenate([known, branch.drafts]) if len(branch.drafts) else known
        return Segment(branch.sequence.row, span.start, tokens, self.num_logits, self.snapshots)


class RefusedBranch(NamedTuple):
    """A branch that can never run, and why."""

    branch: Branch
    refusal: Refusal


class Turn:
    """One step, decided: what to compute, and which branches can never run."""

    __slots__ = (
        "admitted", "in_flight", "made_way", "must_read", "passed_over", "refused", "rows", "shares", "works",
    )  # fmt: skip

    def __init__(self, *, in_flight: bool = False) -> None:
        self.in_flight = in_flight  # earlier steps have not been read: pages that branches give up now come back later
        self.must_read = False  # it lacks what comes back when they have been
        self.passed_over = 0  # waiting branches whose pages were on their way when it was decided
        self.shares = False  # a newcomer uses what this step, or one in flight, computes for another
        self.made_way = False  # some lost their pages to one that could not come in before
        self.rows: Int32 = NO_ROWS  # plain ones, that compute a token each; those still ready when it is packed
        self.works: dict[Branch, Work] = {}  # of all others
        self.admitted: list[Branch] = []
        self.refused: list[RefusedBranch] = []

    @property
    def num_tokens(self) -> int:
        """Tokens it computes."""
        return len(self.rows) + sum([len(work.span) for work in self.works.values()])
