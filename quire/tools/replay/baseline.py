"""The baseline: admission one at a time, from public calls, as engines do it today.

Probe every request of the batch, choose those whose estimates fit the token budget, admit them one after the other.
Admitting one may push out what a later one was counted on to reuse: its step then computes more than was estimated. A
prompt that was to be computed in part is still cut to the tokens that were planned for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire import Prepared
from quire import Sequence as Live
from quire.tools.replay.admission import Outcome
from quire.tools.replay.door import Door


class OneAtATime:
    """Chooses by estimates, which nothing holds to."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.budget = door.budgets["token_budget"]
        self.max_chunk = door.budgets["max_chunk"]
        self.block_size = door.config.block_size

    def admit(self, ready: list[Prepared], continuing: Sequence[Live]) -> Outcome:
        """Estimate all, then admit one by one; the first that finds no slots ends the batch."""
        outcome = Outcome()
        left = self.budget
        if continuing:
            batch = self.door.admit(self.door.claim([]), continuing)
            outcome.edges += [(sequence, span.start, span.end) for sequence, span in batch.spans.items()]
            outcome.estimate = outcome.num_tokens
            if left is not None:
                left -= outcome.num_tokens
            if len(batch.spans) < len(continuing):
                return outcome  # the budget is used up
        for prepared, start, tokens in self._chosen(ready, left, outcome):
            whole = start + tokens == prepared.end
            batch = self.door.add_one(prepared, self.max_chunk if whole else max(tokens, self.block_size))
            outcome.refused += batch.refused
            if not batch.sequences:
                if batch.refused[0].never:
                    continue
                break
            (sequence,) = batch.sequences
            outcome.admitted.append(sequence)
            outcome.edges.append((sequence, sequence.computed, batch.spans[sequence].end))
            outcome.estimate += tokens
            outcome.lost += max(0, start - sequence.computed)
        return outcome

    def _chosen(self, ready: list[Prepared], left: int | None, outcome: Outcome) -> list[tuple[Prepared, int, int]]:
        """Requests that fit by their estimates, in order, each with its estimated start and tokens of this step."""
        chosen: list[tuple[Prepared, int, int]] = []
        for prepared, found in zip(ready, self.door.probe(ready), strict=True):
            outcome.found[prepared.request.id] = found.start
            tokens = self._part(found.start, prepared.end, left)
            if tokens is None:
                break
            if left is not None:
                left -= tokens
            chosen.append((prepared, found.start, tokens))
        if not chosen and ready and not outcome.edges:
            # alone in the step it does not fit: let the cache say so, with its numbers
            claims = self.door.claim(ready[:1])
            outcome.refused += self.door.admit(claims, ()).refused
        return chosen

    def _part(self, start: int, end: int, left: int | None) -> int | None:
        """Tokens of one step under the budget; a part of a prompt ends on a block edge. None: it does not fit."""
        tokens = end - start
        if self.max_chunk is not None:
            tokens = min(tokens, self.max_chunk, tokens if left is None else left)
            if tokens < end - start:
                tokens = (start + tokens) // self.block_size * self.block_size - start
        fits = tokens > 0 and (left is None or tokens <= left)
        return tokens if fits else None
