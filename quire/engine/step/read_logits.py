"""Reading logits: which tokens each branch of a step would go on with. Knows no cache and no scheduler."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from quire.core.records.span import Span
from quire.engine.sampling.sample import log_probs, sample
from quire.engine.sampling.sample_row import SampleRow
from quire.engine.sampling.token_logprobs import TokenLogprobs, logprobs_of
from quire.engine.step.runs.branch import Branch

LogitRows = dict[Branch, Span]  # which rows of a step's logits are a branch's


class NextTokens(NamedTuple):
    """What the logits of a step say."""

    tokens: dict[Branch, list[int]]  # one per position of a branch; at a fork one per answer
    logprobs: dict[Branch, list[TokenLogprobs]]  # of these tokens, where they were asked for
    scores: dict[Branch, torch.Tensor]  # of beams the log-probabilities of all tokens


def read_logits(branches: list[Branch], rows: LogitRows, logits: torch.Tensor) -> NextTokens:
    """For every branch; InputError when some of the logits are not numbers."""
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
    ends: list[int] = []
    for branch in branches:
        first, last = rows[branch].start, rows[branch].end
        run, made = branch.run, branch.length - len(branch.run.prompt)
        if splits(branch):
            mask = None if branch.mask is None else branch.mask.words()
            wanted += [
                SampleRow(run.sampling, run.seed, nth, made, run.rules, mask=mask) for nth in range(run.sampling.n)
            ]
            places += [first] * run.sampling.n
        else:
            if run.rules is None and branch.mask is None:
                wanted += [SampleRow(run.sampling, run.seed, branch.index, made + nth) for nth in range(last - first)]
            else:
                wanted += _ruled_rows(branch, made, last - first)
            places += range(first, last)
        ends.append(len(places))
    if not places:
        return {}, {}
    whole = places == list(range(len(logits)))
    table = logits if whole else logits[torch.tensor(places, device=logits.device)]
    tokens = sample(table, wanted)
    spans = dict(zip(branches, map(slice, [0, *ends], ends), strict=True))
    logprob_spans = {branch: span for branch, span in spans.items() if branch.run.sampling.logprobs is not None}
    return {branch: tokens[span] for branch, span in spans.items()}, _logprobs(table, tokens, logprob_spans)


def _ruled_rows(branch: Branch, made: int, count: int) -> list[SampleRow]:
    """Rows behind an answer of `made` tokens, and behind each draft as if it were right; with a mask there are none."""
    run, mask = branch.run, None if branch.mask is None else branch.mask.words()
    text = np.concatenate([branch.answer, branch.drafts])
    return [
        SampleRow(run.sampling, run.seed, branch.index, made + nth, run.rules, text[: made + nth], mask)
        for nth in range(count)
    ]


def _logprobs(table: torch.Tensor, tokens: list[int], asked: dict[Branch, slice]) -> dict[Branch, list[TokenLogprobs]]:
    """Of all who asked, in one go."""
    if not asked:
        return {}
    places = [place for span in asked.values() for place in range(span.start, span.stop)]
    counts = [branch.run.sampling.logprobs or 0 for branch, span in asked.items() for _ in range(span.start, span.stop)]
    chosen = [max(0, tokens[place]) for place in places]  # where rules leave no token there is no run any more
    logprobs = iter(logprobs_of(table[places], chosen, counts))
    return {branch: [next(logprobs) for _ in range(span.start, span.stop)] for branch, span in asked.items()}


def splits(branch: Branch) -> bool:
    """Its logits are the first of a run with several answers: each answer goes its own way from here."""
    run = branch.run
    return run.sampling.n > 1 and run.beams is None and len(run.branches) == 1 and not run.answers[0].tokens
