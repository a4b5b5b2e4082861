"""Attention of many tokens per row over pages, in Triton. Owns the kernel, its tiles and its launch. Knows no sequences
and no cache: it reads block tables, pages and queries, and it never gathers a context.

    segment   queries of one row: q[offsets[s] : offsets[s + 1]], at positions starts[s], starts[s] + 1, ...
    program   one tile of queries of one segment, and all heads that share one KV head: its rows are (query, head) pairs
    keys      walked a tile at a time, each tile through the table: key j lies in slot table[s, j // block_size]

              0 .. sinks            first key any query of the tile reads .. its last query
              [t] [t]      (skipped)      [e] [t] [t] [t] [e] [e]       [e]: an edge: some query does not read all of it

How many programs there are follows from the number of tokens and of segments: each finds its segment in `offsets`.
Tiles of keys begin at multiples of their size, so a query adds up its keys in one order however a prompt was cut. Few
tokens behind a long prefix are the exception: they leave processors idle, so programs share a tile of queries, each
walks a part of its keys (a split), and a second kernel adds up the parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from quire.engine.model.kernels.in_triton import bring, check_place, interpreted, odd, power, processors
from quire.engine.model.kernels.rules import LOG2E, Rule, check_pages, steps_of

TILE_BYTES = 16 << 10  # of a tile of keys: three stages of K and V fit into shared memory, for heads of up to 512 bytes
SUM_BYTES = 64 << 10  # of the sums of a tile of queries, in float32: they are kept in registers
LEAST_TILE, MOST_KEYS, MOST_ROWS = 16, 128, 128  # tensor cores take no tile below 16 x 16
WARPS, WARPS_WIDE = 4, 8  # of a program; the second where its sums fill more registers than four warps have
LEAST_KEYS, MOST_SPLITS = 512, 32  # keys that are worth a program of their own; programs that share a tile of queries
PROGRAMS = 2  # per processor, where keys are split
OPTIONS = {"num_stages": 3}

tl: Any = None  # these three come with Triton
multiply: Any = None
if TYPE_CHECKING:
    from typing import Any as constexpr
    from typing import Any as tensor


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a kernel is compiled for: one per model, layer group and kind of step."""

    rows: int  # of a tile: (query, head) pairs, padded to a power of two
    queries: int  # of a tile
    keys: int  # of a tile
    splits: int
    wide_splits: int  # padded to a power of two
    group: int  # heads that share a KV head
    dim: int
    wide: int  # dim, padded to a power of two
    block_size: int
    window: int
    sinks: int
    scale: float  # in base 2, as all scores
    softcap: float  # the same
    bend: float  # exp2(bend * |score|) is exp(-2 * |score / softcap|)
    by_hand: bool  # see in_triton.py


class _Data(NamedTuple):
    """Tensors and their strides, in elements; the last stride of each is 1. A tuple, as kernels take no dataclass."""

    q: torch.Tensor
    q_token: int
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
    offsets: torch.Tensor
    starts: torch.Tensor
    segments: int  # odd()
    out: torch.Tensor
    parts: torch.Tensor  # [total, heads, splits, dim], float32; `out` itself where nothing is split
    levels: torch.Tensor  # [total, heads, splits]: the logarithm of the sum of a part's weights, in base 2


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    offsets: torch.Tensor,
    starts: torch.Tensor,
    *,
    rule: Rule,
    max_query: int,
) -> torch.Tensor:
    """Attention of q [total, heads, dim] over pools k, v [num_slots, block_size, kv_heads, dim]; [total, heads, dim].

    table int32 [segments, columns]: slots, -1 for a hole; offsets int32 [segments + 1]; starts int32 [segments].
    Requires: the segments' own keys and values are in the pool. `max_query` sets the tiles: about the longest segment.
    """
    check_place(q)
    check_pages(q, k, v, (table, offsets, starts))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not out.numel() or not len(starts):
        return out
    shape = _shape(q, k, max_query, rule)
    tiles = len(q) // shape.queries + len(starts)
    splits = _num_splits(q, k.shape[2] * tiles, table.shape[1] * k.shape[1], rule)
    shape, parts, levels = replace(shape, splits=splits, wide_splits=power(splits)), out, out
    if splits > 1:
        parts = torch.empty((*q.shape[:2], splits, shape.dim), dtype=torch.float32, device=q.device)
        levels = torch.empty(parts.shape[:3], dtype=torch.float32, device=q.device)
    data = _Data(
        q, q.stride(0), q.stride(1), k, *steps_of(k), v, *steps_of(v),
        table, odd(table.stride(0)), offsets, starts, odd(len(starts)), out, parts, levels,
    )  # fmt: skip
    warps = WARPS_WIDE if 4 * shape.rows * shape.wide >= SUM_BYTES else WARPS
    attend_tiles, add_up = _kernels()
    with torch.cuda.device(q.get_device()):  # launches go to the current device; -1, of a CPU tensor, changes nothing
        attend_tiles[k.shape[2], tiles, splits](data, shape, num_warps=warps, **OPTIONS)
        if splits > 1:
            add_up[q.shape[1], len(q)](data, shape, num_warps=4)
    return out


def _num_splits(q: torch.Tensor, programs: int, longest: int, rule: Rule) -> int:
    """As many as give each processor something to do, of keys that are worth it. Follows from shapes only."""
    longest = min(longest, rule.window or longest)
    wanted = -(-PROGRAMS * processors(q.device) // programs) if programs < processors(q.device) else 1
    return max(1, min(wanted, longest // LEAST_KEYS, MOST_SPLITS))


def _shape(q: torch.Tensor, k: torch.Tensor, max_query: int, rule: Rule) -> _Shape:
    """Tiles: a step of few tokens needs few rows, a prompt many; wide heads leave room for fewer keys and rows."""
    group, dim = q.shape[1] // k.shape[2], q.shape[2]
    wide = max(LEAST_TILE, power(dim))
    halves = q.element_size() // 2  # float32 has no tensor cores: larger tiles would not fit into registers
    most = min(MOST_ROWS, SUM_BYTES // (4 * wide)) // halves**2
    rows = max(LEAST_TILE, power(group), min(power(group * max(1, max_query)), most))
    return _Shape(
        rows=rows,
        queries=rows // group,
        keys=max(LEAST_TILE, min(MOST_KEYS, TILE_BYTES // (wide * q.element_size())) // halves),
        splits=1,
        wide_splits=1,
        group=group,
        dim=dim,
        wide=wide,
        block_size=k.shape[1],
        window=rule.window,
        sinks=rule.sinks,
        scale=rule.scale * LOG2E,
        softcap=rule.softcap * LOG2E,
        bend=-2.0 / rule.softcap if rule.softcap else 0.0,
        by_hand=interpreted(),
    )


@cache
def _kernels() -> tuple[Any, Any]:
    """Both kernels, compiled for each shape when it is first met."""
    triton = bring(globals())
    globals().update(_find=triton.jit(_find), _walk=triton.jit(_walk), _score=triton.jit(_score))
    return triton.jit(_attend), triton.jit(_add_up)


def _attend(data: tensor, shape: constexpr) -> None:
    """One program: a tile of queries, and a split of its keys. Those with most keys begin first."""
    head, tile = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    segment = _find(data, tile, shape)
    begin, start = tl.load(data.offsets + segment), tl.load(data.starts + segment)
    first = (tile - segment - begin // shape.queries) * shape.queries
    last = tl.minimum(first + shape.queries, tl.load(data.offsets + segment + 1) - begin) - 1
    if last < first:
        return
    row, dims = tl.arange(0, shape.rows), tl.arange(0, shape.wide)
    query = tl.minimum(first + row // shape.group, last)  # rows to spare repeat the last query and are not stored
    heads = head * shape.group + row % shape.group
    token = (begin + query).to(tl.int64)
    q_at, inside = token * data.q_token + heads * data.q_head, (dims < shape.dim)[None, :]
    q = tl.load(data.q + q_at[:, None] + dims[None, :], mask=inside, other=0.0)
    low, high, end = start + first, start + last, (start + last) // shape.keys + 1
    near = 0 if shape.window == 0 else tl.maximum(low - shape.window + 1, 0) // shape.keys
    whole = 0 if shape.window == 0 else (tl.maximum(high - shape.window + 1, 0) + shape.keys - 1) // shape.keys
    whole, edge = tl.minimum(whole, end), (low + 1) // shape.keys  # all queries read all of the tiles between them
    share = (end - near + shape.splits - 1) // shape.splits
    begins, ends = near + tl.program_id(2) * share, tl.minimum(near + (tl.program_id(2) + 1) * share, end)
    best = tl.full([shape.rows], -1e30, tl.float32)  # finite, so that a row of masked scores gives no inf - inf
    so_far = (best, tl.full([shape.rows], 0, tl.float32), tl.full([shape.rows, shape.wide], 0, tl.float32))
    lane = (data.table + segment.to(tl.int64) * (data.columns // 2), head, low, high, q, start + query)
    if shape.sinks != 0:  # tiles of sinks, before `near`
        far = (tl.minimum(near * shape.keys, shape.sinks) + shape.keys - 1) // shape.keys
        so_far = _walk(data, lane, so_far, (0, tl.where(begins == near, far, 0)), shape, True)
    if shape.window != 0:
        so_far = _walk(data, lane, so_far, (begins, tl.minimum(whole, ends)), shape, True)
    so_far = _walk(data, lane, so_far, (tl.maximum(whole, begins), tl.minimum(edge, ends)), shape, False)
    rest = tl.maximum(tl.maximum(whole, edge), begins)
    best, total, sums = _walk(data, lane, so_far, (rest, ends), shape, True)
    at = ((token * tl.num_programs(0) * shape.group + heads) * shape.splits + tl.program_id(2)).to(tl.int64)
    is_mine, answer = first + row // shape.group <= last, sums / tl.where(total > 0, total, 1.0)[:, None]
    stored, answer = is_mine[:, None] & inside, answer.to(data.parts.dtype.element_ty)
    tl.store(data.parts + at[:, None] * shape.dim + dims[None, :], answer, mask=stored)
    if shape.splits > 1:
        level = best + tl.log2(tl.where(total > 0, total, 1.0))  # of a query that reads none of these keys: about -1e30
        tl.store(data.levels + at, level, mask=is_mine)


def _add_up(data: tensor, shape: constexpr) -> None:
    """One head of one query: its parts, each weighted by the sum of its weights."""
    split, dims = tl.arange(0, shape.wide_splits), tl.arange(0, shape.wide)
    at = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    levels = tl.load(data.levels + at * shape.splits + split, mask=split < shape.splits, other=-1e30)
    inside = (split < shape.splits)[:, None] & (dims < shape.dim)[None, :]
    parts = tl.load(
        data.parts + (at * shape.splits + split)[:, None] * shape.dim + dims[None, :], mask=inside, other=0.0
    )
    weights = tl.exp2(levels - tl.max(levels, 0))
    answer = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(data.out + at * shape.dim + dims, answer.to(data.out.dtype.element_ty), mask=dims < shape.dim)


def _find(data: tensor, tile: tensor, shape: constexpr) -> Any:
    """The segment of a tile: segment s has those from offsets[s] // queries + s on, and perhaps one that is empty."""
    low, high = tile * 0, data.segments // 2
    while high - low > 1:
        middle = (low + high) // 2
        begins = tl.load(data.offsets + middle) // shape.queries + middle
        low, high = tl.where(begins <= tile, middle, low), tl.where(begins <= tile, high, middle)
    return low


def _walk(data: tensor, lane: tensor, so_far: tensor, span: tensor, shape: constexpr, edge: constexpr) -> Any:
    """Some tiles of keys, added up in float32. Scores are in base 2, since that exponential is an instruction."""
    row, head, low, high, q, position = lane
    best, total, sums = so_far
    first, last = span
    dims = tl.arange(0, shape.wide)
    for tile in range(first, last):
        key = tile * shape.keys + tl.arange(0, shape.keys)
        there = (dims < shape.dim)[None, :]
        if edge:
            reached = key <= high
            if shape.window != 0:
                reached &= (key > low - shape.window) | (key < shape.sinks)
            slot = tl.load(row + key // shape.block_size, mask=reached, other=-1).to(tl.int64)
            there = (slot >= 0)[:, None] & there
        else:
            slot = tl.load(row + key // shape.block_size).to(tl.int64)
        k_at = slot * data.k_slot + key % shape.block_size * data.k_token + head * data.k_head
        v_at = slot * data.v_slot + key % shape.block_size * data.v_token + head * data.v_head
        k = tl.load(data.k + k_at[:, None] + dims[None, :], mask=there, other=0.0)
        v = tl.load(data.v + v_at[:, None] + dims[None, :], mask=there, other=0.0)
        scores = _score(q, k, shape)
        if edge:
            read = key[None, :] <= position[:, None]
            if shape.window != 0:
                read &= (key[None, :] > position[:, None] - shape.window) | (key[None, :] < shape.sinks)
            scores = tl.where(read, scores, float("-inf"))
        peak = tl.maximum(best, tl.max(scores, 1))
        weights, fade = tl.exp2(scores - peak[:, None]), tl.exp2(best - peak)
        total = total * fade + tl.sum(weights, 1)
        sums = multiply(weights.to(q.dtype), v, sums * fade[:, None], shape.by_hand)
        best = peak
    return best, total, sums


def _score(q: tensor, k: tensor, shape: constexpr) -> Any:
    """Scores [rows, keys] in base 2."""
    scores = multiply(q, tl.trans(k), tl.full([shape.rows, shape.keys], 0, tl.float32), shape.by_hand) * shape.scale
    if shape.softcap != 0.0:
        fade = tl.exp2(tl.abs(scores) * shape.bend)  # tanh without overflow
        scores = tl.where(scores < 0, -shape.softcap, shape.softcap) * ((1.0 - fade) / (1.0 + fade))
    return scores
