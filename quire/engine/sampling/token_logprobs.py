"""Log-probabilities of chosen tokens and of the most likely ones: the model's own, before any field changes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class TokenLogprobs(NamedTuple):
    """One token of an answer."""

    token: int
    logprob: float
    rank: int  # 1: no other token was more likely
    top: tuple[tuple[int, float], ...]  # the most likely tokens, best first, as many as were asked for

    def __repr__(self) -> str:
        return f"TokenLogprobs(logprob {self.logprob:.3f}, rank {self.rank}, {len(self.top)} most likely)"


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Of one token per row of `logits` [rows, vocabulary], and of the `counts` most likely ones of each row."""
    table = torch.log_softmax(logits.float(), dim=-1)
    chosen = table.gather(1, torch.tensor(tokens, device=table.device)[:, None])
    ranks = 1 + (table > chosen).sum(dim=-1)
    best = table.topk(min(max(counts), table.shape[1]))
    columns = (chosen.flatten(), ranks, best.indices, best.values)
    rows = zip(tokens, *(column.tolist() for column in columns), counts, strict=True)
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(ids[:count], values[:count], strict=True)))
        for token, logprob, rank, ids, values, count in rows
    ]
