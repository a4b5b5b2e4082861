"""From logits to tokens: rules, temperature, min-p, top-k, top-p and chance, for a whole batch. Knows no requests.

A row's token depends on its logits and its SampleRow alone: chance is a hash of (seed, branch, position), not the state
of a generator, and probabilities are whole numbers, whose sums are the same in any order and on any device. So batch
mates, preemption and drafts change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quire.core.records.errors import InputError, say
from quire.engine.sampling.edit_logits import edit
from quire.engine.sampling.kept_tokens import Cuts, kept
from quire.engine.sampling.sample_row import SampleRow
from quire.engine.sampling.sample_table import CHANCE, MIN_P, TEMPERATURE, TOP_K, TOP_P, Draws, SampleTable
from quire.engine.tensors.on_device import on_device

NO_TOKEN = -1  # instead of a token, where rules leave none
BROKEN = -2  # and where the logits have a NaN, or no finite maximum


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """One token per row of `logits` [rows, vocab], on the host; NO_TOKEN where rules leave none."""
    if logits.dim() != 2 or logits.shape[0] != len(rows):
        fact = f"the logits have shape {tuple(logits.shape)}"
        raise InputError(say(f"sample {len(rows)} tokens", fact, "pass one row of logits per token"))
    tokens: list[int] = choose(logits, SampleTable.of(rows)).tolist()
    _refuse([nth for nth, token in enumerate(tokens) if token == BROKEN])
    return tokens


def choose(logits: torch.Tensor, wanted: SampleTable) -> torch.Tensor:
    """The same on the device of `logits`, BROKEN where they are not numbers. On a GPU the host waits for
    nothing.

    What rows are drawn by goes there in one copy; greedy ones need none.
    """
    if not len(wanted):
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    best = logits.max(dim=-1)
    tokens, bad = best.indices, ~(best.values.abs() < torch.inf)
    if wanted.edited or len(wanted.columns.drawn()[0]):
        draws = Draws(wanted)
        numbers = on_device(draws.numbers, logits.device)
        places = numbers[-1].long()
        some = logits[places].float()
        if logits.device.type != "cpu" or bool(bad.any()):
            some.masked_fill_(bad[places][:, None], 0)  # whatever is chosen there is thrown away
        tokens[places] = _chosen(some, draws, numbers)
    return tokens.masked_fill(bad, BROKEN)


def _chosen(logits: torch.Tensor, draws: Draws, numbers: torch.Tensor) -> torch.Tensor:
    """Tokens of rows that are edited or by chance; `logits` is a copy that may be changed."""
    if not draws.edited:
        return _drawn(logits, draws, numbers)
    edit(logits, draws.edited)
    best, tokens = logits.max(dim=-1)
    none_left = best == -torch.inf
    logits.masked_fill_(none_left[:, None], 0)  # whatever is drawn there is thrown away
    if count := draws.num_drawn:
        tokens[:count] = _drawn(logits[:count], draws, numbers[:, :count])
    return torch.where(none_left, NO_TOKEN, tokens)


def log_probs(logits: torch.Tensor) -> torch.Tensor:
    """float32 log-probabilities of each row, on the CPU: what beams add up."""
    _refuse(broken(logits))  # the same check as for sampled tokens: beams must not add up NaN
    return torch.log_softmax(logits.float(), dim=-1).cpu()


def broken(logits: torch.Tensor) -> list[int]:
    """Rows in which no token can be chosen: a NaN or +inf somewhere, or -inf everywhere."""
    maxima = logits.max(dim=-1).values  # max() hands a NaN on
    rows: list[int] = (~maxima.isfinite()).nonzero().flatten().tolist()
    return rows


def _refuse(rows: list[int]) -> None:
    if rows:
        fact = f"those of rows {rows} have a NaN, or no finite maximum"
        raise InputError(say("sample tokens from logits", fact, "check the model's weights and its precision"))


def _drawn(logits: torch.Tensor, draws: Draws, numbers: torch.Tensor) -> torch.Tensor:
    """Tokens drawn by inverse CDF, in the order of token ids: noise in near-equal logits cannot swap two of them."""
    weights = _weights(logits, numbers, bool(draws.numbers[MIN_P].any()))
    if count := draws.num_cut:
        asked = draws.numbers[TOP_K, :count]
        most_asked = float(asked.max()) if asked.all() else float("inf")
        keep = kept(logits[:count], weights[:count], _cuts(numbers[:, :count], logits.shape[-1]), most_asked)
        weights[:count].masked_fill_(~keep, 0)
    sums = weights.cumsum(dim=-1)
    mass = sums[:, -1:]
    target = (numbers[CHANCE, :, None] * mass).long().minimum(mass - 1)
    return torch.searchsorted(sums, target, right=True).flatten()


def _cuts(numbers: torch.Tensor, vocab: int) -> Cuts:
    most = numbers[TOP_K, :, None]  # 0: all tokens
    return Cuts(torch.where(most == 0, vocab, most.clamp(max=vocab)).long(), numbers[TOP_P, :, None])


def _weights(logits: torch.Tensor, numbers: torch.Tensor, some_least: bool) -> torch.Tensor:
    """softmax(logits / temperature) up to a factor, as int64 whose row sums do not overflow; 0 below min-p."""
    bits = 62 - logits.shape[-1].bit_length()
    divisor = numbers[TEMPERATURE, :, None].float()
    shares = torch.exp((logits - logits.amax(dim=-1, keepdim=True)) / divisor)  # of the most likely: 1
    weights = (shares * 2.0**bits).long()
    if some_least:
        weights.masked_fill_(shares < numbers[MIN_P, :, None].float(), 0)
    return weights
