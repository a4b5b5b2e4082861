"""Reading logits: which tokens each branch of a step would go on with. Knows no cache and no scheduler."""

from __future__ import annotations

from typing import NamedTuple

import torch

from quire.core.records.span import Span
from quire.engine.step.branch import Branch
from quire.engine.step.sample import SampleRow, log_probs, sample

LogitRows = dict[Branch, Span]  # which rows of a step's logits are a branch's


class NextTokens(NamedTuple):
    """What the logits of a step say."""

    tokens: dict[Branch, list[int]]  # one per position of a branch; at a fork one per answer
    scores: dict[Branch, torch.Tensor]  # of beams the log-probabilities of all tokens


def read_logits(branches: list[Branch], rows: LogitRows, logits: torch.Tensor) -> NextTokens:
    """For every branch; InputError when some of the logits are no numbers."""
    beams = [branch for branch in branches if branch.run.beams is not None]
    scores: dict[Branch, torch.Tensor] = {}
    if beams:
        table = log_probs(logits[[rows[beam].start for beam in beams]])
        scores = dict(zip(beams, table, strict=True))
    found = NextTokens(_sampled([branch for branch in branches if branch not in scores], rows, logits), scores)
    for branch in branches:
        if branch.run.keeps_logits:
            branch.run.logits = logits[rows[branch].end - 1].float().cpu()
    return found


def _sampled(branches: list[Branch], rows: LogitRows, logits: torch.Tensor) -> dict[Branch, list[int]]:
    wanted: list[SampleRow] = []
    places: list[int] = []
    ends: list[int] = []
    for branch in branches:
        first, last = rows[branch].start, rows[branch].end
        run, made = branch.run, len(branch.answer)
        if splits(branch):
            wanted += [SampleRow(run.sampling, run.seed, nth, made) for nth in range(run.sampling.n)]
            places += [first] * run.sampling.n
        else:
            wanted += [SampleRow(run.sampling, run.seed, branch.index, made + nth) for nth in range(last - first)]
            places += range(first, last)
        ends.append(len(places))
    if not places:
        return {}
    whole = places == list(range(len(logits)))
    tokens = sample(logits if whole else logits[torch.tensor(places, device=logits.device)], wanted)
    return {branch: tokens[first:last] for branch, first, last in zip(branches, [0, *ends], ends, strict=False)}


def splits(branch: Branch) -> bool:
    """Its logits are the first of a run with several answers: each answer goes its own way from here."""
    run = branch.run
    return run.sampling.n > 1 and run.beams is None and len(run.branches) == 1 and not run.answers[0].tokens
