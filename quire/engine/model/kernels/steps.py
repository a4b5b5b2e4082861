"""A step as the fused decoder sees it: `attend` takes one layer's QKV product and gives what attention makes of it.

    DecodeStep   one token per row: block tables and positions, and nothing else. Its tensors may be static buffers
    PromptStep   segments of any length: besides, where the KV of each token goes

Both have their lanes by layer group. They know no cache: tensors are on the device when a step is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from quire.core.split import LayerPlace
from quire.engine.model.forward.parts import RmsNorm
from quire.engine.model.kernels.choice import Kernels
from quire.engine.model.kernels.heads import BySlot, ByTable, Turns
from quire.engine.model.kernels.rules import Rule


class FusedStep(Protocol):
    """What the fused decoder asks of a step."""

    def attend(self, layer: int, qkv: torch.Tensor, angles: Turns, norm: RmsNorm | None, scale: float) -> torch.Tensor:
        """K and V go into their pages, queries read theirs; [tokens, QKV] in, [tokens, heads, dim] out."""


class DecodeLane(NamedTuple):
    """One layer group's way to its pages; row r is one token."""

    window: int  # 0: everything before
    table: torch.Tensor  # int32 [rows, blocks]
    starts: torch.Tensor  # int32 [rows]: position of each token; -1 is padding


class PromptLane(NamedTuple):
    """The same for segments."""

    window: int
    table: torch.Tensor  # int32 [segments, blocks]
    offsets: torch.Tensor  # int32 [segments + 1]
    starts: torch.Tensor  # int32 [segments]
    where: BySlot
    max_query: int  # about as long as the longest segment


@dataclass(frozen=True, slots=True, eq=False)
class DecodeStep:
    """One token per row."""

    lanes: Mapping[int, DecodeLane]  # by layer group
    pages: Mapping[int, torch.Tensor]  # by layer group: [slots, layers, 2, block, heads, dim]
    places: Mapping[int, LayerPlace]
    kernels: Kernels

    def attend(self, layer: int, qkv: torch.Tensor, angles: Turns, norm: RmsNorm | None, scale: float) -> torch.Tensor:
        """See FusedStep."""
        group, place = self.places[layer]
        lane, kv = self.lanes[group], self.pages[group]
        k, v = kv[:, place, 0], kv[:, place, 1]
        where, rule = ByTable(lane.table, lane.starts), Rule(scale, lane.window)
        return self.kernels.place_and_decode(qkv, angles, norm, k, v, where, rule=rule)


@dataclass(frozen=True, slots=True, eq=False)
class PromptStep:
    """Segments of any length."""

    lanes: Mapping[int, PromptLane]  # by layer group
    pages: Mapping[int, torch.Tensor]  # by layer group: [slots, layers, 2, block, heads, dim]
    places: Mapping[int, LayerPlace]
    kernels: Kernels

    def attend(self, layer: int, qkv: torch.Tensor, angles: Turns, norm: RmsNorm | None, scale: float) -> torch.Tensor:
        """See FusedStep."""
        group, place = self.places[layer]
        lane, kv = self.lanes[group], self.pages[group]
        k, v = kv[:, place, 0], kv[:, place, 1]
        q = self.kernels.place_heads(qkv, angles, norm, k, v, lane.where)
        rule = Rule(scale, lane.window)
        return self.kernels.attend(
            q, k, v, lane.table, lane.offsets, lane.starts, rule=rule, max_query=lane.max_query
        )  # fmt: skip
