"""The decoder of our own over kernels: the same weights and the same order of work as forward/decoder.py, in a third of
the launches. Each sum around a part is made with the norm behind it, so a layer hands on two tensors:

    near   what its last part gave                near, around ─► add_norm ─► around, input of the next part
    around what goes around it, before the sum

Knows no family, no cache and no steps: a step brings `attend`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import embedding, gelu

from quire.engine.model.forward.decoder import Decoder, Layer
from quire.engine.model.forward.parts import GatedMlp, RmsNorm
from quire.engine.model.kernels.choice import Kernels
from quire.engine.model.kernels.gates import Act
from quire.engine.model.kernels.heads import Turns
from quire.engine.model.kernels.steps import FusedStep


@dataclass(frozen=True, slots=True, eq=False)
class FusedDecoder:
    """Tokens and their positions in, logits of the wanted ones out."""

    decoder: Decoder
    kernels: Kernels

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor | slice, step: FusedStep
    ) -> torch.Tensor:
        """Logits, [wanted, vocabulary]. Padding has negative positions."""
        ours, add_norm = self.decoder, self.kernels.add_norm
        near = embedding(ids, ours.embeddings)
        if ours.embedding_scale is not None:
            near = near * ours.embedding_scale
        angles = {name: self.kernels.turns(positions, one, near.dtype) for name, one in ours.rotaries.items()}
        around, before = None, None
        for layer in ours.layers:
            around, x = add_norm(near, around, layer.before_attention, before)
            near = self._attention(layer, x, angles[layer.rotary], step)
            around, x = add_norm(near, around, layer.before_mlp, layer.after_attention)
            near, before = self._mlp(layer.mlp, x), layer.after_mlp
        near, around = near[wanted], None if around is None else around[wanted]
        logits = ours.head(add_norm(near, around, ours.norm, before)[1])
        return logits if ours.softcap is None else torch.tanh(logits / ours.softcap) * ours.softcap

    def _attention(self, layer: Layer, x: torch.Tensor, angles: Turns, step: FusedStep) -> torch.Tensor:
        part = layer.attention
        out = step.attend(part.layer, part.qkv(x), angles, part.norm, part.scale)
        return part.output(out.flatten(1))

    def _mlp(self, part: GatedMlp, x: torch.Tensor) -> torch.Tensor:
        gate_up, act = part.gate_up(x), act_of(part.act)
        if act is not None:
            return part.down(self.kernels.gated(gate_up, act))
        gate, up = gate_up.chunk(2, dim=-1)
        return part.down(part.act(gate) * up)


def act_of(function: Any) -> Act | None:
    """An activation as kernels know it; None: torch computes it."""
    name = type(function).__name__
    if name in ("SiLU", "SiLUActivation"):
        return "silu"
    inner = getattr(function, "act", None)
    if isinstance(inner, partial) and (inner.func, inner.keywords) == (gelu, {"approximate": "tanh"}):
        return "gelu_tanh"
    return None


def fits(decoder: Decoder) -> bool:
    """Whether kernels round as this decoder does: weights have one dtype, but for norms that say otherwise."""
    dtype = decoder.embeddings.dtype
    norms = [decoder.norm]
    for layer in decoder.layers:
        some: tuple[RmsNorm | None, ...] = (
            layer.before_attention, layer.attention.norm, layer.after_attention, layer.before_mlp, layer.after_mlp
        )  # fmt: skip
        norms += [norm for norm in some if norm is not None]
    return all(norm.scale_first or norm.weight.dtype == dtype for norm in norms)
