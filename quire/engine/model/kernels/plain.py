"""The kernels in torch, under the same names and signatures: what runs on the CPU, and what tests compare with.

Each is written for reading, with loops over rows where that is plainest; attention is in float32 at least.
"""

from __future__ import annotations

import torch
from torch.nn.functional import gelu, silu

from quire.engine.model.forward.parts import RmsNorm, Rotary, rotate
from quire.engine.model.kernels.gates import Act
from quire.engine.model.kernels.heads import BySlot, ByTable, Turns
from quire.engine.model.kernels.rules import Rule


def decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    *,
    rule: Rule,
    splits: int | None = None,  # nothing is split here
) -> torch.Tensor:
    """Attention of one token per row; see decoding.py."""
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for row, start in enumerate(starts.tolist()):
        if start >= 0:
            out[row] = _attend(q[row : row + 1], k, v, table[row], start, rule)[0]
    return out


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
    """Heads into their places, and attention of one token per row; see decoding.py."""
    q = place_heads(qkv, angles, norm, k, v, where)
    return decode(q, k, v, where.table, where.starts, rule=rule, splits=splits)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    offsets: torch.Tensor,
    starts: torch.Tensor,
    *,
    rule: Rule,
    max_query: int,  # there are no tiles
) -> torch.Tensor:
    """Attention of many tokens per row; see prompt.py."""
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    bounds = offsets.tolist()
    for row, start in enumerate(starts.tolist()):
        some = slice(bounds[row], bounds[row + 1])
        out[some] = _attend(q[some], k, v, table[row], start, rule)
    return out


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, row: torch.Tensor, start: int, rule: Rule
) -> torch.Tensor:
    """Queries of one row, the first at `start`."""
    position = torch.arange(start, start + len(q), device=q.device)[:, None]
    key = torch.arange(start + len(q), device=q.device)
    read = key <= position
    if rule.window:
        read &= (key > position - rule.window) | (key < rule.sinks)
    used = read.any(0).nonzero()[:, 0]
    slots, places = row[used // k.shape[1]].long(), used % k.shape[1]
    dtype, share = torch.promote_types(q.dtype, torch.float32), q.shape[1] // k.shape[2]
    keys, values = (pool[slots, places].to(dtype).repeat_interleave(share, 1) for pool in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.to(dtype), keys) * rule.scale
    if rule.softcap:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    weights = scores.masked_fill(~read[:, used], -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)


def turns(positions: torch.Tensor, rotary: Rotary, dtype: torch.dtype) -> Turns:
    """Angles of all tokens; see heads.py."""
    half = len(rotary.frequencies)
    cosines, sines = rotary(positions, dtype)
    return cosines[:, 0, :half].contiguous(), sines[:, 0, :half].contiguous()


def place_heads(
    qkv: torch.Tensor,
    angles: Turns,
    norm: RmsNorm | None,
    k: torch.Tensor,
    v: torch.Tensor,
    where: ByTable | BySlot,
) -> torch.Tensor:
    """Queries, normed and turned; keys and values go into pages; see heads.py."""
    kv_heads, dim = k.shape[2:]
    every = qkv.unflatten(-1, (-1, dim))
    both = every.shape[1] - kv_heads
    cosines, sines = (torch.cat((part, part), -1)[:, None] for part in angles)
    qk = rotate(every[:, :both] if norm is None else norm(every[:, :both]), (cosines, sines))
    slot, place = _whither(where, k.shape[1])
    real = slot >= 0
    k[slot[real], place[real]] = qk[real, both - kv_heads :]
    v[slot[real], place[real]] = every[real, both:]
    return qk[:, : both - kv_heads].contiguous()


def _whither(where: ByTable | BySlot, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(where, BySlot):
        return where.slot, where.place
    starts = where.starts.long()
    slot = where.table.gather(1, (starts.clamp(min=0) // size)[:, None])[:, 0].long()
    return slot.masked_fill(starts < 0, -1), starts % size


def add_norm(
    near: torch.Tensor, wide: torch.Tensor | None, norm: RmsNorm, before: RmsNorm | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A sum and its norm; see norms.py."""
    total = near if before is None else before(near)
    if wide is not None:
        total = wide + total
    return total, norm(total)


def gated(gate_up: torch.Tensor, act: Act) -> torch.Tensor:
    """act(gate) * up; see gates.py."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (silu(gate) if act == "silu" else gelu(gate, approximate="tanh")) * up
