"""Admission in two phases: claim the whole batch, then admit what fits. One call each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quire import Batch, Prepared, Refusal
from quire import Sequence as Live
from quire.tools.replay.play.timed_cache import Door

Edges = tuple[Live, int, int]  # what a sequence computes now, from and to


@dataclass(slots=True)
class Outcome:
    """What one step was told to compute, and what had been estimated for it when it was chosen."""

    edges: list[Edges] = field(default_factory=list)
    admitted: list[Live] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    estimate: int = 0  # tokens to compute, of those that were admitted and those that continue
    found: dict[Hashable, int] = field(default_factory=dict)  # first token to compute, of every request looked at
    lost: int = 0  # prompt tokens that were estimated to be there, and were not

    @property
    def num_tokens(self) -> int:
        """Prompt tokens that the step computes."""
        return sum([end - start for _, start, end in self.edges])

    @property
    def overshoot(self) -> int:
        """Tokens beyond the estimate."""
        return max(0, self.num_tokens - self.estimate)

    def take(self, batch: Batch, start: int, tokens: int) -> None:
        """Add a batch of one request, for which so many tokens from `start` on were estimated."""
        self.refused += batch.refused
        for sequence in batch.sequences:
            self.admitted.append(sequence)
            self.edges.append((sequence, sequence.computed, batch.spans[sequence].end))
            self.estimate += tokens
            self.lost += max(0, start - sequence.computed)


class Admission(Protocol):
    """A way to choose and admit a batch."""

    def admit(self, ready: list[Prepared], continuing: Sequence[Live]) -> Outcome:
        """Admit what fits of `ready`, in order, besides the next parts of `continuing`."""
        ...


class TwoPhase:
    """Quire's own way. The estimate is the claims' promise; what is computed is read from the sequences afterwards."""

    def __init__(self, door: Door) -> None:
        self.door = door

    def admit(self, ready: list[Prepared], continuing: Sequence[Live]) -> Outcome:
        """Hold everything, then decide, then move."""
        claims = self.door.claim(ready)
        starts = {claim.request.id: claim.start for claim in claims}
        batch = self.door.admit(claims, continuing)
        outcome = Outcome(admitted=batch.sequences, refused=batch.refused, found=starts)
        for sequence, span in batch.spans.items():
            promised = starts.get(sequence.id, span.start)
            outcome.edges.append((sequence, sequence.computed, span.end))
            outcome.estimate += span.end - promised
            outcome.lost += max(0, promised - sequence.computed)
        return outcome
