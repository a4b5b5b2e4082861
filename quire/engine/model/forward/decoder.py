"""The decoder of our own: embeddings, layers, logits. A family fills in the parts; the order of work is here.

Knows no family, no cache and no steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn.functional import embedding

from quire.engine.model.forward.parts import Angles, Attend, Attention, GatedMlp, Projection, RmsNorm, Rotary


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer. Norms behind attention and MLP are of some families only."""

    rotary: str  # which angles it turns by
    before_attention: RmsNorm
    attention: Attention
    after_attention: RmsNorm | None
    before_mlp: RmsNorm
    mlp: GatedMlp
    after_mlp: RmsNorm | None

    def __call__(self, x: torch.Tensor, angles: Angles, attend: Attend) -> torch.Tensor:
        """[tokens, width] in and out."""
        near = self.attention(self.before_attention(x), angles, attend)
        x = x + (near if self.after_attention is None else self.after_attention(near))
        near = self.mlp(self.before_mlp(x))
        return x + (near if self.after_mlp is None else self.after_mlp(near))


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """Tokens and their positions in, logits of the wanted ones out; `attend` has the pages."""

    embeddings: torch.Tensor
    embedding_scale: torch.Tensor | None
    rotaries: Mapping[str, Rotary]
    layers: tuple[Layer, ...]
    norm: RmsNorm
    head: Projection
    softcap: float | None = None  # of the logits

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor | slice, attend: Attend
    ) -> torch.Tensor:
        """Logits, [wanted, vocabulary]."""
        x = embedding(ids, self.embeddings)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        angles = {name: rotary(positions, x.dtype) for name, rotary in self.rotaries.items()}
        for layer in self.layers:
            x = layer(x, angles[layer.rotary], attend)
        logits = self.head(self.norm(x[wanted]))
        if self.softcap is None:
            return logits
        return torch.tanh(logits / self.softcap) * self.softcap
