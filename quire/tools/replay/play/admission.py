"""Admission in two phases: claim the whole batch, then admit what fits. One call each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from quire import Batch, Prepared, Refusal
from quire import Sequence as Live
from quire.tools.replay.play.timed_cache import TimedCache


class PromptSpan(NamedTuple):
    """Prompt tokens that a sequence computes in one step."""

    sequence: Live
    start: int
    end: int


@dataclass(slots=True)
class AdmissionResult:
    """What one step was told to compute, and what had been estimated for it when it was chosen."""

    spans: list[PromptSpan] = field(default_factory=list)
    admitted: list[Live] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    estimate: int = 0  # tokens to compute, of those that were admitted and those that continue
    found: dict[Hashable, int] = field(default_factory=dict)  # first token to compute, of every request looked at
    lost: int = 0  # prompt tokens that were estimated to be there, and were not

    @property
    def num_tokens(self) -> int:
        """Prompt tokens that the step computes."""
        return sum([span.end - span.start for span in self.spans])

    @property
    def overshoot(self) -> int:
        """Tokens beyond the estimate."""
        return max(0, self.num_tokens - self.estimate)

    def take(self, batch: Batch, start: int, tokens: int) -> None:
        """Add a batch of one request, for which so many tokens from `start` on were estimated."""
        self.refused += batch.refused
        for sequence in batch.sequences:
            self.admitted.append(sequence)
            self.spans.append(PromptSpan(sequence, sequence.computed, batch.spans[sequence].end))
            self.estimate += tokens
            self.lost += max(0, start - sequence.computed)


class Admission(Protocol):
    """A way to choose and admit a batch."""

    def admit(self, ready: list[Prepared], continuing: Sequence[Live]) -> AdmissionResult:
        """Admit what fits of `ready`, in order, besides the next parts of `continuing`."""
        ...


class TwoPhase:
    """Quire's own way. The estimate is the claims' promise; what is computed is read from the sequences afterwards."""

    def __init__(self, cache: TimedCache) -> None:
        self._cache = cache

    def admit(self, ready: list[Prepared], continuing: Sequence[Live]) -> AdmissionResult:
        """Hold everything, then decide, then move."""
        claims = self._cache.claim(ready)
        starts = {claim.request.id: claim.start for claim in claims}
        batch = self._cache.admit(claims, continuing)
        result = AdmissionResult(admitted=batch.sequences, refused=batch.refused, found=starts)
        for sequence, span in batch.spans.items():
            promised = starts.get(sequence.id, span.start)
            result.spans.append(PromptSpan(sequence, sequence.computed, span.end))
            result.estimate += span.end - promised
            result.lost += max(0, promised - sequence.computed)
        return result
