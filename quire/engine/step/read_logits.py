"""Reading logits: which tokens each branch of a step would go on with. Knows no cache and no scheduler."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from quire.core.records.span import Span
from quire.engine.step.branch import Branch
from quire.engine.step.logprobs import TokenLogprobs, logprobs_of
from quire.engine.step.sample import log_probs, sample
from quire.engine.step.sample_row import SampleRow

LogitRows = dict[Branch, Span]  # which rows of a step's logits are a branch's


class NextTokens(NamedTuple):
    """What the logits of a step say."""

    tokens: dict[Branch, list[int]]  # one per position of a branch; at a fork one per answer
    logprobs: dict[Branch, list[TokenLogprobs]]  # of these tokens, where they were asked for
    scores: dict[Branch, torch.Tensor]  # of beams the log-probabilities of all tokens


def read_logits(branches: list[Branch], rows: LogitRows, logits: torch.Tensor) -> NextTokens:
    """For every branch; InputError when some of the logits are no numbers."""
    beams = [branch for branch in branches if branch.run.beams is not None]
    scores: dict[Branch, torch.Tensor] = {}
    if beams:
        table = log_probs(logits[[rows[beam].start for beam in beams]])
        scores = dict(zip(beams, table, strict=True))
    tokens, logprobs = _sampled([branch for branch in branches if branch not in scores], rows, logits)
    for branch in branches:
        if branch.run.keeps_logits:
            branch.run.logits = logits[rows[branch].end - 1].float().cpu()
    return NextTokens(tokens, logprobs, scores)


def _sampled(
    branches: list[Branch], rows: LogitRows, logits: torch.Tensor
) -> tuple[dict[Branch, list[int]], dict[Branch, list[TokenLogprobs]]]:
    wanted: list[SampleRow] = []
    places: list[int] = []
    spans: dict[Branch, slice] = {}
    for branch in branches:
        first, last = rows[branch].start, rows[branch].end
        mine = _sample_rows(branch, last - first)
        spans[branch] = slice(len(places), len(places) + len(mine))
        wanted += mine
        places += [first] * len(mine) if splits(branch) else range(first, last)
    if not places:
        return {}, {}
    whole = places == list(range(len(logits)))
    table = logits if whole else logits[torch.tensor(places, device=logits.device)]
    tokens = sample(table, wanted)
    asked = {branch: span for branch, span in spans.items() if branch.run.sampling.logprobs is not None}
    return {branch: tokens[span] for branch, span in spans.items()}, _logprobs(table, tokens, asked)


def _sample_rows(branch: Branch, count: int) -> list[SampleRow]:
    """How the tokens of `count` positions are chosen: behind the answer, and behind each draft as if it were right."""
    run, made = branch.run, branch.length - len(branch.run.prompt)
    sampling, seed, rules = run.sampling, run.seed, run.rules
    mask = None if branch.mask is None else branch.mask.words()
    if splits(branch):
        return [SampleRow(sampling, seed, nth, made, rules, mask=mask) for nth in range(sampling.n)]
    if mask is not None:  # it has no drafts
        return [SampleRow(sampling, seed, branch.index, made, rules, branch.answer, mask)]
    if rules is None:
        return [SampleRow(sampling, seed, branch.index, made + nth) for nth in range(count)]
    text = np.concatenate([branch.answer, branch.drafts])
    return [SampleRow(sampling, seed, branch.index, made + nth, rules, text[: made + nth]) for nth in range(count)]


def _logprobs(table: torch.Tensor, tokens: list[int], asked: dict[Branch, slice]) -> dict[Branch, list[TokenLogprobs]]:
    """Of all who asked, in one go."""
    if not asked:
        return {}
    places = [place for span in asked.values() for place in range(span.start, span.stop)]
    counts = [branch.run.sampling.logprobs or 0 for branch, span in asked.items() for _ in range(span.start, span.stop)]
    chosen = [max(0, tokens[place]) for place in places]  # where rules leave no token there is no run any more
    found = iter(logprobs_of(table[places], chosen, counts))
    return {branch: [next(found) for _ in range(span.start, span.stop)] for branch, span in asked.items()}


def splits(branch: Branch) -> bool:
    """Its logits are the first of a run with several answers: each answer goes its own way from here."""
    run = branch.run
    return run.sampling.n > 1 and run.beams is None and len(run.branches) == 1 and not run.answers[0].tokens
