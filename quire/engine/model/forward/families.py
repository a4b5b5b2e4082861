"""Which models have a forward of our own, by the name of their class in transformers. Knows no pages and no steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from quire.engine.model.forward import gemma3, llama
from quire.engine.model.forward.decoder import Decoder
from quire.engine.model.forward.parts import Join, Unfit, first_alone, fuse

FAMILIES: Mapping[str, Callable[[Any, Join], Decoder]] = MappingProxyType(
    {
        "LlamaForCausalLM": llama.decoder,
        "MistralForCausalLM": llama.decoder,
        "Qwen2ForCausalLM": llama.decoder,
        "Qwen3ForCausalLM": llama.decoder,
        "Gemma3ForCausalLM": gemma3.decoder,
    }
)


def decoder_of(module: Any) -> Decoder:
    """Our own for this model, with its weights: they are shared with the module, not copied. Raises Unfit."""
    family = FAMILIES.get(type(module).__name__)
    if family is None:
        raise Unfit(f"{type(module).__name__} is none of {', '.join(FAMILIES)}")
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        raise Unfit("it has hooks")
    try:
        family(module, first_alone)  # so that a module which does not fit stays as it is
        return family(module, fuse)
    except AttributeError as missing:  # another version of transformers
        raise Unfit(f"this version of transformers calls something else: {missing}") from missing
