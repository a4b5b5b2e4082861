"""Parts of a decoder that families share: fused products, norms, rotary positions, attention, the gated MLP.

    x ─► norm ─► QKV in one product ─► (norm of Q and K) ─► rotate ─► pages ─► output ─► + x
      └► norm ─► gate and up in one product ─► act(gate) * up ─► down ──────────────────► + x

They read the weights of a transformers module and round as its own code does. No shape depends on what a tensor holds,
so a step can be captured. Knows no family by name, no cache and no steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import linear

Function = Callable[[torch.Tensor], torch.Tensor]
Angles = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, [tokens, 1, dim], in the dtype of the model


class Attend(Protocol):
    """Attention of one layer over pages."""

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Keys and values of the step's tokens go into their pages; [tokens, heads, dim] in and out."""


class Unfit(Exception):
    """A module is not what a family expects: transformers' own code runs it. Says what is different."""


Join = Callable[[Sequence[Any]], "Projection"]  # makes one product of several


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """One product. Several of a module become one: their weights are then views of this one's memory."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in] to [tokens, out]."""
        return linear(x, self.weight, self.bias)


def check_linear(layer: Any) -> None:
    """Raise Unfit if it is more than a plain product: quantized, with an adapter, with hooks."""
    if type(layer) is not torch.nn.Linear:
        raise Unfit(f"a projection is a {type(layer).__name__}")
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise Unfit("a projection has hooks")


def first_alone(layers: Sequence[Any]) -> Projection:
    """Stands for `fuse` while a family only looks whether a module fits: nothing changes."""
    return projection(layers[0])


def fuse(layers: Sequence[Any]) -> Projection:
    """One product for several that read the same input. The layers keep working: they share its memory."""
    weight = torch.cat([layer.weight.data for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias.data for layer in layers])
    first = 0
    for layer in layers:
        last = first + layer.out_features
        layer.weight.data = weight[first:last]
        if bias is not None:
            layer.bias.data = bias[first:last]
        first = last
    return Projection(weight, bias)


def projection(layer: Any) -> Projection:
    """One layer as it is."""
    return Projection(layer.weight.data, None if layer.bias is None else layer.bias.data)


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm:
    """x / sqrt(mean(x^2) + eps), in float32, times a weight: before it is rounded to x's dtype, or after."""

    weight: torch.Tensor
    eps: float
    scale_first: bool = False  # the product with the weight is in float32 too, and the sum is rounded once

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Over the last dimension."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(x.dtype) if self.scale_first else self.weight * wide.to(x.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """Angles of positions: one table of frequencies, made for the whole model."""

    frequencies: torch.Tensor  # [dim / 2], float32
    scaling: float

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> Angles:
        """Of every token; once per step."""
        half = positions[:, None].float() * self.frequencies
        angles = torch.cat((half, half), dim=-1)[:, None]
        return (angles.cos() * self.scaling).to(dtype), (angles.sin() * self.scaling).to(dtype)


def rotate(x: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Turn pairs of places that lie half a head apart; x is [tokens, heads, dim]."""
    cosines, sines = angles
    low, high = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-high, low), dim=-1) * sines


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One layer's attention. The first `heads` heads of its product are queries, then come keys, then values."""

    layer: int
    heads: int
    kv_heads: int
    scale: float
    qkv: Projection
    output: Projection
    norm: RmsNorm | None = None  # of queries and keys, with a weight for each head: [heads + kv_heads, dim]

    def __call__(self, x: torch.Tensor, angles: Angles, attend: Attend) -> torch.Tensor:
        """[tokens, width] in and out."""
        both = self.heads + self.kv_heads
        qkv = self.qkv(x).unflatten(-1, (both + self.kv_heads, -1))
        qk = qkv[:, :both]
        qk = rotate(qk if self.norm is None else self.norm(qk), angles)
        out = attend(self.layer, qk[:, : self.heads], qk[:, self.heads :], qkv[:, both:], self.scale)
        return self.output(out.flatten(1))


@dataclass(frozen=True, slots=True, eq=False)
class GatedMlp:
    """act(gate(x)) * up(x), and down again."""

    gate_up: Projection
    down: Projection
    act: Function

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, width] in and out."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.act(gate) * up)
