"""The baseline: admission one at a time, from public calls, as engines do that estimate a batch first.

Probe every request of the batch, choose those whose estimates fit the token budget, admit them one after the other.
Admitting one may push out what a later one was going to reuse: its step then computes more than was estimated. A
prompt that was to be computed in part is still cut to the tokens that were planned for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire import Prepared, Probe
from quire import Sequence as Live
from quire.simulate.play.admission import AdmissionResult
from quire.simulate.play.timed_cache import TimedCache
from quire.simulate.play.token_budget import part_of


class _Chosen(NamedTuple):
    """A request that fits by its estimate."""

    prepared: Prepared
    found: Probe
    tokens: int  # of this step


class OneAtATime:
    """Chooses by estimates, which nothing holds to."""

    def __init__(self, cache: TimedCache) -> None:
        self._cache = cache
        self._budget = cache.budgets.token_budget
        self._explains = cache.config.receipts

    def admit(self, ready: list[Prepared], continuing: Sequence[Live]) -> AdmissionResult:
        """Estimate all, then admit one by one; the first that finds no slots ends the batch."""
        result = AdmissionResult()
        left = self._budget
        if continuing:
            batch = self._cache.admit(self._cache.claim([]), continuing)
            for sequence, span in batch.spans.items():
                result.add(sequence, span.start, span.end)
            result.estimate = result.num_tokens
            if left is not None:
                left -= result.num_tokens
            if len(batch.spans) < len(continuing):
                return result  # the budget is used up
        chosen = self._chosen(ready, left, result)
        for one in chosen:
            whole = one.found.start + one.tokens == one.found.stop
            chunk = self._cache.budgets.max_chunk if whole else one.tokens
            batch = self._cache.add_one(one.prepared, chunk)
            result.take(batch, one.found.start, one.tokens, self._explains)
            if not batch.sequences and not batch.refused[0].never:
                break
        if not chosen and ready and not result.spans:
            # alone in the step it does not fit: let the cache say so, with its numbers
            batch = self._cache.admit(self._cache.claim(ready[:1]), ())
            result.take(batch, result.found[ready[0].request.id], batch.num_tokens, self._explains)
        return result

    def _chosen(self, ready: list[Prepared], left: int | None, result: AdmissionResult) -> list[_Chosen]:
        """Requests that fit by their estimates, in order."""
        chosen: list[_Chosen] = []
        for prepared, found in zip(ready, self._cache.probe(ready), strict=True):
            result.found[prepared.request.id] = found.start
            tokens = part_of(found.start, found.stop, left, self._cache.budgets.max_chunk)
            if tokens is None:
                break
            if left is not None:
                left -= tokens
            chosen.append(_Chosen(prepared, found, tokens))
        return chosen
