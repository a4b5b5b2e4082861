"""HostPages: the bytes of one rank in host memory, and the copies between them and vLLM's KV tensors. Decides nothing.

A page is one block in all layers of its group, back to back. With checksums a page that changed in memory is found when
it is loaded, and nothing of that load is copied.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch

from quire.core.records.errors import InputError, say, shown
from quire.integrations.vllm.orders import BadPage, Copy, Part

KV = Any  # a torch.Tensor: its types are not read


@dataclass(slots=True)
class Ended:
    """A copy that has ended on this rank."""

    copy: Copy
    is_load: bool
    bad: list[BadPage] = field(default_factory=list)
    num_bytes: int = 0
    seconds: float = 0.0


class HostPages:
    """Pages of one rank. Copies are made when they are ordered, and reported with the next `take_ended`."""

    def __init__(self, layers: Sequence[Sequence[KV]], slots: int, *, checksums: bool) -> None:
        self._layers = layers  # by group: [block, bytes] of each layer
        self._bytes = [sum(layer.shape[1] for layer in group) for group in layers]
        self.memory = [torch.empty((slots, size), dtype=torch.uint8) for size in self._bytes]
        self._views = [memory.numpy() for memory in self.memory]  # the same bytes, for checksums
        self._sums: list[dict[int, int]] | None = [{} for _ in layers] if checksums else None
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
        memory = self.memory[part.group]
        for layer in self._layers[part.group]:
            strip = memory[:, at : at + layer.shape[1]]
            if is_load:
                layer[blocks] = strip[slots]
            else:
                strip[slots] = layer[blocks]
            at += layer.shape[1]
        if not is_load and self._sums is not None:
            view = self._views[part.group]
            self._sums[part.group].update((slot, crc32(view[slot])) for slot in part.slots)

    def _bad_pages(self, part: Part) -> list[BadPage]:
        """Pages that are not what was stored."""
        if self._sums is None:
            return []
        view, sums = self._views[part.group], self._sums[part.group]
        return [BadPage(part.group, slot) for slot in part.slots if sums.get(slot) != crc32(view[slot])]


def layer_blocks(name: str, tensor: KV, num_blocks: int) -> KV:
    """A layer's KV as [block, bytes], the same memory; refused when a block is not in one piece."""
    if tensor.device.type != "cpu":
        fact = f"its KV is on {tensor.device}, and this worker copies in host memory"
        raise InputError(say(f"layer {shown(name)}", fact, "use vLLM's CPU backend"))
    if tensor.shape[0] % num_blocks or not tensor.is_contiguous():
        fact = f"its KV has shape {tuple(tensor.shape)}, strides {tensor.stride()}, for {num_blocks} blocks"
        raise InputError(say(f"layer {shown(name)}", fact, "QuireConnector needs whole blocks, one after the other"))
    return tensor.view(num_blocks, -1).view(torch.uint8)


def host_pages(groups: Sequence[Any], kv: Mapping[str, KV], num_blocks: int, slots: int, checksums: bool) -> HostPages:
    """Pages for vLLM's groups; layers that use another one's KV are in none of them."""
    layers = [[layer_blocks(name, kv[name], num_blocks) for name in group.layer_names] for group in groups]
    return HostPages(layers, slots, checksums=checksums)
