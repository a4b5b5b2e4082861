"""Paged attention on CUDA, in Triton. Owns the kernel, its tiles and its launch. Knows no sequences and no cache: it
reads block tables, page pools and queries, and it never gathers a context.

    segment   queries of one row: q[offsets[s] : offsets[s + 1]], at positions starts[s], starts[s] + 1, ...
    program   one tile of queries of one segment, and all heads that share one KV head: its rows are (query, head) pairs
    keys      walked a tile at a time, each tile through the table: key j lies in slot table[s, j // block_size]

              0 .. sinks            first key any query of the tile reads .. its last query
              [t] [t]      (skipped)      [t] [t] [t] [t]

Tiles of keys begin at multiples of their size, so a query adds up its keys in one order however a prompt was cut.
Triton is imported by the first call: the module itself needs neither it nor a GPU.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Required, TypedDict, Unpack

import torch

from quire.core.records.errors import InputError, MissingExtra, say

LOG2E = math.log2(math.e)
TILE_BYTES = 16 << 10  # of a tile of keys: two stages of K and V fit into shared memory, for heads of up to 1 KB
MIN_TILE, MAX_TILE = 16, 64  # tensor cores take no tile below 16 x 16
OPTIONS = {"num_warps": 4, "num_stages": 2, "enable_fp_fusion": True}

tl: Any = None  # triton.language, once _kernel() has put it here: the compiler looks up names in this module
if TYPE_CHECKING:  # and these two, which it finds in annotations
    from typing import Any as constexpr
    from typing import Any as tensor


class Rule(TypedDict, total=False):
    """How scores are made, and which keys a query reads: all up to its own, or the last `window` and the `sinks`."""

    scale: Required[float]
    window: int  # 0: all
    sinks: int
    softcap: float  # 0: none


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a kernel is compiled for: one per model, layer group and kind of step."""

    rows: int  # of a tile: (query, head) pairs, padded to a power of two
    queries: int  # of a tile
    keys: int  # of a tile
    group: int  # heads that share a KV head
    dim: int
    wide: int  # dim, padded to a power of two
    block_size: int
    window: int
    sinks: int
    scale: float  # in base 2, as all scores
    softcap: float  # the same
    bend: float  # exp2(bend * |score|) is exp(-2 * |score / softcap|)


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
    out: torch.Tensor


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    offsets: torch.Tensor,
    starts: torch.Tensor,
    *,
    max_query: int,
    **rule: Unpack[Rule],
) -> torch.Tensor:
    """Attention of q [total, heads, dim] over pools k, v [num_slots, block_size, kv_heads, dim]; [total, heads, dim].

    table int32 [segments, columns]: slots, -1 for a hole; offsets int32 [segments + 1]; starts int32 [segments].
    Requires: the segments' own keys and values are in the pool; no segment has more than max_query queries.
    """
    _check(q, k, v, (table, offsets, starts))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if out.numel() == 0 or len(starts) == 0 or max_query < 1:
        return out
    shape = _shape(q, k, max_query, **rule)
    grid = (-(-max_query // shape.queries), k.shape[2], len(starts))
    (k_slot, k_token, k_head, _), (v_slot, v_token, v_head, _) = k.stride(), v.stride()
    data = _Data(q, q.stride(0), q.stride(1), k, k_slot, k_token, k_head, v, v_slot, v_token, v_head, out)
    with torch.cuda.device(q.get_device()):  # launches go to the current device; -1, of a CPU tensor, changes nothing
        launch = _kernel()[grid]
        launch(data, table, table.stride(0), offsets, starts, shape, **OPTIONS)
    return out


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, index: tuple[torch.Tensor, ...]) -> None:
    """Refuse what the kernel would read wrongly."""
    if not q.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise InputError(say("the paged kernel", f"the queries are on {q.device}", "use the CPU path there"))
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


def _shape(
    q: torch.Tensor,
    k: torch.Tensor,
    max_query: int,
    *,
    scale: float,
    window: int = 0,
    sinks: int = 0,
    softcap: float = 0.0,
) -> _Shape:
    """Tiles: a step of single tokens needs few rows, a prompt many; wide heads leave room for fewer keys and rows."""
    group, dim = q.shape[1] // k.shape[2], q.shape[2]
    wide = max(MIN_TILE, _power(dim))
    halves = q.element_size() // 2  # float32 has no tensor cores: larger tiles would not fit into registers
    room = TILE_BYTES // (wide * q.element_size())
    rows = max(MIN_TILE, _power(group), min(_power(group * max_query), MAX_TILE // halves, room // halves))
    return _Shape(
        rows=rows,
        queries=rows // group,
        keys=max(MIN_TILE, min(MAX_TILE // halves, room)),
        group=group,
        dim=dim,
        wide=wide,
        block_size=k.shape[1],
        window=window,
        sinks=sinks,
        scale=scale * LOG2E,
        softcap=softcap * LOG2E,
        bend=-2.0 / softcap if softcap else 0.0,
    )


def _power(number: int) -> int:
    """The least power of two that is not below."""
    return 1 << (number - 1).bit_length()


@cache
def _kernel() -> Any:
    """The kernel, compiled for each shape when it is first met; imports Triton."""
    try:
        triton = import_module("triton")
        language = import_module("triton.language")
    except ImportError as missing:
        cure = "install triton (the CUDA builds of torch bring it), or use the CPU path"
        raise MissingExtra(say("the paged kernel", f"Triton is not there ({missing})", cure)) from missing
    globals().update(tl=language, constexpr=language.constexpr, tensor=language.tensor)
    globals().update(_find=triton.jit(_find), _score=triton.jit(_score))
    # Tables come in any size, at any address: one kernel serves them all.
    return triton.jit(_attend, do_not_specialize=["table", "columns", "offsets", "starts"])


def _attend(data: tensor, table: tensor, columns: tensor, offsets: tensor, starts: tensor, shape: constexpr) -> None:
    """One program. Scores are in base 2, since that exponential is an instruction; sums are float32."""
    head, segment = tl.program_id(1), tl.program_id(2)
    begin, start = tl.load(offsets + segment), tl.load(starts + segment)
    first = tl.program_id(0) * shape.queries
    last = tl.minimum(first + shape.queries, tl.load(offsets + segment + 1) - begin) - 1
    if last < first:
        return
    row, dims = tl.arange(0, shape.rows), tl.arange(0, shape.wide)
    query = tl.minimum(first + row // shape.group, last)  # rows to spare repeat the last query and are not stored
    heads = head * shape.group + row % shape.group
    token = (begin + query).to(tl.int64)
    inside = (dims < shape.dim)[None, :]
    q_at = token * data.q_token + heads * data.q_head
    q = tl.load(data.q + q_at[:, None] + dims[None, :], mask=inside, other=0.0)
    near = 0 if shape.window == 0 else tl.maximum(start + first - shape.window + 1, 0) // shape.keys
    far = (tl.minimum(near * shape.keys, shape.sinks) + shape.keys - 1) // shape.keys  # tiles of sinks, before `near`
    best = tl.full([shape.rows], -1e30, tl.float32)  # finite, so that a row of masked scores gives no inf - inf
    total, sums = tl.full([shape.rows], 0, tl.float32), tl.full([shape.rows, shape.wide], 0, tl.float32)
    for step in range(0, far + (start + last) // shape.keys + 1 - near):
        key = tl.where(step < far, step, step - far + near) * shape.keys + tl.arange(0, shape.keys)
        slot = _find(table + segment * columns, key, start + first, start + last, shape).to(tl.int64)
        k_at = slot * data.k_slot + key % shape.block_size * data.k_token + head * data.k_head
        v_at = slot * data.v_slot + key % shape.block_size * data.v_token + head * data.v_head
        k = tl.load(data.k + k_at[:, None] + dims[None, :], mask=(slot >= 0)[:, None] & inside, other=0.0)
        v = tl.load(data.v + v_at[:, None] + dims[None, :], mask=(slot >= 0)[:, None] & inside, other=0.0)
        scores = tl.where((slot >= 0)[None, :], _score(q, k, start + query, key, shape), float("-inf"))
        peak = tl.maximum(best, tl.max(scores, 1))
        weights, fade = tl.exp2(scores - peak[:, None]), tl.exp2(best - peak)
        total = total * fade + tl.sum(weights, 1)
        sums = tl.dot(weights.to(v.dtype), v, sums * fade[:, None], input_precision="ieee")
        best = peak
    out_at = (token * tl.num_programs(1) * shape.group + heads) * shape.dim
    stored = (first + row // shape.group <= last)[:, None] & inside
    tl.store(data.out + out_at[:, None] + dims[None, :], (sums / total[:, None]).to(q.dtype), mask=stored)


def _find(row: tensor, key: tensor, low: tensor, high: tensor, shape: constexpr) -> Any:
    """Slots of a tile of keys; -1 for a hole and for what no query from `low` to `high` reads."""
    read = key <= high
    if shape.window != 0:
        read &= (key > low - shape.window) | (key < shape.sinks)
    return tl.load(row + key // shape.block_size, mask=read, other=-1)


def _score(q: tensor, k: tensor, position: tensor, key: tensor, shape: constexpr) -> Any:
    """Scores [rows, keys] in base 2; -inf where a query does not read a key."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * shape.scale
    if shape.softcap != 0.0:
        fade = tl.exp2(tl.abs(scores) * shape.bend)  # tanh without overflow
        scores = tl.where(scores < 0, -shape.softcap, shape.softcap) * ((1.0 - fade) / (1.0 + fade))
    read = key[None, :] <= position[:, None]
    if shape.window != 0:
        read &= (key[None, :] > position[:, None] - shape.window) | (key[None, :] < shape.sinks)
    return tl.where(read, scores, float("-inf"))
