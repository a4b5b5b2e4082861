"""What stands between two parts of a layer, in Triton: norm of the part's output, sum with what went around it, norm of
the sum. One launch, and each row is read once. Owns the kernel and its launch.

    near ─► (norm) ─► + ─► wide ─► norm ─► the next part's input
    wide ─────────────┘      └────────────► goes around the next part

It rounds where RmsNorm in forward/parts.py and a sum in torch do; the squares of a row are added up in another order,
so that a place in some thousands may be rounded otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from quire.engine.model.forward.parts import RmsNorm
from quire.engine.model.kernels.in_triton import bring, check_place, interpreted, power

tl: Any = None  # these two come with Triton
rounded: Any = None
if TYPE_CHECKING:
    from typing import Any as constexpr
    from typing import Any as tensor


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the kernel is compiled for. Of a norm: 0 for none, 1 to round before the weight, 2 to round behind it."""

    width: int
    room: int  # width, padded to a power of two
    summed: bool  # there is something to add
    first: int  # the norm before the sum
    second: int  # and behind it
    first_eps: float
    second_eps: float
    by_hand: bool  # see in_triton.py


class _Data(NamedTuple):
    """Rows of `near` and `wide` may lie apart; the others have none between them."""

    near: torch.Tensor
    near_row: int
    wide: torch.Tensor
    wide_row: int
    first: torch.Tensor  # a weight, or anything where there is no norm
    second: torch.Tensor
    total: torch.Tensor
    out: torch.Tensor


def add_norm(
    near: torch.Tensor, wide: torch.Tensor | None, norm: RmsNorm, before: RmsNorm | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """wide + before(near), and its norm; [tokens, width] each. Without `wide`: near itself, and its norm."""
    check_place(near)
    total = near if wide is None else torch.empty(near.shape, dtype=near.dtype, device=near.device)
    out = torch.empty(near.shape, dtype=near.dtype, device=near.device)
    if not len(near):
        return total, out
    width = near.shape[1]
    shape = _Shape(
        width=width,
        room=power(width),
        summed=wide is not None,
        first=_kind(before),
        second=_kind(norm),
        first_eps=0.0 if before is None else before.eps,
        second_eps=norm.eps,
        by_hand=interpreted(),
    )
    other, weight = near if wide is None else wide, norm.weight if before is None else before.weight
    data = _Data(near, near.stride(0), other, other.stride(0), weight, norm.weight, total, out)
    options = {"num_warps": min(16, max(1, shape.room // 512)), "enable_fp_fusion": False}
    with torch.cuda.device(near.get_device()):
        _kernel()[(len(near),)](data, shape, **options)
    return total, out


def _kind(norm: RmsNorm | None) -> int:
    return 0 if norm is None else 1 + norm.scale_first


@cache
def _kernel() -> Any:
    triton = bring(globals())
    globals().update(_norm=triton.jit(_norm))
    return triton.jit(_add_norm)


def _add_norm(data: tensor, shape: constexpr) -> None:
    """One row."""
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, shape.room)
    inside = place < shape.width
    dtype: constexpr = data.out.dtype.element_ty
    x = tl.load(data.near + row * data.near_row + place, mask=inside, other=0.0).to(tl.float32)
    if shape.first != 0:
        x = _norm(x, data.first + place, shape.first_eps, shape.first, dtype, shape)
    if shape.summed:
        x += tl.load(data.wide + row * data.wide_row + place, mask=inside, other=0.0).to(tl.float32)
        x = rounded(x, dtype, shape.by_hand)
        tl.store(data.total + row * shape.width + place, x.to(dtype), mask=inside)
    x = _norm(x, data.second + place, shape.second_eps, shape.second, dtype, shape)
    tl.store(data.out + row * shape.width + place, x.to(dtype), mask=inside)


def _norm(x: tensor, at: tensor, eps: constexpr, kind: constexpr, dtype: constexpr, shape: constexpr) -> Any:
    """Of a row, rounded, in float32."""
    weight = tl.load(at, mask=tl.arange(0, shape.room) < shape.width, other=0.0).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / shape.width + eps)
    if kind == 1:
        x = rounded(x, dtype, shape.by_hand)
    return rounded(x * weight, dtype, shape.by_hand)
