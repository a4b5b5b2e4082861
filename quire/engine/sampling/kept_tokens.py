"""Kept tokens: which remain after top-k, then after top-p of what top-k left; among equals the lower ids.

On a processor the most likely HEAD tokens are sorted, and more where they are not enough. A GPU is not asked whether
they are, which would hold up the host until the model has run: there bounds are found by their bits, in steps that are
the same whatever the logits are.

    key     of a logit: its 32 bits, as a number that is larger where the logit is
    level   8 bits at a time from the top: the sums of what has these bits, and in which the bound lies
"""

from __future__ import annotations

from typing import NamedTuple

import torch

HEAD = 256  # tokens looked at first: almost always enough, and far cheaper than a full sort
WIDER = 16  # times as many, when they are not
LEVEL = 8  # bits
OFFSET = 1 << 31


class Cuts(NamedTuple):
    """What is kept of each row: [rows, 1]."""

    most: torch.Tensor  # tokens by top-k, whole; the vocabulary where it is not asked for
    share: torch.Tensor  # of their weight, by top-p


def kept(logits: torch.Tensor, weights: torch.Tensor, cuts: Cuts, most_asked: float) -> torch.Tensor:
    """`weights` of the logits are whole numbers; `most_asked`: the largest top-k, infinite where one asks for none."""
    if logits.device.type == "cpu" or most_asked <= HEAD:
        return kept_by_head(logits, weights, cuts, most_asked)
    return kept_by_bits(logits, weights, cuts)


def kept_by_head(logits: torch.Tensor, weights: torch.Tensor, cuts: Cuts, most_asked: float) -> torch.Tensor:
    """By sorting as many as are needed. It waits for the device, unless no row may keep more than HEAD."""
    vocab, most = logits.shape[-1], cuts.most
    size = HEAD
    while True:
        size = min(size, vocab)
        head = logits.topk(size)
        sums = weights.gather(1, head.indices).cumsum(dim=-1)
        mass = torch.where(most < vocab, sums.gather(1, most.clamp(max=size) - 1), weights.sum(dim=-1, keepdim=True))
        limit = _limit(cuts.share, mass)
        count = (torch.searchsorted(sums, limit) + 1).minimum(most)
        enough = (count <= size) & ((most <= size) | (most == vocab))
        if size == vocab or most_asked <= size or bool(enough.all()):
            break
        size *= WIDER
    least = head.values.gather(1, count - 1)
    above, equal = logits > least, logits == least
    return above | _first(equal, count - above.sum(dim=-1, keepdim=True))


def kept_by_bits(logits: torch.Tensor, weights: torch.Tensor, cuts: Cuts) -> torch.Tensor:
    """The same without waiting for the device."""
    keys = _keys(logits)
    bound, left = _bound(keys, torch.ones_like(weights), cuts.most)
    of_top_k = torch.where(keys > bound, weights, 0).sum(dim=-1, keepdim=True)
    of_top_k += left * _of_one(keys == bound, weights)
    mass = torch.where(cuts.most < logits.shape[-1], of_top_k, weights.sum(dim=-1, keepdim=True))
    bound, left = _bound(keys, weights, _limit(cuts.share, mass))
    equal = keys == bound
    one = _of_one(equal, weights)
    return (keys > bound) | _first(equal, (left + one - 1) // one)


def _limit(share: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    return (share * mass).ceil().long().clamp(min=1).minimum(mass)


def _first(equal: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """The first so many of each row."""
    return equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= count)


def _of_one(equal: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """What each of equal logits weighs."""
    return torch.where(equal, weights, 0).amax(dim=-1, keepdim=True)


def _keys(logits: torch.Tensor) -> torch.Tensor:
    """From 0 on, in the order of the logits; zeros of both signs are equal."""
    bits = (logits + 0.0).view(torch.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() + OFFSET


def _bound(keys: torch.Tensor, amounts: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest key at which the amounts of it and of those above reach the target, and what it has to add to them.

    Requires: the target is at least 1 and at most the sum.
    """
    bound, left = torch.zeros_like(target), target
    for shift in range(32 - LEVEL, -1, -LEVEL):
        inside = (keys >> (shift + LEVEL)) == bound
        level = (keys >> shift) & ((1 << LEVEL) - 1)
        sums = torch.zeros(len(keys), 1 << LEVEL, dtype=amounts.dtype, device=keys.device)
        sums.scatter_add_(1, level, torch.where(inside, amounts, 0))
        from_top = sums.flip(1).cumsum(dim=-1)
        place = torch.searchsorted(from_top, left)
        above = torch.where(place > 0, from_top.gather(1, (place - 1).clamp(min=0)), 0)
        bound, left = (bound << LEVEL) + ((1 << LEVEL) - 1 - place), left - above
    return bound, left
