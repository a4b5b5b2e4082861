"""Editing logits: what rules say about tokens, applied to a whole batch at once. Knows rows, not who they belong to.

The order is vLLM's: masks, allowed tokens, forbidden ones, bias, then penalties. Only the logits that a rule names are
touched: what the host puts together is a list of places in the batch, and the device changes those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from quire.core.records.request import Int32
from quire.engine.sampling.sample_row import SampleRow
from quire.engine.sampling.token_rules import TokenRules
from quire.engine.tensors.on_device import on_device

LARGEST = torch.finfo(torch.float32).max  # beyond it there is only inf, which is not a logit
Values = NDArray[np.float32]
Place = tuple[int, NDArray[np.integer], float | Values]  # row, token ids, a number for all or for each


def edit(logits: torch.Tensor, rows: Sequence[tuple[int, SampleRow]]) -> None:
    """Change some rows of float32 `logits` [rows, vocabulary] in place; each is given with its number."""
    _apply_masks(logits, {nth: row.mask for nth, row in rows if row.mask is not None})
    ruled = [(nth, row, row.rules) for nth, row in rows if row.rules is not None]
    _keep_allowed(logits, [(nth, rules) for nth, _, rules in ruled if rules.allowed is not None])
    flat = logits.view(-1)
    forbidden = [(nth, rules.forbidden(row.answer)) for nth, row, rules in ruled]
    places, _ = _placed(logits, ((nth, np.array(ids, np.int64), 0.0) for nth, ids in forbidden if ids))
    flat[places] = -torch.inf
    places, bias = _placed(logits, ((nth, rules.bias_ids, rules.bias) for nth, _, rules in ruled if len(rules.bias)))
    flat[places] += bias
    places, factors = _placed(logits, _repeated(ruled))
    values = flat[places]
    values = torch.where(values > 0, values / factors, values * factors).clamp(max=LARGEST)
    flat[places] = values  # a token that is named twice gets the same number twice
    places, amounts = _placed(logits, _answered(ruled))
    flat[places] -= amounts


def _apply_masks(logits: torch.Tensor, masks: Mapping[int, Int32]) -> None:
    """Tokens whose bit is not set become impossible, and so do those that a mask does not know."""
    if not masks:
        return
    num_words = -(-logits.shape[1] // 32)
    words = np.zeros((len(masks), num_words), np.int32)
    for place, mask in enumerate(masks.values()):
        words[place, : len(mask)] = mask[:num_words]
    packed = on_device(words, logits.device)[:, :, None]
    bits = (packed >> torch.arange(32, dtype=torch.int32, device=logits.device)) & 1
    allowed = bits.flatten(1)[:, : logits.shape[1]].bool()
    rows = on_device(list(masks), logits.device)
    logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)


def _keep_allowed(logits: torch.Tensor, ruled: Sequence[tuple[int, TokenRules]]) -> None:
    """Everything else becomes impossible."""
    if not ruled:
        return
    places, _ = _placed(logits, ((nth, rules.allowed, 0.0) for nth, rules in ruled if rules.allowed is not None))
    values = logits.view(-1)[places]
    logits.index_fill_(0, on_device([nth for nth, _ in ruled], logits.device), -torch.inf)
    logits.view(-1)[places] = values


def _repeated(ruled: Iterable[tuple[int, SampleRow, TokenRules]]) -> Iterable[Place]:
    """Tokens of prompt and answer."""
    for nth, row, rules in ruled:
        if rules.sampling.repetition_penalty != 1:
            yield nth, np.concatenate([rules.prompt_ids, row.counted()[0]]), rules.sampling.repetition_penalty


def _answered(ruled: Iterable[tuple[int, SampleRow, TokenRules]]) -> Iterable[Place]:
    """Tokens of the answer, each once, with what is taken from them."""
    for nth, row, rules in ruled:
        presence, frequency = rules.sampling.presence_penalty, rules.sampling.frequency_penalty
        if (presence or frequency) and len(row.answer):
            ids, counts = row.counted()
            yield nth, ids, (presence + frequency * counts).astype(np.float32)


def _placed(logits: torch.Tensor, places: Iterable[Place]) -> tuple[torch.Tensor, torch.Tensor]:
    """Places in the flat batch, and the number for each, on its device."""
    vocabulary = logits.shape[1]
    where: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    what: list[Values] = [np.empty(0, np.float32)]
    for nth, ids, number in places:
        where.append(ids.astype(np.int64) + nth * vocabulary)
        what.append(number if isinstance(number, np.ndarray) else np.full(len(ids), number, np.float32))
    return on_device(np.concatenate(where), logits.device), on_device(np.concatenate(what), logits.device)
