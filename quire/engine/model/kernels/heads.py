"""From one product to attention, in Triton: Q and K normed and turned, K and V into their pages, in one launch.

    qkv [tokens, (heads + 2 kv_heads) * dim]     q q q q k k v v      of each token
                                                 └──┬──┘ └┬┘ └┴─► pages: values
                                                    │     └─ norm, turn ─► pages: keys
                                                    └─ norm, turn ─► [tokens, heads, dim]

Owns two kernels and their launches: the angles of positions, once per step, and the heads, once per layer. They round
where RmsNorm, Rotary and rotate in forward/parts.py do: equal to the last place, but for the norm, whose squares are
added up in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from quire.engine.model.forward.parts import RmsNorm, Rotary
from quire.engine.model.kernels.in_triton import bring, check_place, interpreted, odd, power
from quire.engine.model.kernels.rules import steps_of

HEADS = 8  # that a program turns
PLACES = 512  # of an angle's kernel

Turns = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, [tokens, dim / 2], in the dtype of the model

tl: Any = None  # these come with Triton
precise: Any = None
rounded: Any = None
normed: Any = None
turned: Any = None
if TYPE_CHECKING:
    from typing import Any as constexpr
    from typing import Any as tensor


class ByTable(NamedTuple):
    """Where KV of a decoded token goes: token r is row r of a table, at starts[r]; negative starts are padding."""

    table: torch.Tensor  # int32 [tokens, columns]
    starts: torch.Tensor  # int32 [tokens]


class BySlot(NamedTuple):
    """Where KV of a token goes, by number; negative slots are padding."""

    slot: torch.Tensor  # int64 [tokens]
    place: torch.Tensor  # int64 [tokens]


@dataclass(frozen=True, slots=True)
class _Circle:
    """What the kernel of angles is compiled for."""

    half: int  # of a head
    piece: int  # places of a program
    scaling: float
    by_hand: bool  # see in_triton.py


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the kernel of heads is compiled for."""

    heads: int
    kv_heads: int
    tile: int  # heads of a program
    half: int  # of a head
    room: int  # half, padded to a power of two
    block_size: int
    by_table: bool
    norm: int  # 0: none, 1: rounded before the weight, 2: behind it
    eps: float
    by_hand: bool  # see in_triton.py


class _Data(NamedTuple):
    """Tensors and their strides, in elements; the last stride of each is 1."""

    qkv: torch.Tensor
    qkv_row: int
    cosines: torch.Tensor
    sines: torch.Tensor
    weight: torch.Tensor  # [heads + kv_heads, dim], or anything where there is no norm
    table: torch.Tensor  # or the slots
    columns: int  # odd(): see in_triton.py
    starts: torch.Tensor  # or the places
    k: torch.Tensor
    k_slot: int
    k_token: int
    k_head: int
    v: torch.Tensor
    v_slot: int
    v_token: int
    v_head: int
    q: torch.Tensor


def turns(positions: torch.Tensor, rotary: Rotary, dtype: torch.dtype) -> Turns:
    """Angles of all tokens; once per step. Positions are int64 or int32; what padding gets is not read."""
    check_place(positions)
    half = len(rotary.frequencies)
    both = torch.empty((2, len(positions), half), dtype=dtype, device=positions.device)
    if both.numel():
        count, circle = len(positions) * half, _Circle(half, PLACES, rotary.scaling, interpreted())
        launch = _angles()[(-(-count // PLACES),)]
        options = {"num_warps": 4, "enable_fp_fusion": False}
        with torch.cuda.device(positions.get_device()):  # launches go to the current device; -1 changes nothing
            launch(positions, rotary.frequencies, both, odd(count), circle, **options)
    return both[0], both[1]


def place_heads(
    qkv: torch.Tensor,
    angles: Turns,
    norm: RmsNorm | None,
    k: torch.Tensor,
    v: torch.Tensor,
    where: ByTable | BySlot,
) -> torch.Tensor:
    """Queries of qkv, normed and turned, [tokens, heads, dim]; its keys and values go into pages k and v.

    Pages are [slots, block_size, kv_heads, dim]. Padding writes no page, and its queries are of no use.
    """
    check_place(qkv)
    kv_heads, dim = k.shape[2:]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    q = torch.empty((len(qkv), heads, dim), dtype=qkv.dtype, device=qkv.device)
    if not q.numel():
        return q
    shape = _Shape(
        heads=heads,
        kv_heads=kv_heads,
        tile=HEADS,
        half=dim // 2,
        room=power(dim // 2),
        block_size=k.shape[1],
        by_table=isinstance(where, ByTable),
        norm=0 if norm is None else 1 + norm.scale_first,
        eps=0.0 if norm is None else norm.eps,
        by_hand=interpreted(),
    )
    weight = qkv if norm is None else norm.weight
    data = _Data(
        qkv, qkv.stride(0), *angles, weight, where[0], odd(where[0].stride(0)), where[1],
        k, *steps_of(k), v, *steps_of(v), q,
    )  # fmt: skip
    options = {"num_warps": max(1, HEADS * shape.room // 256), "enable_fp_fusion": False}
    with torch.cuda.device(qkv.get_device()):
        _heads()[len(qkv), -(-(heads + 2 * kv_heads) // HEADS)](data, shape, **options)
    return q


@cache
def _heads() -> Any:
    triton = bring(globals())
    globals().update(_whither=triton.jit(_whither))
    return triton.jit(_place_heads)


@cache
def _angles() -> Any:
    triton = bring(globals())
    return triton.jit(_turns)


def _turns(positions: tensor, frequencies: tensor, both: tensor, count: tensor, circle: constexpr) -> None:
    """Some places of all tokens' angles."""
    nth = tl.program_id(0) * circle.piece + tl.arange(0, circle.piece)
    inside = nth < count // 2
    dtype: constexpr = both.dtype.element_ty
    position = tl.load(positions + nth // circle.half, mask=inside, other=0).to(tl.float32)
    angle = position * tl.load(frequencies + nth % circle.half, mask=inside, other=0.0)
    cosine, sine = precise.cos(angle) * circle.scaling, precise.sin(angle) * circle.scaling
    tl.store(both + nth, rounded(cosine, dtype, circle.by_hand).to(dtype), mask=inside)
    tl.store(both + count // 2 + nth, rounded(sine, dtype, circle.by_hand).to(dtype), mask=inside)


def _place_heads(data: tensor, shape: constexpr) -> None:
    """Some heads of one token; pairs of places that lie half a head apart are turned."""
    token, nth = tl.program_id(0).to(tl.int64), tl.program_id(1) * shape.tile + tl.arange(0, shape.tile)
    dims, both = tl.arange(0, shape.room), shape.heads + shape.kv_heads
    dtype: constexpr = data.q.dtype.element_ty
    inside, turning = (nth < both + shape.kv_heads)[:, None] & (dims < shape.half)[None, :], (nth < both)[:, None]
    at = data.qkv + token * data.qkv_row + nth[:, None] * 2 * shape.half + dims[None, :]
    plain_low = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    plain_high = tl.load(at + shape.half, mask=inside, other=0.0).to(tl.float32)
    low, high = plain_low, plain_high
    if shape.norm != 0:
        weight = data.weight + nth[:, None] * 2 * shape.half + dims[None, :]
        low, high = normed(low, high, weight, inside & turning, dtype, shape)
    angle, known = token * shape.half + dims, dims < shape.half
    cosines = tl.load(data.cosines + angle, mask=known, other=0.0).to(tl.float32)[None, :]
    sines = tl.load(data.sines + angle, mask=known, other=0.0).to(tl.float32)[None, :]
    low, high = turned(low, high, cosines, sines, dtype, shape)
    low, high = tl.where(turning, low, plain_low).to(dtype), tl.where(turning, high, plain_high).to(dtype)
    slot, place = _whither(data, token, shape)
    is_q = (nth < shape.heads)[:, None] & inside
    q_at = data.q + (token * shape.heads + nth[:, None]) * 2 * shape.half + dims[None, :]
    tl.store(q_at, low, mask=is_q)
    tl.store(q_at + shape.half, high, mask=is_q)
    is_k = turning & (nth >= shape.heads)[:, None] & inside & (slot >= 0)
    k_at = data.k + slot * data.k_slot + place * data.k_token
    k_at += (nth[:, None] - shape.heads) * data.k_head + dims[None, :]
    tl.store(k_at, low, mask=is_k)
    tl.store(k_at + shape.half, high, mask=is_k)
    is_v = (nth >= both)[:, None] & inside & (slot >= 0)
    v_at = data.v + slot * data.v_slot + place * data.v_token
    v_at += (nth[:, None] - both) * data.v_head + dims[None, :]
    tl.store(v_at, low, mask=is_v)
    tl.store(v_at + shape.half, high, mask=is_v)


def _whither(data: tensor, token: tensor, shape: constexpr) -> Any:
    """Slot and place of a token; the slot of padding is negative."""
    if shape.by_table:
        start = tl.load(data.starts + token)
        at = data.table + token * (data.columns // 2) + start // shape.block_size
        return tl.load(at, mask=start >= 0, other=-1).to(tl.int64), (start % shape.block_size).to(tl.int64)
    else:
        return tl.load(data.table + token).to(tl.int64), tl.load(data.starts + token).to(tl.int64)
