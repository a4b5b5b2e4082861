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
from numpy.typing import NDArray

from quire.core.records.request import Int32
from quire.core.records.span import Span
from quire.engine.sampling.sample_table import NO_SAMPLES, SampleTable
from quire.engine.step.outcomes import Outcome, Scored, Split, Unusable, emitted
from quire.engine.step.plain_rows import PlainBatch
from quire.engine.step.read_logits import NextTokens, UnreadTokens, Wanted, choose_tokens
from quire.engine.step.runs.branch import NO_DRAFTS, Branch, Finish
from quire.engine.step.runs.step_work import Work


class Advance:
    """What steps have computed, as outcomes."""

    def __init__(self, eos_ids: frozenset[int]) -> None:
        self._eos_ids = eos_ids
        self._is_eos = np.zeros(max(eos_ids, default=0) + 2, bool)  # by token id; the last place stands for all behind
        self._is_eos[list(eos_ids)] = True
        self.num_accepted = 0

    def choose(self, works: Sequence[Work], logits: torch.Tensor, plain: SampleTable = NO_SAMPLES) -> UnreadTokens:
        """The step is on its way; `logits` are those of its plain rows, then those its works wanted, in order."""
        wanted: list[Wanted] = []
        first = len(plain)
        for branch, span, count, _ in works:
            if count:
                made = span.end - count + 1 - len(branch.run.prompt)
                wanted.append(Wanted(branch, Span(first, first + count), made))
                first += count
        return choose_tokens(wanted, logits, plain)

    def begin(self, branch: Branch, first: int | Sequence[int] | torch.Tensor) -> list[Outcome]:
        """It began elsewhere: with its first token, or first tokens, or the logits [1, vocabulary] of its prompt."""
        if isinstance(first, torch.Tensor):
            made = branch.length - len(branch.run.prompt)
            read = choose_tokens([Wanted(branch, Span(0, 1), made)], first).read({branch})
            return [*map(Unusable, read.unusable), *self.outcomes(read)]
        return [emitted(branch, [first] if isinstance(first, int) else list(first), self._eos_ids)]

    def finishes(self, batch: PlainBatch, tokens: Int32, full: NDArray[np.bool_]) -> dict[int, Finish]:
        """Why answers of plain rows end with these tokens, by place; of `full` ones this is the last they may have."""
        ends: dict[int, Finish] = dict.fromkeys(full.nonzero()[0].tolist(), "length")
        for place in batch.stops:
            if tokens[place] in batch.branches[place].run.sampling.stop_ids:
                ends[place] = "stop"
        eos = self._is_eos.take(tokens, mode="clip") & batch.heeds_eos
        ends.update(dict.fromkeys(eos.nonzero()[0].tolist(), "eos"))
        return ends

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
