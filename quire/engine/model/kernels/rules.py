"""What kernels of attention share: how scores are made, which keys a query reads, and which tensors they take."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from quire.core.records.errors import InputError, say

LOG2E = math.log2(math.e)


class Rule(NamedTuple):
    """How scores are made, and which keys a query reads: all up to its own, or the last `window` and the `sinks`."""

    scale: float
    window: int = 0  # 0: all
    softcap: float = 0.0  # 0: none
    sinks: int = 0


def steps_of(pages: torch.Tensor) -> tuple[int, int, int]:
    """Strides of slots, of tokens and of heads."""
    slot, token, head, _ = pages.stride()
    return slot, token, head


def check_pages(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, index: tuple[torch.Tensor, ...]) -> None:
    """Refuse what a kernel would read wrongly."""
    if not (q.ndim == 3 and k.ndim == v.ndim == 4 and k.shape == v.shape and q.shape[2] == k.shape[3]):
        fact = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
        cure = "give [total, heads, dim] and twice [num_slots, block_size, kv_heads, dim]"
        raise InputError(say("the paged kernel", fact, cure))
    if q.shape[1] % k.shape[2]:
        fact = f"{q.shape[1]} heads, {k.shape[2]} KV heads"
        raise InputError(say("the paged kernel", fact, "give each KV head the same number of heads"))
    if not q.dtype == k.dtype == v.dtype or not q.stride(2) == k.stride(3) == v.stride(3) == 1:
        fact = f"{q.dtype}, {k.dtype}, {v.dtype}, last strides {q.stride(2)}, {k.stride(3)}, {v.stride(3)}"
        raise InputError(say("the paged kernel", fact, "give q, k and v one dtype, and unit last strides"))
    if any(numbers.dtype != torch.int32 or numbers.stride(-1) != 1 for numbers in index):
        fact = ", ".join(f"{numbers.dtype} with strides {numbers.stride()}" for numbers in index)
        raise InputError(say("table, offsets and starts", fact, "give int32 with unit last strides"))
