"""Llama and what differs from it by a bias or a norm: SmolLM2, Mistral, Qwen2 and Qwen3."""

from __future__ import annotations

from typing import Any

import torch

from quire.engine.model.forward.decoder import Decoder, Layer
from quire.engine.model.forward.parts import (
    Attention,
    GatedMlp,
    Join,
    RmsNorm,
    Rotary,
    Unfit,
    check_linear,
    projection,
)

ROTARY = "all"
STATIC_ROPES = ("default", "linear", "llama3", "yarn")  # of others the frequencies depend on how long a text is


def decoder(module: Any, join: Join) -> Decoder:
    """Of a causal model in transformers' form; raises Unfit."""
    inner, config = module.model, module.config
    rotary = inner.rotary_emb
    check_rotary(rotary.rope_type, rotary.inv_freq, inner.layers)
    for part in inner.layers:
        check_layer(part)
    check_linear(module.lm_head)
    return Decoder(
        embeddings=inner.embed_tokens.weight.data,
        embedding_scale=None,
        rotaries={ROTARY: Rotary(rotary.inv_freq.float(), float(rotary.attention_scaling))},
        layers=tuple(_layer(part, config, join) for part in inner.layers),
        norm=_norm(inner.norm),
        head=projection(module.lm_head),
    )


def check_rotary(kind: str, frequencies: torch.Tensor, layers: Any) -> None:
    """Raise Unfit unless whole heads turn by frequencies that never change."""
    if kind not in STATIC_ROPES:
        raise Unfit(f"its rotary positions are of type {kind}")
    if any(part.self_attn.head_dim != 2 * len(frequencies) for part in layers):
        raise Unfit("only a part of each head is turned")


def check_layer(part: Any) -> None:
    """Raise Unfit unless its projections are plain ones."""
    attention, mlp = part.self_attn, part.mlp
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        check_linear(getattr(attention, name))
    for name in ("gate_proj", "up_proj", "down_proj"):
        check_linear(getattr(mlp, name))
    for group in ((attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)):
        if len({one.bias is None for one in group}) > 1:
            raise Unfit("some of the projections that are one product have a bias")


def attention_of(part: Any, config: Any, norm: RmsNorm | None, join: Join) -> Attention:
    """Queries, keys and values in one product."""
    heads, kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
    qkv = join([part.q_proj, part.k_proj, part.v_proj])
    return Attention(part.layer_idx, heads, kv_heads, float(part.scaling), qkv, projection(part.o_proj), norm)


def mlp_of(part: Any, join: Join) -> GatedMlp:
    """Gate and up in one product."""
    return GatedMlp(join([part.gate_proj, part.up_proj]), projection(part.down_proj), part.act_fn)


def per_head(config: Any, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Weights of two norms side by side, one row for each head."""
    heads, kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
    return torch.cat((queries.expand(heads, -1), keys.expand(kv_heads, -1)))


def _layer(part: Any, config: Any, join: Join) -> Layer:
    attention, norm = part.self_attn, None
    if hasattr(attention, "q_norm"):
        own, other = attention.q_norm, attention.k_norm
        norm = RmsNorm(per_head(config, own.weight.data, other.weight.data), float(own.variance_epsilon))
    return Layer(
        rotary=ROTARY,
        before_attention=_norm(part.input_layernorm),
        attention=attention_of(attention, config, norm, join),
        after_attention=None,
        before_mlp=_norm(part.post_attention_layernorm),
        mlp=mlp_of(part.mlp, join),
        after_mlp=None,
    )


def _norm(part: Any) -> RmsNorm:
    return RmsNorm(part.weight.data, float(part.variance_epsilon))
