"""Paged attention for decoders: keys and values go into pages, queries read them through block tables.

    every layer:  write K, V of the step's tokens -> read what each query may see -> its output

On CUDA a kernel walks the tables. On the CPU the pages a segment reads are gathered; which ones, and which keys each
query sees, is worked out once per step and layer group, not once per layer. Knows no cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from quire.core.records.errors import InputError, say
from quire.core.records.request import Int32
from quire.core.split import LayerPlace
from quire.engine.model.forward.decoder import Decoder
from quire.engine.model.packing import Int64, Lane, Packed
from quire.engine.model.pages import Pages
from quire.engine.tensors.on_device import on_device

if TYPE_CHECKING:  # where nothing runs fused they are not imported
    from quire.engine.model.kernels.choice import Kernels
    from quire.engine.model.kernels.steps import DecodeStep, PromptStep

NAME = "quire_paged"


@dataclass(frozen=True, slots=True, eq=False)
class AttentionStep:
    """What travels through the model's layers: the packed tokens, and where their pages are."""

    packed: Packed
    pages: Pages
    places: dict[int, LayerPlace]
    readers: dict[int, Any] = field(default_factory=dict)  # by group, made by the first layer that asks

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """One layer: keys and values go into their pages, then queries read theirs; [tokens, heads, dim] in and out."""
        group, place = self.places[layer]
        lane, kv = self.packed.lanes[group], self.pages.kv[group]
        keys, values = kv[:, place, 0], kv[:, place, 1]  # [slots, block, heads, dim]
        keys[lane.slot, lane.place] = key
        values[lane.slot, lane.place] = value
        reader = self.readers.get(group)
        if reader is None:
            reader = self.readers[group] = _reader(self.packed, lane, keys)
        return reader.read(query, keys, values, scale, softcap)

    def fused(self, kernels: Kernels) -> DecodeStep | PromptStep:
        """The same for the fused decoder: as a step of single tokens where it is one."""
        from quire.engine.model.kernels.heads import BySlot
        from quire.engine.model.kernels.steps import DecodeLane, DecodeStep, PromptLane, PromptStep

        packed, kv, places = self.packed, self.pages.kv, self.places
        device = packed.ids.device
        starts = on_device(packed.starts.astype(np.int32), device)
        tables = {group: on_device(np.ascontiguousarray(lane.table), device) for group, lane in packed.lanes.items()}
        longest = int(packed.counts.max())
        if longest == 1:
            rows = {group: DecodeLane(lane.window, tables[group], starts) for group, lane in packed.lanes.items()}
            return DecodeStep(rows, kv, places, kernels)
        offsets = on_device(packed.offsets.astype(np.int32), device)
        lanes = {
            group: PromptLane(lane.window, tables[group], offsets, starts, BySlot(lane.slot, lane.place), longest)
            for group, lane in packed.lanes.items()
        }
        return PromptStep(lanes, kv, places, kernels)


def install(module: Any) -> None:
    """Make a transformers model read pages."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, paged)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)  # which keys a query sees is ours to know
    module.set_attn_implementation(NAME)


def paged(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: None, **given: Any
) -> tuple[torch.Tensor, None]:
    """One layer: [1, heads, tokens, dim] in, [1, tokens, heads, dim] out."""
    step: AttentionStep | None = given.get("quire_step")
    if step is None:
        fact = "its attention reads the pages of an engine's step"
        raise InputError(say("a forward of this model outside an engine", fact, "use another copy of the model"))
    if given.get("s_aux") is not None:
        raise InputError(say("attention with learned sinks", "the engine has none", "use another model"))
    scale = float(given.get("scaling") or query.shape[-1] ** -0.5)
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    return step.attend(module.layer_idx, query, key, value, scale, given.get("softcap") or 0.0)[None], None


@dataclass(frozen=True, slots=True, eq=False)
class TransformersForward:
    """A step through transformers' own code."""

    module: Any

    def __call__(self, step: AttentionStep) -> torch.Tensor:
        """Logits of the wanted tokens, [wanted, vocabulary]."""
        packed = step.packed
        out = self.module(
            input_ids=packed.ids[None], position_ids=packed.positions[None], use_cache=False,
            logits_to_keep=packed.wanted, quire_step=step,
        )  # fmt: skip
        logits: torch.Tensor = out.logits[0]
        return logits


@dataclass(frozen=True, slots=True, eq=False)
class OwnForward:
    """A step through a decoder of our own; through transformers' code while the model itself has hooks."""

    decoder: Decoder
    theirs: TransformersForward
    kernels: Kernels | None = None  # with them the decoder runs fused

    @property
    def has_hooks(self) -> bool:
        """The model itself has hooks: transformers' code calls them."""
        return bool(self.theirs.module._forward_pre_hooks or self.theirs.module._forward_hooks)

    def __call__(self, step: AttentionStep) -> torch.Tensor:
        """Logits of the wanted tokens, [wanted, vocabulary]."""
        if self.has_hooks:
            return self.theirs(step)
        packed = step.packed
        if self.kernels is None:
            return self.decoder(packed.ids, packed.positions, packed.wanted, step.attend)
        from quire.engine.model.kernels.fused import FusedDecoder

        fused = FusedDecoder(self.decoder, self.kernels)
        return fused(packed.ids, packed.positions, packed.wanted, step.fused(self.kernels))


def _reader(packed: Packed, lane: Lane, keys: torch.Tensor) -> _Gather | _Walk:
    return _Gather(packed, lane, keys.shape[1]) if keys.device.type == "cpu" else _Walk(packed, lane)


class _Walk:
    """The way of CUDA: tables and numbers on the device, the kernel does the rest."""

    def __init__(self, packed: Packed, lane: Lane) -> None:
        device = packed.ids.device
        self.table = on_device(np.ascontiguousarray(lane.table), device)
        self.offsets = on_device(packed.offsets.astype(np.int32), device)
        self.starts = on_device(packed.starts.astype(np.int32), device)
        self.window, self.max_query = lane.window, int(packed.counts.max())

    def read(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, softcap: float
    ) -> torch.Tensor:
        """Output of every query, [tokens, heads, dim]."""
        from quire.engine.model.kernels.decoding import decode
        from quire.engine.model.kernels.prompt import attend
        from quire.engine.model.kernels.rules import Rule

        rule = Rule(scale, self.window, softcap)
        if self.max_query == 1:  # a row each, as no segment is empty
            return decode(query, keys, values, self.table, self.starts, rule=rule)
        return attend(
            query, keys, values, self.table, self.offsets, self.starts, rule=rule, max_query=self.max_query
        )  # fmt: skip


class _Part(NamedTuple):
    """Segments that are read in one call: their tokens, the pages they read, the keys each query sees."""

    tokens: torch.Tensor  # [segments, queries]
    slots: torch.Tensor  # [segments, blocks]
    seen: torch.Tensor | None  # [segments, 1, 1, queries, keys]; None: each query what is before it, from the first
    stale: torch.Tensor | None  # [segments, keys, 1, 1]: behind the last token, where anything may be, NaN too


class _Gather:
    """The way of the CPU: one call for decoded tokens of similar length, one per longer segment."""

    def __init__(self, packed: Packed, lane: Lane, size: int) -> None:
        single = packed.counts == 1
        some = [*_alike(np.flatnonzero(single), packed.ends), *np.flatnonzero(~single)[:, None]]
        self.parts = [_part(packed, lane, size, segments) for segments in some]

    def read(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, softcap: float
    ) -> torch.Tensor:
        """Output of every query, [tokens, heads, dim]."""
        out = torch.empty_like(query)
        heads = keys.shape[2]
        for tokens, slots, seen, stale in self.parts:
            some = query[tokens].unflatten(2, (heads, -1)).permute(0, 2, 3, 1, 4)  # segments, heads, share, queries
            pages = [pool[slots].flatten(1, 2) for pool in (keys, values)]
            if stale is not None:  # not to see it is not enough: 0 * NaN is NaN
                pages = [part.masked_fill_(stale, 0) for part in pages]
            pages = [part.transpose(1, 2)[:, :, None] for part in pages]
            if seen is None:
                pages = [part[..., : tokens.shape[1], :] for part in pages]
            near = _attend(some, pages[0], pages[1], seen, scale, softcap)
            out[tokens] = near.permute(0, 3, 1, 2, 4).flatten(2, 3)
        return out


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor | None, scale: float, softcap: float
) -> torch.Tensor:
    """[segments, heads, share, queries, dim]: `share` queries read each head of keys."""
    segments, heads, share = query.shape[:3]
    if not softcap:
        wide = [part.expand(-1, -1, share, -1, -1).flatten(0, 1) for part in (key, value)]
        mask = None if seen is None else seen.expand(-1, heads, -1, -1, -1).flatten(0, 1)
        near = scaled_dot_product_attention(
            query.flatten(0, 1), wide[0], wide[1], attn_mask=mask, is_causal=mask is None, scale=scale
        )
        return near.unflatten(0, (segments, heads))
    weight = softcap * torch.tanh(query @ key.transpose(-1, -2) * scale / softcap)
    if seen is None:
        seen = torch.ones(weight.shape[-2:], dtype=torch.bool).tril()
    return weight.masked_fill(~seen, float("-inf")).softmax(-1) @ value


def _alike(segments: Int64, ends: Int64) -> Iterator[Int64]:
    """Segments in runs of similar length, so that reading them side by side wastes less than half."""
    order = segments[np.argsort(ends[segments], kind="stable")]
    first = 0
    for last in range(1, len(order) + 1):
        if last == len(order) or ends[order[last]] > 2 * ends[order[first]] + 64:
            yield order[first:last]
            first = last


def _part(packed: Packed, lane: Lane, size: int, segments: Int64) -> _Part:
    """Pages and keys that segments with equally many tokens read."""
    count = int(packed.counts[segments[0]])
    starts, ends = packed.starts[segments], packed.ends[segments]
    tokens = torch.from_numpy(packed.offsets[segments][:, None] + np.arange(count))
    reach = np.zeros_like(starts) if not lane.window else np.maximum(0, starts - lane.window + 1)
    first, last = reach // size, -(-ends // size)
    blocks = first[:, None] + np.arange(int((last - first).max()))
    slots: Int32 = lane.table[segments[:, None], np.minimum(blocks, last[:, None] - 1)]
    if not starts.any() and not lane.window:
        return _Part(tokens, torch.from_numpy(slots.astype(np.int64)), None, None)
    queries = (starts[:, None] + np.arange(count))[:, :, None]
    places = (blocks[:, :, None] * size + np.arange(size)).reshape(len(segments), 1, -1)
    seen = places <= queries
    if lane.window:
        seen &= places > queries - lane.window
    stale = torch.from_numpy((places >= ends[:, None, None])[:, 0, :, None, None])
    return _Part(tokens, torch.from_numpy(slots.astype(np.int64)), torch.from_numpy(seen[:, None, None]), stale)
