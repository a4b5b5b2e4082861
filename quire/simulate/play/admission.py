"""Admission in two phases: claim the whole batch, then admit what fits. One call each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quire import Batch, Claim, Prepared, Receipt, Refusal
from quire import Sequence as Live
from quire.core.admission.batch import SequenceSpan
from quire.simulate.play.timed_cache import TimedCache
from quire.simulate.play.token_budget import part_of


@dataclass(slots=True)
class AdmissionResult:
    """What one step computes, and what had been estimated for it when it was chosen."""

    spans: list[SequenceSpan] = field(default_factory=list)
    num_tokens: int = 0  # of those spans
    admitted: list[Live] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    estimate: int = 0  # tokens to compute, of those that were admitted and those that continue
    found: dict[Hashable, int] = field(default_factory=dict)  # first token to compute, of every request looked at
    lost: int = 0  # prompt tokens that were estimated to be there, and were not
    receipts: dict[Hashable, Receipt] = field(default_factory=dict)  # of those admitted, where receipts are made

    def add(self, sequence: Live, start: int, end: int) -> None:
        """The step computes these tokens."""
        self.spans.append((sequence, start, end))
        self.num_tokens += end - start

    def take(self, batch: Batch, start: int, tokens: int, explains: bool) -> None:
        """Add a batch of one request, for which so many tokens from `start` on were estimated."""
        self.refused += batch.refused
        if explains:
            self.receipts.update(receipts_of(batch))
        for sequence in batch.sequences:
            self.admitted.append(sequence)
            self.add(sequence, sequence.computed, batch.spans[sequence].end)
            self.estimate += tokens
            self.lost += max(0, start - sequence.computed)


def receipts_of(batch: Batch) -> dict[Hashable, Receipt]:
    """By request, of a cache that makes them."""
    return {sequence.id: receipt for sequence, receipt in zip(batch.sequences, batch.receipts, strict=True)}


class Admission(Protocol):
    """A way to choose and admit a batch."""

    def admit(self, ready: list[Prepared], continuing: Sequence[Live]) -> AdmissionResult:
        """Admit what fits of `ready`, in order, besides the next parts of `continuing`."""
        ...


class TwoPhase:
    """Quire's own way. The estimate is the claims' promise; what is computed is read from the sequences afterwards."""

    def __init__(self, cache: TimedCache) -> None:
        self._cache = cache
        self._explains = cache.config.receipts
        self._plain = len(cache.config.groups) == 1 and not cache.config.groups[0].bounded

    def admit(self, ready: list[Prepared], continuing: Sequence[Live]) -> AdmissionResult:
        """Hold everything, then decide, then move."""
        if not ready:
            return self._result(self._cache.go_on(continuing), {})
        claims = self._cache.claim(ready)
        starts = {claim.request.id: claim.start for claim in claims}
        if not (self._plain and len(claims)):
            return self._result(self._cache.admit(claims, continuing), starts)
        first, have = claims[0], self._cache.num_free(0)
        takes = self._takes(first)
        if takes <= have + 1 or not self._has_tokens(first, continuing):  # a partial hit may save a page: ask the cache
            return self._result(self._cache.admit(claims, continuing), starts)
        refused = claims.refused
        self._cache.drop(claims)  # an admission would say the same, after looking at it more closely
        result = self._result(self._cache.go_on(continuing), starts) if continuing else AdmissionResult(found=starts)
        free = self._cache.num_free(0)
        result.refused = [*refused, Refusal(first.request, "slots", takes + free - have, free, group=0)]
        return result

    def _has_tokens(self, claim: Claim, continuing: Sequence[Live]) -> bool:
        """Whether the budget leaves something for it: that is asked before slots are."""
        budget, chunk = self._cache.budgets.token_budget, self._cache.budgets.max_chunk
        if budget is None:
            return True
        left = budget - sum([min(chunk or budget, one.prompt_end - one.computed) for one in continuing])
        return left > 0 and part_of(claim.start, claim.start + claim.num_tokens, left, chunk) is not None

    def _takes(self, claim: Claim) -> int:
        """Slots that a claim takes besides the pages it holds on the device."""
        size = self._cache.config.block_size
        return -(-(claim.start + claim.num_tokens) // size) - claim.start // size + claim.onboards[0]

    def _result(self, batch: Batch, starts: dict[Hashable, int]) -> AdmissionResult:
        result = AdmissionResult(admitted=batch.sequences, refused=batch.refused, found=starts)
        if self._explains:
            result.receipts = receipts_of(batch)
        for sequence, start, end in batch._parts:
            computed, promised = sequence.computed, starts.get(sequence.id, start)
            result.add(sequence, computed, end)
            result.estimate += end - promised
            if computed < promised:
                result.lost += promised - computed
        return result
