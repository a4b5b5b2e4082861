"""From logits to tokens: greedy, temperature, top-k, top-p. Owns chance; knows no requests, no pages, no model.

A row's token depends on its logits and its SampleRow alone: chance is a hash of (seed, branch, position), not the state
of a generator, and probabilities are whole numbers, whose sums are the same in any order and on any device. So batch
mates, preemption and drafts change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from quire.core.records.errors import InputError, say
from quire.engine.sampling import Sampling

HEAD = 256  # tokens looked at first for top-k and top-p: almost always enough, and far cheaper than a full sort
WIDER = 16  # times as many, when they are not
COLDEST, HOTTEST = 1e-30, 1e30  # temperatures beyond them are these: float32 could not divide by others
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SampleRow:
    """How one row's token is to be chosen; (seed, branch, position) is its chance."""

    sampling: Sampling
    seed: int
    branch: int
    position: int


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """One token per row of `logits` [rows, vocab], on any device."""
    if logits.dim() != 2 or logits.shape[0] != len(rows):
        fact = f"the logits have shape {tuple(logits.shape)}"
        raise InputError(say(f"sample {len(rows)} tokens", fact, "pass one row of logits per token"))
    if not rows:
        return []
    tokens = _best(logits)
    by_chance = [nth for nth, row in enumerate(rows) if not row.sampling.greedy]
    if by_chance:
        drawn = _drawn(logits[by_chance].float(), [rows[nth] for nth in by_chance])
        for nth, token in zip(by_chance, drawn, strict=True):
            tokens[nth] = token
    return tokens


def log_probs(logits: torch.Tensor) -> torch.Tensor:
    """float32 log-probabilities of each row, on the CPU: what beams add up."""
    _best(logits)  # the same check as for sampled tokens: beams must not add up NaN
    return torch.log_softmax(logits.float(), dim=-1).cpu()


def broken(logits: torch.Tensor) -> list[int]:
    """Rows in which no token can be chosen: a NaN or +inf somewhere, or -inf everywhere."""
    return _unusable(logits.max(dim=-1).values)


def uniform(seed: int, branch: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, the same on every machine."""
    word = 0
    for part in (seed, branch, position):  # the splitmix64 step, once per part
        word = (word + part + 0x9E3779B97F4A7C15) & _WORD
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
        word ^= word >> 31
    return (word >> 11) / (1 << 53)


def _best(logits: torch.Tensor) -> list[int]:
    """The most likely token of each row, the lowest id among equals."""
    best = logits.max(dim=-1)
    rows = _unusable(best.values)
    if rows:
        fact = f"those of rows {rows} have a NaN, or no finite maximum"
        raise InputError(say("sample tokens from logits", fact, "check the model's weights and its precision"))
    tokens: list[int] = best.indices.tolist()
    return tokens


def _unusable(maxima: torch.Tensor) -> list[int]:
    """Rows whose maximum is not finite; max() hands a NaN on."""
    rows: list[int] = (~maxima.isfinite()).nonzero().flatten().tolist()
    return rows


def _drawn(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """Tokens drawn by inverse CDF, in the order of token ids: noise in near-equal logits cannot swap two of them."""
    weights = _weights(logits, [row.sampling.temperature for row in rows])
    cut = [nth for nth, row in enumerate(rows) if row.sampling.top_k or row.sampling.top_p < 1]
    if cut:
        kept = _kept(logits[cut], weights[cut], [rows[nth].sampling for nth in cut])
        weights[cut] = torch.where(kept, weights[cut], 0)
    sums = weights.cumsum(dim=-1)
    mass = sums[:, -1:]
    chance = _column([uniform(row.seed, row.branch, row.position) for row in rows], mass)
    target = (chance * mass).long().minimum(mass - 1)
    tokens: list[int] = torch.searchsorted(sums, target, right=True).flatten().tolist()
    return tokens


def _weights(logits: torch.Tensor, temperatures: Sequence[float]) -> torch.Tensor:
    """softmax(logits / temperature) up to a factor, as int64 whose row sums do not overflow."""
    bits = 62 - logits.shape[-1].bit_length()
    divisor = _column([min(max(heat, COLDEST), HOTTEST) for heat in temperatures], logits).float()
    return (torch.exp((logits - logits.amax(dim=-1, keepdim=True)) / divisor) * 2.0**bits).long()


def _kept(logits: torch.Tensor, weights: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Which tokens remain after top-k, then after top-p of what top-k left; among equals the lower ids."""
    vocab = logits.shape[-1]
    most = _column([min(sampling.top_k or vocab, vocab) for sampling in samplings], logits).long()
    share = _column([sampling.top_p for sampling in samplings], logits)
    size = HEAD
    while True:
        size = min(size, vocab)
        head = logits.topk(size)
        sums = weights.gather(1, head.indices).cumsum(dim=-1)
        mass = torch.where(most < vocab, sums.gather(1, most.clamp(max=size) - 1), weights.sum(dim=-1, keepdim=True))
        limit = (share * mass).ceil().long().clamp(min=1).minimum(mass)
        count = (torch.searchsorted(sums, limit) + 1).minimum(most)
        enough = (count <= size) & ((most <= size) | (most == vocab))
        if size == vocab or bool(enough.all()):
            break
        size *= WIDER
    least = head.values.gather(1, count - 1)
    above, equal = logits > least, logits == least
    num_equal = count - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= num_equal))


def _column(numbers: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """The numbers as a float64 column on the device of `like`."""
    return torch.tensor(numbers, dtype=torch.float64, device=like.device)[:, None]
