"""Attention of decoded tokens, split over programs, against its plain form; on CUDA or in Triton's interpreter."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from quire.engine.model.forward.parts import RmsNorm, Rotary
from quire.engine.model.kernels import plain
from quire.engine.model.kernels.decoding import decode, place_and_decode
from quire.engine.model.kernels.heads import ByTable
from quire.engine.model.kernels.rules import Rule
from tests.effort import cases

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":  # tests/conftest.py sets it
    pytest.skip("no CUDA here", allow_module_level=True)

NAN = float("nan")
CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Case:
    """Rows by the position of their query; negative ones are padding."""

    starts: tuple[int, ...]
    rule: Rule
    heads: tuple[int, int] = (4, 2)  # of queries, of keys and values
    dim: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float32


@dataclass
class Inputs:
    """What the kernel is given. Every cell that no query reads is NaN, and what lies behind a window is a hole."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    starts: torch.Tensor

    def decode(self, rule: Rule, splits: int | None) -> torch.Tensor:
        return decode(self.q, self.k, self.v, self.table, self.starts, rule=rule, splits=splits)


def inputs_of(case: Case, seed: int = 0) -> Inputs:
    """Random numbers for a case; the pool is one layer of pages that hold three."""
    dice = torch.Generator().manual_seed(seed)
    heads, kv_heads = case.heads
    columns = [start // case.block_size + 1 for start in case.starts]
    slots = torch.randperm(sum(columns), generator=dice).int() + 1
    cells = (3, 2, case.block_size, kv_heads, case.dim)
    pages = torch.full((len(slots) + 2, *cells), NAN, dtype=case.dtype)
    table = torch.full((len(columns), max(columns) + 2), -1, dtype=torch.int32)
    for row, (start, mine) in enumerate(zip(case.starts, slots.split(columns), strict=True)):
        used = torch.arange(max(0, start - case.rule.window + 1) if case.rule.window else 0, start + 1)
        blocks = used // case.block_size
        table[row, blocks] = mine[blocks]
        fresh = torch.randn((len(used), 2, kv_heads, case.dim), generator=dice).to(case.dtype)
        pages[mine[blocks].long(), 1, :, used % case.block_size] = fresh
    packed = torch.randn((len(columns), heads + 3, case.dim), generator=dice).to(case.dtype).to(DEVICE)
    pages, starts = pages.to(DEVICE), torch.tensor(case.starts, dtype=torch.int32, device=DEVICE)
    return Inputs(packed[:, 2 : heads + 2], pages[:, 1, 0], pages[:, 1, 1], table.to(DEVICE), starts)


def check(case: Case, splits: int | None = None, seed: int = 0) -> None:
    inputs = inputs_of(case, seed)
    answer = inputs.decode(case.rule, splits)
    assert (answer.shape, answer.dtype) == (inputs.q.shape, case.dtype)
    wanted = plain.decode(inputs.q, inputs.k, inputs.v, inputs.table, inputs.starts, rule=case.rule)
    torch.testing.assert_close(answer.double(), wanted.double(), rtol=0, atol=CLOSE[case.dtype])


STARTS = cases((0, 170, -1, 15, 129), (0, 300, -1, 15, 129))
FULL = Rule(0.3)
RULES = {"full": FULL, "window": Rule(0.3, 150), "window of one": Rule(0.3, 1), "softcap": Rule(0.8, softcap=2.0)}
SOME = [("full", 1), ("full", 5), ("window", 2), ("window of one", 2), ("softcap", None)]


@pytest.mark.parametrize(
    ("name", "splits"), cases(SOME, [(name, many) for name in RULES for many in (1, 2, 3, 5, None)])
)
def test_rows_read_what_the_rule_says_and_nothing_else(name: str, splits: int | None) -> None:
    check(Case(STARTS, RULES[name]), splits)


@pytest.mark.parametrize("seed", range(cases(2, 100)))
def test_any_shape(seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)

    def one(*some: int) -> int:
        return some[int(torch.randint(len(some), (1,), generator=dice))]

    starts = tuple(torch.randint(-20, cases(250, 600), (one(1, 3, 4),), generator=dice).clamp(min=-1).tolist())
    kv_heads, dim, dtype = one(1, 2, 3), one(64, 128, 256, 80), list(CLOSE)[one(0, 1, 2)]
    rule = Rule(dim**-0.5, one(0, 0, 33, 128), float(one(0, 0, 5)))
    heads = (kv_heads * one(1, 2, 3, 4, 7, 8), kv_heads)
    check(Case(starts, rule, heads, dim, one(8, 16, 24, 32, 64), dtype), one(1, 2, 4), seed)


NORMS = ("none", "weight behind", "weight first")
SHAPES = (((4, 2), 64, RULES["window"]), ((7, 1), 128, RULES["softcap"]), ((3, 1), 80, FULL))
EVERY = [(*shape, norm, dtype) for shape in SHAPES for norm in NORMS for dtype in CLOSE]


@pytest.mark.parametrize(("heads", "dim", "rule", "norm", "dtype"), cases(EVERY[::8], EVERY))
def test_beginning_with_the_product(
    heads: tuple[int, int], dim: int, rule: Rule, norm: str, dtype: torch.dtype
) -> None:
    """Pages are as place_heads leaves them, to the last place without a norm, and queries read them so."""
    count, kv_heads = heads
    case = Case((0, 150, -1, 15, 129), rule, heads, dim, 24, dtype)
    inputs = inputs_of(case)
    dice = torch.Generator().manual_seed(3)
    qkv = torch.randn(5, (count + 2 * kv_heads) * dim + 16, generator=dice).to(dtype).to(DEVICE)[:, :-16]
    first = norm == "weight first"
    weight = 1 + torch.randn(count + kv_heads, dim, generator=dice).to(torch.float32 if first else dtype).to(DEVICE)
    rms = RmsNorm(weight, 1e-6, first) if norm != "none" else None
    angles = plain.turns(inputs.starts, Rotary(1 / 10000 ** (torch.arange(0, dim, 2, device=DEVICE) / dim), 1.0), dtype)
    where = ByTable(inputs.table, inputs.starts)
    for splits in cases((2,), (1, 3)):
        ours, theirs = ((inputs.k.clone(), inputs.v.clone()) for _ in range(2))
        answer = place_and_decode(qkv, angles, rms, *ours, where, rule=rule, splits=splits)
        wanted = plain.place_and_decode(qkv, angles, rms, *theirs, where, rule=rule)
        torch.testing.assert_close(answer.double(), wanted.double(), rtol=0, atol=CLOSE[dtype])
        for one, other in zip(ours, theirs, strict=True):
            near = 0 if rms is None else CLOSE[dtype]
            torch.testing.assert_close(one, other, rtol=near, atol=near, equal_nan=True)


def test_padding_alone() -> None:
    for splits in (1, 4):
        inputs = inputs_of(Case((40, 3), FULL))
        inputs.starts.fill_(-1)
        assert not inputs.decode(FULL, splits).any()
        inputs.table.fill_(-1)
        assert not inputs.decode(FULL, splits).any()


def test_a_row_alone_is_what_it_is_among_others() -> None:
    """Rows share no sums, so with equally many splits neighbours and padding change nothing."""
    inputs = inputs_of(Case(STARTS, FULL))
    together = inputs.decode(FULL, 4)
    q, table, starts = (part[1:2] for part in (inputs.q, inputs.table, inputs.starts))
    assert torch.equal(decode(q, inputs.k, inputs.v, table, starts, rule=FULL, splits=4)[0], together[1])
