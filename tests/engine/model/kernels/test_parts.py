"""Kernels between two matrix products against their plain forms; on CUDA or in Triton's interpreter."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from quire.engine.model.forward.parts import RmsNorm, Rotary
from quire.engine.model.kernels import plain
from quire.engine.model.kernels.gates import Act, gated
from quire.engine.model.kernels.heads import BySlot, ByTable, place_heads, turns
from quire.engine.model.kernels.norms import add_norm
from tests.effort import cases

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":  # tests/conftest.py sets it
    pytest.skip("no CUDA here", allow_module_level=True)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ULP = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def norm_of(*shape: int, dtype: torch.dtype, scale_first: bool, seed: int = 5) -> RmsNorm:
    """As families make them: a weight in the model's dtype, or in float32 where it is applied there."""
    weight = numbers(*shape, dtype=torch.float32 if scale_first else dtype, seed=seed)
    return RmsNorm(1 + weight, 1e-6, scale_first)


def nearly(ours: torch.Tensor, theirs: torch.Tensor, places: int = 4, share: float = 0.002) -> None:
    """Most numbers are equal, a share of them perhaps not, and none is further off than some last places."""
    ulp = ULP[ours.dtype]
    torch.testing.assert_close(ours, theirs, rtol=places * ulp, atol=places * ulp)
    if ours.dtype != torch.float32:
        assert (ours != theirs).sum() <= share * ours.numel() + 1


KINDS = ("norm alone", "sum", "norm before and behind")
SUMS = [(dtype, width, kind) for dtype in DTYPES for width in (64, 576, 2048) for kind in KINDS]


@pytest.mark.parametrize(("dtype", "width", "kind"), cases(SUMS[::5], SUMS))
def test_sums_and_norms(dtype: torch.dtype, width: int, kind: str) -> None:
    near, wide = numbers(5, width + 16, dtype=dtype)[:, :width], numbers(5, width, dtype=dtype, seed=1)
    scale_first = kind == "norm before and behind"
    norm = norm_of(width, dtype=dtype, scale_first=scale_first)
    before = norm_of(width, dtype=dtype, scale_first=True, seed=6) if scale_first else None
    around = None if kind == "norm alone" else wide
    kept = near.clone()
    total, out = add_norm(near, around, norm, before)
    wanted_total, wanted = plain.add_norm(near, around, norm, before)
    assert torch.equal(near, kept), "what it reads stays"
    nearly(total, wanted_total, 0 if before is None else 4)
    nearly(out, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
def test_gated(dtype: torch.dtype, act: Act) -> None:
    width = 1300
    gate_up = numbers(3, 2 * width, dtype=dtype) * 4
    gate_up[0, :4] = torch.tensor([-80.0, 80.0, 0.0, -30.0], dtype=dtype)
    share = 0.05 if act == "gelu_tanh" else 0.002  # 1 + tanh of large negative numbers is all rounding
    nearly(gated(gate_up, act), plain.gated(gate_up, act), 16, share)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_angles(dtype: torch.dtype) -> None:
    rotary = Rotary(1 / 10000 ** (torch.arange(0, 48, 2, device=DEVICE) / 48), 1.25)
    positions = torch.tensor([0, 1, -1, 77, 131071, 8000], device=DEVICE)
    for ours, theirs in zip(turns(positions, rotary, dtype), plain.turns(positions, rotary, dtype), strict=True):
        nearly(ours, theirs)
    nearly(turns(positions.int(), rotary, dtype)[0], plain.turns(positions, rotary, dtype)[0])


def pages_of(dtype: torch.dtype, block: int, kv_heads: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the second of three layers, in twelve pages."""
    pages = torch.full((12, 3, 2, block, kv_heads, dim), -7.0, dtype=dtype, device=DEVICE)
    return pages[:, 1, 0], pages[:, 1, 1]


NORMS = ("none", "weight behind", "weight first")
SHAPES = (((4, 2), 64, 16), ((7, 1), 128, 8), ((9, 3), 80, 24))
HEADS = [(dtype, norm, *shape) for dtype in DTYPES for norm in NORMS for shape in SHAPES]


@pytest.mark.parametrize(("dtype", "norm", "heads", "dim", "block"), cases(HEADS[::8], HEADS))
def test_heads(dtype: torch.dtype, norm: str, heads: tuple[int, int], dim: int, block: int) -> None:
    count, kv_heads = heads
    rms = norm_of(count + kv_heads, dim, dtype=dtype, scale_first=norm == "weight first") if norm != "none" else None
    qkv = numbers(5, (count + 2 * kv_heads) * dim + 16, dtype=dtype)[:, :-16]
    starts = torch.tensor([0, 2 * block - 1, -1, block, 2], dtype=torch.int32, device=DEVICE)
    table = torch.tensor([[3, 9], [4, 5], [6, -1], [-1, 7], [11, -1]], dtype=torch.int32, device=DEVICE)
    angles = turns(starts, Rotary(1 / 10000 ** (torch.arange(0, dim, 2, device=DEVICE) / dim), 1.0), dtype)
    slots = torch.tensor([3, 5, -1, 7, 11], device=DEVICE)
    places = torch.tensor([0, block - 1, 0, 0, 2], device=DEVICE)
    wanted = pages_of(dtype, block, kv_heads, dim)
    q = plain.place_heads(qkv, angles, rms, *wanted, BySlot(slots, places))
    real = starts >= 0
    for where in (ByTable(table, starts), BySlot(slots, places)):
        k, v = pages_of(dtype, block, kv_heads, dim)
        nearly(place_heads(qkv, angles, rms, k, v, where)[real], q[real], 0 if rms is None else 4)
        nearly(k.contiguous(), wanted[0].contiguous(), 0 if rms is None else 4)
        assert torch.equal(v, wanted[1])
        assert int((v != -7.0).any(-1).sum()) == 4 * kv_heads, "nothing else was written, padding included"
