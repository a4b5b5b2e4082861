"""Beams: the bookkeeping of one beam search, equal to transformers' generate(num_beams=N). Owns candidates and scores.

It is fed log-probabilities and says which beams to run next; it knows no model, no pages and no text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from quire.core.records.errors import InputError, StateError, say
from quire.engine.sampling.params import Sampling


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An answer and its score: the sum of its log-probabilities over length ** length_penalty."""

    tokens: list[int]
    score: float


class NextBeam(NamedTuple):
    """How a live beam goes on."""

    parent: int  # which of the beams before it
    token: int


class Beams:
    """Running beams, best first, and the best finished ones. It starts with one running beam: the prompt."""

    def __init__(self, width: int, max_tokens: int, eos_ids: frozenset[int], length_penalty: float) -> None:
        if width < 1 or max_tokens < 1:
            ask = f"beam search of width {width} for {max_tokens} tokens"
            raise InputError(say(ask, "there is nothing to search", "give both as 1 or more"))
        self.live: list[list[int]] = [[]]
        self.done = False
        self._sums = [0.0]  # log-probability of each live beam
        self._finished: list[Hypothesis] = []  # best first, at most `width`
        self._width = width
        self._max_tokens = max_tokens
        self._eos_ids = eos_ids
        self._length_penalty = length_penalty
        self._reach = width * max(2, 1 + len(eos_ids))  # so many candidates: enough go on even if all beams meet eos

    def advance(self, log_probs: torch.Tensor) -> list[NextBeam]:
        """From [len(live), vocab] to the next live beams, best first; nothing is left to run once done."""
        self._check(log_probs)
        vocab = log_probs.shape[1]
        length = len(self.live[0]) + 1
        sums = (log_probs + torch.tensor(self._sums)[:, None]).flatten()
        top = sums.topk(min(self._reach, len(sums)))
        scores = self._scores(top.values, length)
        chosen: list[NextBeam] = []
        totals: list[float] = []
        candidates = list(self._finished)
        for rank, (total, place) in enumerate(zip(top.values.tolist(), top.indices.tolist(), strict=True)):
            parent, token = divmod(place, vocab)
            if total == -math.inf:
                break  # impossible, as all after it
            if length == self._max_tokens or token in self._eos_ids:
                if rank < self._width:  # worse ones are only there to keep enough beams running
                    candidates.append(Hypothesis([*self.live[parent], token], scores[rank]))
            elif len(chosen) < self._width:
                chosen.append(NextBeam(parent, token))
                totals.append(total)
        self._finished = sorted(candidates, key=lambda one: -one.score)[: self._width]
        self.done = not self._can_improve(totals, length)
        if self.done:
            chosen = []
        self.live = [[*self.live[beam.parent], beam.token] for beam in chosen]
        self._sums = totals[: len(chosen)]
        return chosen

    def best(self, n: int) -> list[Hypothesis]:
        """The n best finished ones; before the end, completed by running ones."""
        if not self.live:
            return self._finished[:n]
        scores = self._scores(torch.tensor(self._sums), max(1, len(self.live[0])))
        running = [Hypothesis(list(tokens), score) for tokens, score in zip(self.live, scores, strict=True)]
        return [*self._finished, *running][:n]

    def _can_improve(self, totals: list[float], length: int) -> bool:
        """Whether the best running beam would beat the worst finished one, were it to end here: a heuristic."""
        if not totals or len(self._finished) < self._width:
            return bool(totals)
        return self._scores(torch.tensor(totals[:1]), length)[0] > self._finished[-1].score

    def _scores(self, sums: torch.Tensor, length: int) -> list[float]:
        scores: list[float] = (sums / length**self._length_penalty).tolist()
        return scores

    def _check(self, log_probs: torch.Tensor) -> None:
        if self.done:
            raise StateError(say("advance a beam search", "it is done", "read best()"))
        if log_probs.dim() != 2 or len(log_probs) != len(self.live) or log_probs.dtype != torch.float32:
            fact = f"the log-probabilities are {log_probs.dtype} {tuple(log_probs.shape)}"
            raise InputError(say(f"advance {len(self.live)} beams", fact, "pass one float32 row per live beam"))
        if bool(log_probs.isnan().any()):
            raise InputError(say("advance a beam search", "a log-probability is NaN", "check the model's weights"))


def beams_of(sampling: Sampling, eos_ids: frozenset[int]) -> Beams | None:
    """The search that such an answer asks for; None without beams."""
    if sampling.beams == 1:
        return None
    ends = frozenset(sampling.stop_ids) | (frozenset() if sampling.ignore_eos else eos_ids)
    return Beams(sampling.beams, sampling.max_tokens, ends, sampling.length_penalty)
