"""What computing a token costs by its position, as a model's own shape has it. Knows no cache.

weights           2 operations each, wherever the token is; of experts those that it is sent to
windows           4 * heads * dim * window, a layer
full attention    4 * heads * dim * position, a layer: so far in, it costs as much as all else together
"""

from __future__ import annotations

from typing import Any

from quire.core.records.groups import LARGEST
from quire.engine.model.layers import KvShape, Model

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # as configs name them


def cost_doubles_at(model: Model) -> int:
    """The position of a token that costs twice what the first one does; beyond any where no layer reads all tokens."""
    config = model.module.config.get_text_config()
    linear, per_token = 2 * _weights(model.module, config), 0
    for shape in model.shapes:
        if isinstance(shape, KvShape):
            reads = 4 * len(shape.layers) * int(config.num_attention_heads) * shape.dim
            linear += reads * (shape.window or 0)
            per_token += 0 if shape.window else reads
    return LARGEST - 1 if not per_token else max(1, min(LARGEST - 1, round(linear / per_token)))


def _weights(module: Any, config: Any) -> float:
    """That a token of a prompt is multiplied with: without embeddings, and the head that only its last token meets."""
    heads = (module.get_input_embeddings(), module.get_output_embeddings())
    others = {id(part.weight) for part in heads if part is not None}
    experts = next((getattr(config, name) for name in EXPERTS if getattr(config, name, None)), 1)
    share = min(1.0, (getattr(config, "num_experts_per_tok", None) or 1) / experts)
    return float(
        sum(
            one.numel() * (share if ".experts." in name else 1.0)
            for name, one in module.named_parameters()
            if one.dim() > 1 and id(one) not in others
        )
    )
