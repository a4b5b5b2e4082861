"""Layers: what a model's own config says about them: layer groups, pages, states. Owns the Model record.

    layer 0   1   2   3   4   5        layer types, from the config
          w   w   f   w   w   f
    group 1   1   0   2   2   0        groups of equally many layers, each of one reading rule, in one pool
    group 1   1   0   1   1   0        or one per reading rule, with pools of their own (share_pool=False)

Knows no folders, no cache and no steps; `load.py` makes a model read pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from quire.core.records.errors import InputError, say
from quire.core.records.groups import LayerGroup
from quire.core.split import LayerPlace, ModelLayer, split_layers

KNOWN = ("full_attention", "sliding_attention", "linear_attention")
ALIGNMENT = 16  # bytes; parts of a state page begin at multiples of it


@dataclass(frozen=True, slots=True)
class KvShape:
    """Layers that keep keys and values, of one reading rule. A page is [layers and padding, 2, block, heads, dim]."""

    name: str
    layers: tuple[int, ...]
    heads: int
    dim: int
    window: int | None = None
    pool: str | None = field(default=None, repr=False)  # the repr is part of a fingerprint: what lies where in a page
    padding: int = field(default=0, repr=False)  # room for more layers; follows from the size of a page

    @property
    def depth(self) -> int:
        """Layers that a page has room for."""
        return len(self.layers) + self.padding

    def group(self, block_size: int, itemsize: int, snapshot_every: int) -> LayerGroup:
        """The layer group of a cache with such blocks."""
        planes = 2 * self.depth
        page_bytes = planes * block_size * self.heads * self.dim * itemsize
        return LayerGroup(self.name, page_bytes=page_bytes, planes=planes, window=self.window, pool=self.pool)


class StatePart(NamedTuple):
    """Where one layer's part of a state page lies, in bytes."""

    conv: int
    matrix: int
    end: int


@dataclass(frozen=True, slots=True)
class StateShape:
    """Recurrent layers. A page is one state: for each layer the inputs its convolution remembers, and its matrix."""

    name: str
    layers: tuple[int, ...]
    conv: tuple[int, int]  # channels, places; in the model's dtype
    matrix: tuple[int, int, int]  # heads, key dim, value dim; in float32

    def parts(self, itemsize: int) -> Iterator[StatePart]:
        """One per layer, in order."""
        end = 0
        for _ in self.layers:
            conv = end
            matrix = _aligned(conv + prod(self.conv) * itemsize)
            end = _aligned(matrix + prod(self.matrix) * 4)
            yield StatePart(conv, matrix, end)

    def group(self, block_size: int, itemsize: int, snapshot_every: int) -> LayerGroup:
        """The layer group of a cache; snapshots fall on block edges, and a step writes those inside its span."""
        *_, last = self.parts(itemsize)
        every = -(-snapshot_every // block_size) * block_size
        return LayerGroup(self.name, page_bytes=last.end, snapshot_every=every, snapshot_inside=True)


Shape = KvShape | StateShape


def places_of(shapes: tuple[Shape, ...]) -> dict[int, LayerPlace]:
    """Of every layer."""
    return {
        layer: LayerPlace(group, nth) for group, shape in enumerate(shapes) for nth, layer in enumerate(shape.layers)
    }


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder, ready for the engine: its module reads our pages."""

    module: Any  # a transformers model
    shapes: tuple[Shape, ...]  # one per layer group
    places: dict[int, LayerPlace]  # by layer
    eos_ids: frozenset[int]
    max_length: int  # positions it was made for
    forward: Callable[[Any], torch.Tensor]  # of an AttentionStep: logits of the wanted tokens
    tokenizer: Any = None
    folder: Path | None = None  # where it was loaded from

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


def shapes_of(module: Any, share_pool: bool = True) -> tuple[Shape, ...]:
    """Its layer groups: full attention first, then windows, then states.

    `share_pool`: where there are both of the first, they are cut into groups of one page size, that share one pool.
    """
    config = module.config.get_text_config()
    kinds = _layer_types(config)
    by_kind = {kind: tuple(nth for nth, one in enumerate(kinds) if one == kind) for kind in KNOWN}
    heads = config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shapes: list[Shape] = []
    full, windows = by_kind["full_attention"], by_kind["sliding_attention"]
    if full and windows and share_pool:
        shapes += _split(full, windows, int(config.sliding_window), (heads, dim))
    else:
        if full:
            shapes.append(KvShape("full", full, heads, dim))
        if windows:
            shapes.append(KvShape("window", windows, heads, dim, window=int(config.sliding_window)))
    if layers := by_kind["linear_attention"]:
        shapes.append(_state_shape(module, layers))
    return tuple(shapes)


def _split(full: tuple[int, ...], windows: tuple[int, ...], window: int, kv: tuple[int, int]) -> list[KvShape]:
    """Groups of equally many layers in one pool; keys and values have one shape in all of them."""
    numbers = sorted((*full, *windows))
    one = 2 * kv[0] * kv[1]
    split = split_layers([ModelLayer(one, None if number in full else window) for number in numbers])
    return [
        KvShape(group.name, tuple(numbers[nth] for nth in layers), *kv, group.window, group.pool, padding)
        for group, layers, padding in zip(split.groups, split.layers, split.padded, strict=True)
    ]


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
    mixers = (part for part in module.modules() if hasattr(part, "conv1d") and hasattr(part, "layer_idx"))
    return {part.layer_idx: part for part in mixers}


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
