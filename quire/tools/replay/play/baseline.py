"""The baseline: admission one at a time, from public calls, as engines do that estimate a batch first.

Probe every request of the batch, choose those whose estimates fit the token budget, admit them one after the other.
Admitting one may push out what a later one was counted on to reuse: its step then computes more than was estimated. A
prompt that was to be computed in part is still cut to the tokens that were planned for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire import Prepared, Probe
from quire import Sequence as Live
from quire.tools.replay.play.admission import Outcome
from quire.tools.replay.play.timed_cache import Door


class OneAtATime:
    """Chooses by estimates, which nothing holds to."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.budget = door.budgets["token_budget"]
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
        chosen = self._chosen(ready, left, outcome)
        for prepared, found, tokens in chosen:
            whole = found.start + tokens == found.stop
            chunk = self.door.budgets["max_chunk"] if whole else max(tokens, self.block_size)
            batch = self.door.add_one(prepared, chunk)
            outcome.take(batch, found.start, tokens)
            if not batch.sequences and not batch.refused[0].never:
                break
        if not chosen and ready and not outcome.edges:
            # alone in the step it does not fit: let the cache say so, with its numbers
            batch = self.door.admit(self.door.claim(ready[:1]), ())
            outcome.take(batch, outcome.found[ready[0].request.id], batch.num_tokens)
        return outcome

    def _chosen(self, ready: list[Prepared], left: int | None, outcome: Outcome) -> list[tuple[Prepared, Probe, int]]:
        """Requests that fit by their estimates, in order, each with what was found and its tokens of this step."""
        chosen: list[tuple[Prepared, Probe, int]] = []
        for prepared, found in zip(ready, self.door.probe(ready), strict=True):
            outcome.found[prepared.request.id] = found.start
            tokens = self._part(found.start, found.stop, left)
            if tokens is None:
                break
            if left is not None:
                left -= tokens
            chosen.append((prepared, found, tokens))
        return chosen

    def _part(self, start: int, end: int, left: int | None) -> int | None:
        """Tokens of one step under the budget; a part of a prompt ends on a block edge. None: it does not fit.

        `end` is where the step ends at the latest: the prompt's end, or a snapshot of a recurrent state before it.
        """
        tokens, chunk = end - start, self.door.budgets["max_chunk"]
        if chunk is not None:
            tokens = min(tokens, chunk, tokens if left is None else left)
            if tokens < end - start:
                tokens = (start + tokens) // self.block_size * self.block_size - start
        fits = tokens > 0 and (left is None or tokens <= left)
        return tokens if fits else None
