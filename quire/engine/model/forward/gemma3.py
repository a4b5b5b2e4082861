"""Gemma-3, text only: scaled embeddings, norms before and behind each part, other angles for layers with a window."""

from __future__ import annotations

from typing import Any

from quire.engine.model.forward.decoder import Decoder, Layer
from quire.engine.model.forward.llama import attention_of, check_layer, check_rotary, mlp_of, per_head
from quire.engine.model.forward.parts import Join, RmsNorm, Rotary, Unfit, check_linear, projection


def decoder(module: Any, join: Join) -> Decoder:
    """Of a causal model in transformers' form; raises Unfit."""
    inner, config = module.model, module.config
    rotary, kinds = inner.rotary_emb, sorted(set(config.layer_types))
    for kind in kinds:
        check_rotary(rotary.rope_type[kind], getattr(rotary, f"{kind}_inv_freq"), inner.layers)
    if config.use_bidirectional_attention or config.attn_logit_softcapping is not None:
        raise Unfit("its attention is bidirectional, or has a softcap")
    for part in inner.layers:
        check_layer(part)
    check_linear(module.lm_head)
    embeddings = inner.embed_tokens
    softcap = config.final_logit_softcapping
    return Decoder(
        embeddings=embeddings.weight.data,
        embedding_scale=embeddings.embed_scale.to(embeddings.weight.dtype),
        rotaries={
            kind: Rotary(
                getattr(rotary, f"{kind}_inv_freq").float(), float(getattr(rotary, f"{kind}_attention_scaling"))
            )
            for kind in kinds
        },
        layers=tuple(_layer(part, config, join) for part in inner.layers),
        norm=_norm(inner.norm),
        head=projection(module.lm_head),
        softcap=None if softcap is None else float(softcap),
    )


def _layer(part: Any, config: Any, join: Join) -> Layer:
    attention = part.self_attn
    weights = (1.0 + one.weight.data.float() for one in (attention.q_norm, attention.k_norm))
    norm = RmsNorm(per_head(config, *weights), float(attention.q_norm.eps), scale_first=True)
    return Layer(
        rotary=config.layer_types[attention.layer_idx],
        before_attention=_norm(part.input_layernorm),
        attention=attention_of(attention, config, norm, join),
        after_attention=_norm(part.post_attention_layernorm),
        before_mlp=_norm(part.pre_feedforward_layernorm),
        mlp=mlp_of(part.mlp, join),
        after_mlp=_norm(part.post_feedforward_layernorm),
    )


def _norm(part: Any) -> RmsNorm:
    return RmsNorm(1.0 + part.weight.data.float(), float(part.eps), scale_first=True)
