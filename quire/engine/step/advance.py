"""Advance: from a step's logits to outcomes: tokens chosen, drafts judged.

    choose: logits -> tokens on the device      read: -> on the host      judge: which drafts are right
    outcomes: what they mean for each branch

Only reading waits for the device. `steps_in_flight` commits; `apply_outcomes` decides what becomes of answers.
Runs no model, moves no branch, reports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from quire.core.records.span import Span
from quire.engine.step.outcomes import Outcome, Scored, Split, Unusable, emitted
from quire.engine.step.read_logits import NextTokens, UnreadTokens, choose_tokens
from quire.engine.step.runs.branch import NO_DRAFTS, Branch
from quire.engine.step.runs.step_work import Work


class Advance:
    """What steps have computed, as outcomes."""

    def __init__(self, eos_ids: frozenset[int]) -> None:
        self._eos_ids = eos_ids
        self.num_accepted = 0

    def choose(self, works: Sequence[Work], logits: torch.Tensor) -> UnreadTokens:
        """The step is on its way; `logits` are those its works wanted, in order."""
        ends = np.cumsum([work.num_logits for work in works])
        rows = {work.branch: Span(int(end) - work.num_logits, int(end)) for work, end in zip(works, ends, strict=True)}
        return choose_tokens([work.branch for work in works if work.num_logits], rows, logits)

    def begin(self, branch: Branch, first: int | Sequence[int] | torch.Tensor) -> list[Outcome]:
        """It began elsewhere: with its first token, or first tokens, or the logits [1, vocabulary] of its prompt."""
        if isinstance(first, torch.Tensor):
            read = choose_tokens([branch], {branch: Span(0, 1)}, first).read({branch})
            return [*map(Unusable, read.unusable), *self.outcomes(read)]
        return [emitted(branch, [first] if isinstance(first, int) else list(first), self._eos_ids)]

    def judge(self, branch: Branch, read: NextTokens) -> int:
        """A draft stands when it is what would have been chosen there; how many of the others are to be taken back."""
        drafts, tokens = branch.drafts.tolist(), read.tokens[branch]
        good = 0
        while good < len(drafts) and drafts[good] == tokens[good]:
            good += 1
        branch.drafts = NO_DRAFTS
        self.num_accepted += good
        read.tokens[branch] = tokens[: good + 1]
        return len(drafts) - good

    def outcomes(self, read: NextTokens) -> list[Outcome]:
        """What was read, for each branch of which there is something."""
        outcomes: list[Outcome] = []
        for branch, tokens in read.tokens.items():
            logprobs = read.logprobs.get(branch, ())
            if branch.splits:
                outcomes.append(Split(branch, tokens, logprobs))
            else:
                outcomes.append(emitted(branch, tokens, self._eos_ids, logprobs))
        outcomes += [Scored(beam, scores) for beam, scores in read.scores.items()]
        return outcomes
