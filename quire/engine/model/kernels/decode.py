"""Attention of decoded tokens over pages, in Triton: one query per row. Owns its kernels, their tiles and their launch.

    row      reads the keys at 0 .. starts[row], of them the last `window`; a negative start is padding: its output is 0
    keys     walked a tile at a time, each tile through the table: key j lies in slot table[row, j // block_size]
    splits   programs that share a row: each walks an equal number of tiles, and those with none left end at once
    heads    all queries of one KV head are the rows of one product, so a key is read once

              split 0             split 1             split 2
              [t] [t] [t] [t]     [t] [t] [t] [t]     [t] [t]          a row of ten tiles
              [t] [t]                                                  a short one

How many splits there are depends on shapes only; how much each reads, on the row. A second kernel adds up the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from quire.engine.model.kernels.in_triton import bring, check_place, interpreted, odd, power, processors
from quire.engine.model.kernels.rules import LOG2E, Rule, check_pages, steps_of

TILE_BYTES = 16 << 10  # of a tile of keys
LEAST_TILE, MOST_TILE = 16, 128
LEAST_KEYS = 128  # that are worth a program of their own
MOST_SPLITS = 64
PROGRAMS = 8  # per processor, that keep its memory busy
OPTIONS = {"num_warps": 4, "num_stages": 3}

tl: Any = None  # these three come with Triton
multiply: Any = None
if TYPE_CHECKING:
    from typing import Any as constexpr
    from typing import Any as tensor


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a kernel is compiled for."""

    rows: int  # of a tile: the heads of a KV head, padded to what a product takes
    keys: int  # of a tile
    least: int  # tiles of a split
    splits: int
    wide_splits: int  # padded to a power of two
    group: int  # heads that share a KV head
    dim: int
    wide: int  # dim, padded to a power of two
    block_size: int
    window: int
    scale: float  # in base 2, as all scores
    softcap: float  # the same
    bend: float  # exp2(bend * |score|) is exp(-2 * |score / softcap|)
    by_hand: bool  # see in_triton.py


class _Data(NamedTuple):
    """Tensors and their strides, in elements; the last stride of each is 1."""

    q: torch.Tensor
    q_row: int
    q_head: int
    k: torch.Tensor
    k_slot: int
    k_token: int
    k_head: int
    v: torch.Tensor
    v_slot: int
    v_token: int
    v_head: int
    table: torch.Tensor
    columns: int  # odd(): see in_triton.py
    starts: torch.Tensor
    out: torch.Tensor
    parts: torch.Tensor  # [rows, heads, splits, dim], float32; `out` itself where nothing is split
    levels: torch.Tensor  # [rows, heads, splits]: the logarithm of the sum of a part's weights, in base 2


def decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    *,
    rule: Rule,
    splits: int | None = None,
) -> torch.Tensor:
    """Attention of q [rows, heads, dim] over pools k, v [slots, block_size, kv_heads, dim]; [rows, heads, dim].

    table int32 [rows, columns]: slots, -1 for a hole; starts int32 [rows]: the position of each query.
    Requires: the keys and values at these positions are in their pages.
    """
    check_place(q)
    check_pages(q, k, v, (table, starts))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    shape = _shape(q, k, table.shape[1], rule, splits)
    parts = levels = out
    if shape.splits > 1:
        parts = torch.empty((*q.shape[:2], shape.splits, shape.dim), dtype=torch.float32, device=q.device)
        levels = torch.empty(parts.shape[:3], dtype=torch.float32, device=q.device)
    data = _Data(
        q, q.stride(0), q.stride(1), k, *steps_of(k), v, *steps_of(v), table, odd(table.stride(0)), starts,
        out, parts, levels,
    )  # fmt: skip
    attend, add_up = _kernels()
    with torch.cuda.device(q.get_device()):  # launches go to the current device; -1, of a CPU tensor, changes nothing
        attend[k.shape[2], shape.splits, len(q)](data, shape, **OPTIONS)
        if shape.splits > 1:
            add_up[q.shape[1], len(q)](data, shape, num_warps=4)
    return out


def _shape(q: torch.Tensor, k: torch.Tensor, columns: int, rule: Rule, splits: int | None) -> _Shape:
    group, dim = q.shape[1] // k.shape[2], q.shape[2]
    wide = max(LEAST_TILE, power(dim))
    keys = max(LEAST_TILE, min(MOST_TILE, TILE_BYTES // (wide * q.element_size())))
    longest = columns * k.shape[1] if not rule.window else min(columns * k.shape[1], rule.window + keys)
    if splits is None:
        wanted = -(-PROGRAMS * processors(q.device) // (len(q) * k.shape[2]))
        splits = max(1, min(wanted, -(-longest // LEAST_KEYS), MOST_SPLITS))
    return _Shape(
        rows=max(LEAST_TILE, power(group)),
        keys=keys,
        least=max(1, LEAST_KEYS // keys),
        splits=splits,
        wide_splits=power(splits),
        group=group,
        dim=dim,
        wide=wide,
        block_size=k.shape[1],
        window=rule.window,
        scale=rule.scale * LOG2E,
        softcap=rule.softcap * LOG2E,
        bend=-2.0 / rule.softcap if rule.softcap else 0.0,
        by_hand=interpreted(),
    )


@cache
def _kernels() -> tuple[Any, Any]:
    """Both kernels, compiled for each shape when it is first met."""
    triton = bring(globals())
    globals().update(_share=triton.jit(_share), _score=triton.jit(_score))
    return triton.jit(_attend), triton.jit(_add_up)


def _attend(data: tensor, shape: constexpr) -> None:
    """One split of a row, and one KV head. Scores are in base 2, since that exponential is an instruction."""
    head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(data.starts + row)
    near, tiles, share = _share(start, shape)
    first, last = near + split * share, near + tl.minimum((split + 1) * share, tiles)
    if shape.splits > 1:  # noqa: SIM102  # the compiler joins no constant with a number
        if first >= last:
            return
    nth, dims = tl.arange(0, shape.rows), tl.arange(0, shape.wide)
    inside, mine = (dims < shape.dim)[None, :], nth < shape.group
    heads = head * shape.group + nth
    q_at = row.to(tl.int64) * data.q_row + heads * data.q_head
    q = tl.load(data.q + q_at[:, None] + dims[None, :], mask=mine[:, None] & inside, other=0.0)
    best = tl.full([shape.rows], -1e30, tl.float32)  # finite, so that a row of masked scores gives no inf - inf
    total, sums = tl.full([shape.rows], 0, tl.float32), tl.full([shape.rows, shape.wide], 0, tl.float32)
    for tile in range(first, last):
        key = tile * shape.keys + tl.arange(0, shape.keys)
        read = key <= start
        if shape.window != 0:
            read &= key > start - shape.window
        at = data.table + row.to(tl.int64) * (data.columns // 2) + key // shape.block_size
        slot, place = tl.load(at, mask=read, other=-1).to(tl.int64), key % shape.block_size
        there = (slot >= 0)[:, None] & inside
        k_at = slot * data.k_slot + place * data.k_token + head * data.k_head
        v_at = slot * data.v_slot + place * data.v_token + head * data.v_head
        k = tl.load(data.k + k_at[:, None] + dims[None, :], mask=there, other=0.0)
        v = tl.load(data.v + v_at[:, None] + dims[None, :], mask=there, other=0.0)
        scores = tl.where(read[None, :], _score(q, k, shape), float("-inf"))
        peak = tl.maximum(best, tl.max(scores, 1))
        weights, fade = tl.exp2(scores - peak[:, None]), tl.exp2(best - peak)
        total = total * fade + tl.sum(weights, 1)
        sums = multiply(weights.to(q.dtype), v, sums * fade[:, None], shape.by_hand)
        best = peak
    answer, stored = sums / tl.where(total > 0, total, 1.0)[:, None], mine[:, None] & inside
    at = (row.to(tl.int64) * tl.num_programs(0) * shape.group + heads) * shape.splits + split
    tl.store(data.parts + at[:, None] * shape.dim + dims[None, :], answer.to(data.parts.dtype.element_ty), mask=stored)
    if shape.splits > 1:
        tl.store(data.levels + at, best + tl.log2(total), mask=mine)


def _add_up(data: tensor, shape: constexpr) -> None:
    """One head of one row: its parts, each weighted by the sum of its weights."""
    row = tl.program_id(1)
    _, tiles, share = _share(tl.load(data.starts + row), shape)
    split, dims = tl.arange(0, shape.wide_splits), tl.arange(0, shape.wide)
    used, inside = split * share < tl.minimum(tiles, shape.splits * share), dims < shape.dim
    at = row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    levels = tl.load(data.levels + at * shape.splits + split, mask=used, other=-1e30)
    some = data.parts + (at * shape.splits + split)[:, None] * shape.dim + dims[None, :]
    parts = tl.load(some, mask=used[:, None] & inside[None, :], other=0.0)
    weights = tl.where(used, tl.exp2(levels - tl.max(levels, 0)), 0.0)
    total = tl.sum(weights, 0)
    answer = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(data.out + at * shape.dim + dims, answer.to(data.out.dtype.element_ty), mask=inside)


def _share(start: tensor, shape: constexpr) -> Any:
    """Of a row: its first tile, how many it has, and how many of them a split takes. Padding has none."""
    near = 0 if shape.window == 0 else tl.maximum(start - shape.window + 1, 0) // shape.keys
    tiles = tl.where(start < 0, 0, start // shape.keys + 1 - near)
    return near, tiles, tl.maximum((tiles + shape.splits - 1) // shape.splits, shape.least)


def _score(q: tensor, k: tensor, shape: constexpr) -> Any:
    """Scores [rows, keys] in base 2."""
    scores = multiply(q, tl.trans(k), tl.full([shape.rows, shape.keys], 0, tl.float32), shape.by_hand) * shape.scale
    if shape.softcap != 0.0:
        fade = tl.exp2(tl.abs(scores) * shape.bend)  # tanh without overflow
        scores = tl.where(scores < 0, -shape.softcap, shape.softcap) * ((1.0 - fade) / (1.0 + fade))
    return scores
