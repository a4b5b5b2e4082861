"""Attention of decoded tokens over pages, in Triton: one query per row. Owns its kernels, their tiles and their launch.

    row      reads the keys at 0 .. starts[row], of them the last `window`; a negative start is padding: its output is 0
    keys     walked a tile at a time, each tile through the table: key j lies in slot table[row, j // block_size]
    splits   programs that share a row: each walks an equal number of tiles, and those with none left end at once
    heads    all queries of one KV head are the rows of one product, so a key is read once

              split 0             split 1             split 2
              [t] [t] [t] [t]     [t] [t] [t] [t]     [t] [t]          a row of ten tiles
              [t] [t]                                                  a short one

How many splits there are depends on shapes only; how much each reads, on the row. A second kernel adds up the parts.

The same kernel may begin with the product QKV (`place_and_decode`): each program norms and turns the queries it needs,
and the split that has a row's last key makes that key, adds it up first, and writes it and its value into their page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from quire.engine.model.forward.parts import RmsNorm
from quire.engine.model.kernels.heads import ByTable, Turns
from quire.engine.model.kernels.in_triton import bring, check_place, interpreted, odd, power, processors
from quire.engine.model.kernels.rules import LOG2E, Rule, check_pages, steps_of

TILE_BYTES = 16 << 10  # of a tile of keys
LEAST_TILE, MOST_TILE = 16, 128
LEAST_KEYS = 128  # that are worth a program of their own
MOST_SPLITS = 64
PROGRAMS = 8  # per processor, that keep its memory busy
OPTIONS = {"num_warps": 4, "num_stages": 3}

tl: Any = None  # these come with Triton
multiply: Any = None
normed: Any = None
turned: Any = None
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
    half: int  # of dim: queries and keys are walked in two halves, so that they can be turned
    room: int  # half, padded to a power of two
    block_size: int
    window: int
    scale: float  # in base 2, as all scores
    softcap: float  # the same
    bend: float  # exp2(bend * |score|) is exp(-2 * |score / softcap|)
    fresh: bool  # it begins with the product QKV
    norm: int  # then of queries and keys; 0: none, 1: rounded before the weight, 2: behind it
    eps: float
    by_hand: bool  # see in_triton.py


class _Data(NamedTuple):
    """Tensors and their strides, in elements; the last stride of each is 1."""

    q: torch.Tensor  # or QKV
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
    cosines: torch.Tensor  # of QKV only, as is the weight
    sines: torch.Tensor
    weight: torch.Tensor  # [heads + kv_heads, dim], or anything where there is no norm
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
    shape = _shape(q, k, table.shape[1], rule, splits)
    return _launch(q, (q, q, q), k, v, ByTable(table, starts), shape)


def place_and_decode(
    qkv: torch.Tensor,
    angles: Turns,
    norm: RmsNorm | None,
    k: torch.Tensor,
    v: torch.Tensor,
    where: ByTable,
    *,
    rule: Rule,
    splits: int | None = None,
) -> torch.Tensor:
    """`place_heads` and `decode` in one: qkv [rows, (heads + 2 kv_heads) * dim] in, [rows, heads, dim] out."""
    check_place(qkv)
    heads = qkv.unflatten(1, (-1, k.shape[3]))
    q = heads[:, : heads.shape[1] - 2 * k.shape[2]]
    check_pages(q, k, v, where)
    shape = _shape(q, k, where.table.shape[1], rule, splits)
    kind, eps = (0, 0.0) if norm is None else (1 + norm.scale_first, norm.eps)
    shape = replace(shape, fresh=True, norm=kind, eps=eps)
    return _launch(q, (*angles, qkv if norm is None else norm.weight), k, v, where, shape)


def _launch(
    q: torch.Tensor,
    turning: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    k: torch.Tensor,
    v: torch.Tensor,
    where: ByTable,
    shape: _Shape,
) -> torch.Tensor:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    parts = levels = out
    if shape.splits > 1:
        parts = torch.empty((*q.shape[:2], shape.splits, shape.dim), dtype=torch.float32, device=q.device)
        levels = torch.empty(parts.shape[:3], dtype=torch.float32, device=q.device)
    data = _Data(
        q, q.stride(0), q.stride(1), k, *steps_of(k), v, *steps_of(v), where.table, odd(where.table.stride(0)),
        where.starts, *turning, out, parts, levels,
    )  # fmt: skip
    attend, add_up = _kernels()
    exact = shape.fresh and q.dtype == torch.float32  # turned as torch does, product by product
    with torch.cuda.device(q.get_device()):  # launches go to the current device; -1, of a CPU tensor, changes nothing
        attend[k.shape[2], shape.splits, len(q)](data, shape, **OPTIONS, enable_fp_fusion=not exact)
        if shape.splits > 1:
            add_up[q.shape[1], len(q)](data, shape, num_warps=4)
    return out


def _shape(q: torch.Tensor, k: torch.Tensor, columns: int, rule: Rule, splits: int | None) -> _Shape:
    group, dim = q.shape[1] // k.shape[2], q.shape[2]
    wide = max(LEAST_TILE, power(dim))
    keys = max(LEAST_TILE, min(MOST_TILE, TILE_BYTES // (wide * q.element_size())))
    if splits is None:
        longest = columns * k.shape[1] if not rule.window else min(columns * k.shape[1], rule.window + keys)
        wanted = -(-PROGRAMS * processors(q.device) // max(1, len(q) * k.shape[2]))
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
        half=dim // 2,
        room=max(LEAST_TILE, power(dim // 2)),
        block_size=k.shape[1],
        window=rule.window,
        scale=rule.scale * LOG2E,
        softcap=rule.softcap * LOG2E,
        bend=-2.0 / rule.softcap if rule.softcap else 0.0,
        fresh=False,
        norm=0,
        eps=0.0,
        by_hand=interpreted(),
    )


@cache
def _kernels() -> tuple[Any, Any]:
    """Both kernels, compiled for each shape when it is first met."""
    triton = bring(globals())
    globals().update({one.__name__: triton.jit(one) for one in (_share, _load, _score, _capped, _enter)})
    return triton.jit(_attend), triton.jit(_add_up)


def _attend(data: tensor, shape: constexpr) -> None:
    """One split of a row, and one KV head. Scores are in base 2, since that exponential is an instruction."""
    head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start = tl.load(data.starts + row)
    near, tiles, share = _share(start, shape)
    first, last = near + split * share, near + tl.minimum((split + 1) * share, tiles)
    if shape.splits > 1:  # noqa: SIM102  # the compiler joins no constant with a number
        if first >= last:
            return
    nth, dims, end = tl.arange(0, shape.rows), tl.arange(0, shape.wide), start + 1
    heads, mine, inside = head * shape.group + nth, (nth < shape.group)[:, None], (dims < shape.dim)[None, :]
    halves, known = tl.arange(0, shape.room)[None, :], (tl.arange(0, shape.room) < shape.half)[None, :]
    q_at = data.q + row * data.q_row + heads[:, None] * data.q_head + halves
    q = (tl.load(q_at, mask=mine & known, other=0.0), tl.load(q_at + shape.half, mask=mine & known, other=0.0))
    best = tl.full([shape.rows], -1e30, tl.float32)  # finite, so that a row of masked scores gives no inf - inf
    total, sums = tl.full([shape.rows], 0, tl.float32), tl.full([shape.rows, shape.wide], 0, tl.float32)
    if shape.fresh:
        owns, end = (last == near + tiles) & (start >= 0), start
        q, best, total, sums = _enter(data, q, (head, row, start, owns), (best, total, sums), shape)
    for tile in range(first, last):
        k, v, read = _load(data, (row, head, start, end), tile, shape)
        scores = tl.where(read[None, :], _score(q, k, shape), float("-inf"))
        peak = tl.maximum(best, tl.max(scores, 1))
        weights, fade = tl.exp2(scores - peak[:, None]), tl.exp2(best - peak)
        total = total * fade + tl.sum(weights, 1)
        sums = multiply(weights.to(v.dtype), v, sums * fade[:, None], shape.by_hand)
        best = peak
    answer, stored = sums / tl.where(total > 0, total, 1.0)[:, None], mine & inside
    at = (row * tl.num_programs(0) * shape.group + heads) * shape.splits + split
    tl.store(data.parts + at[:, None] * shape.dim + dims[None, :], answer.to(data.parts.dtype.element_ty), mask=stored)
    if shape.splits > 1:
        tl.store(data.levels + at, best + tl.log2(total), mask=nth < shape.group)


def _load(data: tensor, lane: tensor, tile: tensor, shape: constexpr) -> Any:
    """A tile: keys in halves, values, and which of them the row reads from its pages."""
    row, head, start, end = lane
    halves, dims = tl.arange(0, shape.room)[None, :], tl.arange(0, shape.wide)[None, :]
    key = tile * shape.keys + tl.arange(0, shape.keys)
    read = key < end
    if shape.window != 0:
        read &= key > start - shape.window
    at = data.table + row * (data.columns // 2) + key // shape.block_size
    slot, place = tl.load(at, mask=read, other=-1).to(tl.int64), key % shape.block_size
    there = (slot >= 0)[:, None]
    known = there & (halves < shape.half)
    k_at = data.k + (slot * data.k_slot + place * data.k_token + head * data.k_head)[:, None] + halves
    v_at = data.v + (slot * data.v_slot + place * data.v_token + head * data.v_head)[:, None] + dims
    k = (tl.load(k_at, mask=known, other=0.0), tl.load(k_at + shape.half, mask=known, other=0.0))
    return k, tl.load(v_at, mask=there & (dims < shape.dim), other=0.0), read


def _enter(data: tensor, q: tensor, asks: tensor, so_far: tensor, shape: constexpr) -> Any:
    """Queries normed and turned; the row's own key and value into their page, and added up where they are owned."""
    head, row, start, owns = asks
    best, total, sums = so_far
    dtype: constexpr = data.out.dtype.element_ty
    nth, halves, dims = tl.arange(0, shape.rows)[:, None], tl.arange(0, shape.room)[None, :], tl.arange(0, shape.wide)
    known, heads = halves < shape.half, tl.num_programs(0) * shape.group
    cosines = tl.load(data.cosines + row * shape.half + halves, mask=known, other=0.0).to(tl.float32)
    sines = tl.load(data.sines + row * shape.half + halves, mask=known, other=0.0).to(tl.float32)
    low, high = q[0].to(tl.float32), q[1].to(tl.float32)
    k_at = data.q + row * data.q_row + (heads + head) * data.q_head + halves
    k_low = tl.load(k_at, mask=known, other=0.0).to(tl.float32)
    k_high = tl.load(k_at + shape.half, mask=known, other=0.0).to(tl.float32)
    if shape.norm != 0:
        weight, mine = data.weight + (head * shape.group + nth) * shape.dim + halves, (nth < shape.group) & known
        low, high = normed(low, high, weight, mine, dtype, shape)
        k_low, k_high = normed(k_low, k_high, data.weight + (heads + head) * shape.dim + halves, known, dtype, shape)
    low, high = turned(low, high, cosines, sines, dtype, shape)
    k_low, k_high = turned(k_low, k_high, cosines, sines, dtype, shape)
    v_at = data.q + row * data.q_row + (heads + tl.num_programs(0) + head) * data.q_head + dims
    value = tl.load(v_at, mask=dims < shape.dim, other=0.0)
    at = data.table + row * (data.columns // 2) + start // shape.block_size
    slot, place = tl.load(at, mask=owns, other=-1).to(tl.int64), start % shape.block_size
    k_at = data.k + slot * data.k_slot + place * data.k_token + head * data.k_head + halves
    tl.store(k_at, k_low.to(dtype), mask=known & (slot >= 0))
    tl.store(k_at + shape.half, k_high.to(dtype), mask=known & (slot >= 0))
    v_at = data.v + slot * data.v_slot + place * data.v_token + head * data.v_head + dims
    tl.store(v_at, value, mask=(dims < shape.dim) & (slot >= 0))
    score = _capped((tl.sum(low * k_low, 1) + tl.sum(high * k_high, 1)) * shape.scale, shape)
    best, total = tl.where(owns, score, best), tl.where(owns, 1.0, total)
    sums = tl.where(owns, value.to(tl.float32)[None, :], sums)
    return (low.to(dtype), high.to(dtype)), best, total, sums


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
    """Scores [rows, keys] in base 2, of queries and keys in halves."""
    scores = multiply(q[0], tl.trans(k[0]), tl.full([shape.rows, shape.keys], 0, tl.float32), shape.by_hand)
    return _capped(multiply(q[1], tl.trans(k[1]), scores, shape.by_hand) * shape.scale, shape)


def _capped(scores: tensor, shape: constexpr) -> Any:
    if shape.softcap != 0.0:
        fade = tl.exp2(tl.abs(scores) * shape.bend)  # tanh without overflow
        scores = tl.where(scores < 0, -shape.softcap, shape.softcap) * ((1.0 - fade) / (1.0 + fade))
    return scores
