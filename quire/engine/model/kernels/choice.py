"""Which kernels run: Triton's where they can, their plain forms elsewhere. Imports no Triton: a first launch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from quire.engine.model.kernels import decoding, gates, heads, norms, plain, prompt


class Kernels(NamedTuple):
    """One form of each; signatures are those of the files that own them."""

    decode: Callable[..., torch.Tensor]
    place_and_decode: Callable[..., torch.Tensor]
    attend: Callable[..., torch.Tensor]
    turns: Callable[..., heads.Turns]
    place_heads: Callable[..., torch.Tensor]
    add_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    gated: Callable[..., torch.Tensor]


IN_TRITON = Kernels(
    decoding.decode, decoding.place_and_decode, prompt.attend, heads.turns, heads.place_heads, norms.add_norm,
    gates.gated,
)  # fmt: skip
PLAIN = Kernels(
    plain.decode, plain.place_and_decode, plain.attend, plain.turns, plain.place_heads, plain.add_norm, plain.gated
)  # fmt: skip


def kernels_for(device: torch.device) -> Kernels:
    """Those for tensors of a device."""
    return IN_TRITON if device.type == "cuda" else PLAIN
