"""HostPages: the bytes of one rank in host memory, and the copies between them and vLLM's KV tensors. Decides nothing.

A page is one block in all layers of its group, back to back; any slot may have it. With checksums a page that changed
in memory is found when it is loaded, and nothing of that load is copied.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from quire.core.records.errors import InputError, say, shown
from quire.integrations.vllm.common.cache_groups import layer_specs
from quire.integrations.vllm.common.worker_orders import BadPage, Copy, Part
from quire.integrations.vllm.outer.page_memory import PageMemory
from quire.tiers.base import Bytes

KV = Any  # a torch.Tensor: its types are not read


@dataclass(slots=True)
class Ended:
    """A copy that has ended on this rank."""

    copy: Copy
    is_load: bool
    bad: list[BadPage] = field(default_factory=list)
    num_bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class RankMemory:
    """A rank's parts of all pages, and their checksums, plus one: 0 says that there is none."""

    pages: Bytes  # [slot, byte]
    sums: NDArray[np.int64] | None

    @classmethod
    def of_one(cls, slots: int, size: int) -> RankMemory:
        """In this process only."""
        return cls(np.empty((slots, size), np.uint8), np.zeros(slots, np.int64))

    @classmethod
    def of_rank(cls, memory: PageMemory, rank: int) -> RankMemory:
        """In memory that processes share."""
        return cls(memory.pages[:, rank], None if memory.sums is None else memory.sums[:, rank])


class HostPages:
    """Pages of one rank. Copies are made when they are ordered, and reported with the next `take_ended`."""

    def __init__(
        self, layers: Sequence[Sequence[KV]], slots: int, *, checksums: bool, memory: RankMemory | None = None
    ) -> None:
        self._layers = layers  # by group: [block, bytes] of each layer
        self._bytes = part_bytes(layers)
        own = RankMemory.of_one(slots, max(self._bytes)) if memory is None else memory
        self._view = own.pages
        self.memory = torch.from_numpy(own.pages)  # the same bytes
        self._sums = own.sums if checksums else None
        self._ended: list[Ended] = []

    def store(self, copy: Copy) -> None:
        """Copy vLLM's blocks into our slots."""
        self._run(copy, is_load=False)

    def load(self, copy: Copy) -> None:
        """Copy our slots into vLLM's blocks; none of them, when a page is bad."""
        self._run(copy, is_load=True)

    def flush(self, jobs: Iterable[int]) -> None:
        """Nothing is under way."""

    def take_ended(self) -> list[Ended]:
        """Copies that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _run(self, copy: Copy, *, is_load: bool) -> None:
        begin = time.perf_counter()
        bad = [page for part in copy.parts for page in self._bad_pages(part)] if is_load else []
        count = 0
        if not bad:
            for part in copy.parts:
                self._copy(part, is_load)
                count += len(part.slots) * self._bytes[part.group]
        self._ended.append(Ended(copy, is_load, bad, count, time.perf_counter() - begin))

    def _copy(self, part: Part, is_load: bool) -> None:
        blocks, slots, at = torch.tensor(part.blocks), torch.tensor(part.slots), 0
        for layer in self._layers[part.group]:
            strip = self.memory[:, at : at + layer.shape[1]]
            if is_load:
                layer[blocks] = strip[slots]
            else:
                strip[slots] = layer[blocks]
            at += layer.shape[1]
        if not is_load and self._sums is not None:
            self._sums[part.slots] = [crc32(self._view[slot]) + 1 for slot in part.slots]

    def _bad_pages(self, part: Part) -> list[BadPage]:
        """Pages that are not what was stored."""
        if self._sums is None:
            return []
        stated = self._sums[part.slots].tolist()
        return [
            BadPage(part.group, slot)
            for slot, one in zip(part.slots, stated, strict=True)
            if one != crc32(self._view[slot]) + 1
        ]


def layer_blocks(name: str, tensor: KV, num_blocks: int) -> KV:
    """A layer's KV as [block, bytes], the same memory; refused when a block is not in one piece.

    Recurrent states are smaller than a block of the layers beside them: there is a gap behind each.
    """
    if tensor.device.type != "cpu":
        fact = f"its KV is on {tensor.device}, and this worker copies in host memory"
        raise InputError(say(f"layer {shown(name)}", fact, "use vLLM's CPU backend"))
    has_gaps = tensor.shape[0] == num_blocks and tensor[0].is_contiguous() and tensor.stride(0) > tensor[0].numel()
    if has_gaps:
        return tensor.as_strided((num_blocks, tensor[0].numel()), (tensor.stride(0), 1)).view(torch.uint8)
    if tensor.shape[0] % num_blocks or not tensor.is_contiguous():
        fact = f"its KV has shape {tuple(tensor.shape)}, strides {tensor.stride()}, for {num_blocks} blocks"
        raise InputError(say(f"layer {shown(name)}", fact, "QuireConnector needs whole blocks, one after the other"))
    return tensor.view(num_blocks, -1).view(torch.uint8)


def part_bytes(layers: Sequence[Sequence[KV]]) -> list[int]:
    """Bytes of a rank's part of a page, by group."""
    return [sum(layer.shape[1] for layer in group) for group in layers]


def group_layers(groups: Sequence[Any], kv: Mapping[str, KV], num_blocks: int) -> list[list[KV]]:
    """The layers of vLLM's groups as blocks of bytes; layers that use another one's KV are in none of them."""
    return [[layer_blocks(name, kv[name], num_blocks) for name in group.layer_names] for group in groups]


def check_named(groups: Sequence[Any], kv: Mapping[str, KV]) -> None:
    """Refuse a model with KV that would not be kept: a tensor of no group that does not alias a group's tensor."""
    named = {name for group in groups for name in group.layer_names}
    known = {kv[name].data_ptr() for name in named if isinstance(kv[name], torch.Tensor)}
    for name, tensor in kv.items():
        if isinstance(tensor, torch.Tensor) and (name in named or tensor.data_ptr() in known):
            continue
        fact = "its KV is not a tensor" if name in named else "it has KV of its own and is in no KV cache group"
        raise InputError(say(f"layer {shown(name)}", fact, "run this model without QuireConnector"))


def check_sizes(groups: Sequence[Any], kv: Mapping[str, KV], num_blocks: int) -> None:
    """Refuse layers whose blocks differ in size from their spec: part of them is elsewhere, or the layout differs."""
    for group in groups:
        for name, spec in zip(group.layer_names, layer_specs(group), strict=True):
            plain = getattr(spec, "real_page_size_bytes", spec.page_size_bytes)  # a state's, without the gap
            stated = int(getattr(spec, "unpadded_page_size_bytes", plain))
            found = kv[name].numel() * kv[name].element_size() / num_blocks
            if found != stated:
                fact = f"its tensor has {found:g} bytes for a block, and its spec says {stated}"
                raise InputError(say(f"layer {shown(name)}", fact, "run this model without QuireConnector"))


def layer_form(groups: Sequence[Any], kv: Mapping[str, KV]) -> str:
    """What is inside a page: names, shapes and types of its layers, in order; of recurrent states those of each state,
    whose tensor is one of plain bytes."""
    stated: list[list[Any]] = []
    for group in groups:
        for name, spec in zip(group.layer_names, layer_specs(group), strict=True):
            states = [str(spec.shapes), str(spec.dtypes)] if hasattr(spec, "shapes") else []
            stated.append([name, list(kv[name].shape[1:]), str(kv[name].dtype), *states])
    return blake2b(repr(stated).encode(), digest_size=16).hexdigest()
