"""Advance: from a step's logits to outcomes: tokens sampled, drafts judged, KV committed.

    sample: logits -> tokens on the host      commit: trim rejected drafts -> commit -> an outcome for each branch

Sampling waits for the device; committing needs its tokens. `apply_outcomes` decides what becomes of answers.
Runs no model, moves no branch, reports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from quire.core.cache import Cache
from quire.core.records.errors import InputError
from quire.core.records.span import Span
from quire.engine.sampling.sample import broken
from quire.engine.step.outcomes import Outcome, Scored, Split, Unusable, emitted
from quire.engine.step.read_logits import LogitRows, NextTokens, read_logits, splits
from quire.engine.step.runs.branch import NO_DRAFTS, Branch
from quire.engine.step.runs.step_work import Work
from quire.engine.step.schedule import Scheduler


class Sampled(NamedTuple):
    """The tokens of a step, on the host."""

    read: NextTokens
    unusable: list[Unusable]  # nothing of theirs, nor of their runs, was read


class Advance:
    """What steps have computed, as outcomes."""

    def __init__(self, cache: Cache, scheduler: Scheduler, eos_ids: frozenset[int]) -> None:
        self._cache, self._scheduler, self._eos_ids = cache, scheduler, eos_ids
        self.num_accepted = 0

    def sample(self, works: Sequence[Work], logits: torch.Tensor) -> Sampled:
        """The step has run; `logits` are those its works wanted, in order."""
        ends = np.cumsum([work.num_logits for work in works])
        rows = {work.branch: Span(int(end) - work.num_logits, int(end)) for work, end in zip(works, ends, strict=True)}
        return _sampled([work.branch for work in works if work.num_logits], rows, logits)

    def commit(self, works: Sequence[Work], sampled: Sampled, now: float) -> list[Outcome]:
        """Their KV exists, as far as drafts were right. `now`: when the tokens were on the host."""
        read = sampled.read
        for branch in (*read.tokens, *read.scores):
            if not branch.run.done:
                times = branch.run.times
                times.first_token, times.last_token = times.first_token or now, now
        for branch in read.tokens:
            if len(branch.drafts) and not branch.run.done:
                read.tokens[branch] = self._judge(branch, read.tokens[branch])
        self._scheduler.rounds.spend(works)
        self._commit([work for work in works if work.branch.sequence is not None])
        return self._outcomes(read)

    def begin(self, branch: Branch, first: int | Sequence[int] | torch.Tensor) -> list[Outcome]:
        """It began elsewhere: with its first token, or first tokens, or the logits [1, vocabulary] of its prompt."""
        if isinstance(first, torch.Tensor):
            sampled = _sampled([branch], {branch: Span(0, 1)}, first)
            return [*sampled.unusable, *self._outcomes(sampled.read)]
        return [emitted(branch, [first] if isinstance(first, int) else list(first), self._eos_ids)]

    def _outcomes(self, read: NextTokens) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for branch, tokens in read.tokens.items():
            logprobs = read.logprobs.get(branch, ())
            if splits(branch):
                outcomes.append(Split(branch, tokens, logprobs))
            else:
                outcomes.append(emitted(branch, tokens, self._eos_ids, logprobs))
        outcomes += [Scored(beam, scores) for beam, scores in read.scores.items()]
        return outcomes

    def _judge(self, branch: Branch, tokens: list[int]) -> list[int]:
        """A draft stands when it is what would have been sampled there; the rest is taken back."""
        assert branch.sequence is not None
        drafts = branch.drafts.tolist()
        good = 0
        while good < len(drafts) and drafts[good] == tokens[good]:
            good += 1
        if good < len(drafts):
            self._cache.trim(branch.sequence, len(drafts) - good)
        branch.drafts = NO_DRAFTS
        self.num_accepted += good
        return tokens[: good + 1]

    def _commit(self, works: Sequence[Work]) -> None:
        """KV of everything that ran exists; decoding rows in one call."""
        ready, sequences = [], []
        for work in works:
            assert work.branch.sequence is not None
            work.branch.run.computed += len(work.span)
            if work.branch in self._scheduler.ready:
                ready.append(work.branch.sequence.row)
            else:
                sequences.append(work.branch.sequence)
        if ready:
            self._cache.commit(np.array(ready, np.int32))
        if sequences:
            self._cache.commit(sequences)


def _sampled(branches: list[Branch], rows: LogitRows, logits: torch.Tensor) -> Sampled:
    """What the logits say; runs with a branch whose logits are not numbers are left out, and the others go on."""
    try:
        return Sampled(read_logits(branches, rows, logits), [])
    except InputError:
        bad = set(broken(logits))
        wrong = [one for one in branches if bad.intersection(range(rows[one].start, rows[one].end))]
        runs = {one.run.id for one in wrong}
        good = [one for one in branches if one.run.id not in runs]
        return Sampled(read_logits(good, rows, logits), [Unusable(one) for one in wrong])
