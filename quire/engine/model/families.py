"""Families: what a model's own config says about its layers: layer groups, pages, states. Owns the Model record.

    layer 0   1   2   3   4   5        layer types, from the config
          w   w   f   w   w   f
    group 1   1   0   1   1   0        one layer group per reading rule and shape of KV

Knows no cache and no steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from quire.core.records.errors import InputError, say
from quire.core.records.groups import LayerGroup
from quire.engine.model import folders

KNOWN = ("full_attention", "sliding_attention", "linear_attention")
ALIGNMENT = 16  # bytes; parts of a state page begin at multiples of it


@dataclass(frozen=True, slots=True)
class KvShape:
    """Layers that keep keys and values, of one reading rule. A page is [layers, 2, block, heads, dim]."""

    name: str
    layers: tuple[int, ...]
    heads: int
    dim: int
    window: int | None = None

    def group(self, block_size: int, itemsize: int, snapshot_every: int) -> LayerGroup:
        """The layer group of a cache with such blocks."""
        planes = 2 * len(self.layers)
        page_bytes = planes * block_size * self.heads * self.dim * itemsize
        return LayerGroup(self.name, page_bytes=page_bytes, planes=planes, window=self.window)


@dataclass(frozen=True, slots=True)
class StateShape:
    """Recurrent layers. A page is one state: for each layer the inputs its convolution remembers, and its matrix."""

    name: str
    layers: tuple[int, ...]
    conv: tuple[int, int]  # channels, places; in the model's dtype
    matrix: tuple[int, int, int]  # heads, key dim, value dim; in float32

    def parts(self, itemsize: int) -> Iterator[tuple[int, int, int]]:
        """Per layer the byte offsets of convolution and matrix, and where the layer ends."""
        end = 0
        for _ in self.layers:
            conv = end
            matrix = _aligned(conv + prod(self.conv) * itemsize)
            end = _aligned(matrix + prod(self.matrix) * 4)
            yield conv, matrix, end

    def group(self, block_size: int, itemsize: int, snapshot_every: int) -> LayerGroup:
        """The layer group of a cache; snapshots fall on block edges."""
        *_, (_, _, page_bytes) = self.parts(itemsize)
        every = -(-snapshot_every // block_size) * block_size
        return LayerGroup(self.name, page_bytes=page_bytes, snapshot_every=every)


Shape = KvShape | StateShape


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder, ready for the engine: its module reads our pages."""

    module: Any  # a transformers model
    shapes: tuple[Shape, ...]  # one per layer group
    places: dict[int, tuple[int, int]]  # layer -> its group, and its place in the group's pages
    eos_ids: frozenset[int]
    max_length: int  # positions it was made for
    tokenizer: Any = None

    def __repr__(self) -> str:
        name, kind = type(self.module).__name__, str(self.dtype).removeprefix("torch.")
        return f"Model({name}, {kind} on {self.device}, {len(self.shapes)} layer groups)"

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and KV."""
        return self.module.dtype

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.module.device

    @property
    def recurrent(self) -> bool:
        """It has a state that cannot be taken back."""
        return any(isinstance(shape, StateShape) for shape in self.shapes)

    def groups(self, block_size: int, snapshot_every: int) -> tuple[LayerGroup, ...]:
        """Its layer groups in a cache with such blocks."""
        return tuple(shape.group(block_size, self.dtype.itemsize, snapshot_every) for shape in self.shapes)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def of(module: Any, tokenizer: Any = None) -> Model:
    """Around a transformers decoder in memory. From now on it reads pages: use it through an engine only."""
    from quire.engine.model import (
        attention,  # they register with transformers, which takes a second to import
        recurrent,
    )

    config = module.config.get_text_config()
    if any(hasattr(part, "sinks") for part in module.modules()):
        fact = "its attention has learned sinks, which the engine has not"
        raise InputError(say(f"model type {config.model_type!r}", fact, "use another model"))
    shapes = _shapes(module, config)
    places = {layer: (group, place) for group, shape in enumerate(shapes) for place, layer in enumerate(shape.layers)}
    attention.install(module)
    recurrent.install(module)
    module.eval()
    eos = getattr(module.generation_config, "eos_token_id", None)
    eos_ids = frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos)
    return Model(module, shapes, places, eos_ids, int(config.max_position_embeddings), tokenizer)


def load(folder: str | Path, *, device: str = "cpu", dtype: str = "float32") -> Model:
    """A decoder and its tokenizer from a local folder in transformers' format. Nothing in it is run as code."""
    place = folders.checked(folder)
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise InputError(say(f"dtype {dtype!r}", "it is no floating point type of torch", "use float32 or bfloat16"))
    module, tokenizer = folders.read(place, kind)
    return of(module.to(device), tokenizer)


def _shapes(module: Any, config: Any) -> tuple[Shape, ...]:
    """Layer groups: full attention first, then windows, then states."""
    kinds = _layer_types(config)
    by_kind = {kind: tuple(nth for nth, one in enumerate(kinds) if one == kind) for kind in KNOWN}
    heads = config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shapes: list[Shape] = []
    if layers := by_kind["full_attention"]:
        shapes.append(KvShape("full", layers, heads, dim))
    if layers := by_kind["sliding_attention"]:
        shapes.append(KvShape("window", layers, heads, dim, window=int(config.sliding_window)))
    if layers := by_kind["linear_attention"]:
        shapes.append(_state_shape(module, layers))
    return tuple(shapes)


def _layer_types(config: Any) -> list[str]:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kind = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
        kinds = [kind] * config.num_hidden_layers
    if strange := sorted(set(kinds) - set(KNOWN)):
        fact = f"it has layers of type {', '.join(strange)}"
        raise InputError(say(f"model type {config.model_type!r}", fact, f"the engine knows {', '.join(KNOWN)}"))
    return list(kinds)


def recurrent_modules(module: Any) -> dict[int, Any]:
    """The recurrent layers of a model, by layer."""
    found = (part for part in module.modules() if hasattr(part, "conv1d") and hasattr(part, "layer_idx"))
    return {part.layer_idx: part for part in found}


def _state_shape(module: Any, layers: tuple[int, ...]) -> StateShape:
    modules = recurrent_modules(module)
    wanted = ("conv_dim", "conv_kernel_size", "num_v_heads", "head_k_dim", "head_v_dim")
    sizes = set()
    for layer in layers:
        part = modules.get(layer)
        if part is None or not all(hasattr(part, name) for name in wanted):
            fact = f"layer {layer} keeps a state of unknown form ({type(part).__name__})"
            raise InputError(say(f"model {type(module).__name__}", fact, "the engine knows gated delta nets"))
        sizes.add(tuple(getattr(part, name) for name in wanted))
    ((channels, places, heads, key, value),) = sizes
    return StateShape("state", layers, (channels, places), (heads, key, value))
