"""The gated activation in Triton: act(gate) * up of one product's two halves. Owns the kernel and its launch.

It rounds where torch does: what act gives, then the product. A tanh may differ in its last places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch

from quire.engine.model.kernels.in_triton import bring, check_place, interpreted

PIECE = 1024  # places of a row that a program computes
BEND = (2 / math.pi) ** 0.5  # of the tanh in GELU
CUBE = 0.044715

Act = Literal["silu", "gelu_tanh"]

tl: Any = None  # these three come with Triton
precise: Any = None
rounded: Any = None
if TYPE_CHECKING:
    from typing import Any as constexpr
    from typing import Any as tensor


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the kernel is compiled for."""

    width: int
    piece: int
    silu: bool
    bend: float
    cube: float
    by_hand: bool  # see in_triton.py


def gated(gate_up: torch.Tensor, act: Act) -> torch.Tensor:
    """act(gate) * up of [tokens, 2 * width]; [tokens, width]."""
    check_place(gate_up)
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        shape = _Shape(width, PIECE, act == "silu", BEND, CUBE, interpreted())
        launch = _kernel()[tokens, -(-width // PIECE)]
        with torch.cuda.device(
            gate_up.get_device()
        ):  # launches go to the current device; -1, of a CPU, changes nothing
            launch(gate_up, gate_up.stride(0), out, shape, num_warps=4, enable_fp_fusion=False)
    return out


@cache
def _kernel() -> Any:
    triton = bring(globals())
    return triton.jit(_gated)


def _gated(gate_up: tensor, step: tensor, out: tensor, shape: constexpr) -> None:
    """A piece of a row."""
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * shape.piece + tl.arange(0, shape.piece)
    inside = place < shape.width
    dtype: constexpr = out.dtype.element_ty
    gate = tl.load(gate_up + row * step + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * step + shape.width + place, mask=inside, other=0.0).to(tl.float32)
    if shape.silu:
        gate = tl.div_rn(gate, 1.0 + precise.exp(-gate))
    else:
        bent = shape.bend * (gate + shape.cube * (gate * gate * gate))
        if shape.by_hand:  # the interpreter has no tanh
            fade = precise.exp(-2.0 * tl.abs(bent))
            bent = tl.where(bent < 0, -1.0, 1.0) * tl.div_rn(1.0 - fade, 1.0 + fade)
        else:
            bent = precise.tanh(bent)
        gate = 0.5 * gate * (1.0 + bent)
    gate = rounded(gate, dtype, shape.by_hand)
    tl.store(out + row * shape.width + place, rounded(gate * up, dtype, shape.by_hand).to(dtype), mask=inside)
