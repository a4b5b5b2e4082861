"""Outcomes: what the logits of a step mean for each branch that computed some. Records; they change nothing.

Emitted   its answer has more tokens      Split    its answers part here, each with a first token of its own
Scored    a beam waits with its scores    Unusable its logits are not numbers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from quire.engine.sampling.token_logprobs import TokenLogprobs
from quire.engine.step.runs.branch import Branch, Finish, Run


class Emitted(NamedTuple):
    """New tokens of one answer, up to where it ends."""

    branch: Branch
    tokens: list[int]  # NO_TOKEN: the request's own fields leave none
    logprobs: Sequence[TokenLogprobs]  # at least one per token, if they were asked for
    finish: Finish | None  # why the answer ends with the last of them; None: it goes on


class Split(NamedTuple):
    """A prompt is computed from which several answers go on."""

    branch: Branch
    tokens: list[int]  # the first of each answer
    logprobs: Sequence[TokenLogprobs]  # of each, if they were asked for


class Scored(NamedTuple):
    """A beam of a search, and what it may go on with."""

    branch: Branch
    log_probs: torch.Tensor  # of all tokens


class Unusable(NamedTuple):
    """Logits with a NaN, or without a finite maximum."""

    branch: Branch


Outcome = Emitted | Split | Scored | Unusable


def emitted(
    branch: Branch, tokens: list[int], eos_ids: frozenset[int], logprobs: Sequence[TokenLogprobs] = ()
) -> Emitted:
    """The tokens that still belong to its answer, and why it ends with them."""
    sampling = branch.run.sampling
    num_generated = branch.length - len(branch.run.prompt)
    for place, token in enumerate(tokens, start=1):
        if token in eos_ids and not sampling.ignore_eos:
            return Emitted(branch, tokens[:place], logprobs, "eos")
        if token in sampling.stop_ids:
            return Emitted(branch, tokens[:place], logprobs, "stop")
        if num_generated + place >= sampling.max_tokens:
            return Emitted(branch, tokens[:place], logprobs, "length")
    return Emitted(branch, tokens, logprobs, None)


def ends_with(run: Run, last: int, eos_ids: frozenset[int]) -> Finish:
    """Why an answer that is complete has this last token."""
    if last in eos_ids and not run.sampling.ignore_eos:
        return "eos"
    return "stop" if last in run.sampling.stop_ids else "length"
