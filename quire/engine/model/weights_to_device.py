"""Weights on their way to a GPU: each once, through two pinned buffers, its host memory given back as it goes.

    host tensor ──copy──► buffer 0 ──DMA──► device        one buffer is filled while the other is sent
                          buffer 1

A plain copy from pageable memory waits for each piece, and `module.to` keeps nothing but is silent. Knows no model.
"""

from __future__ import annotations

from typing import Any

import torch

from quire.engine.tensors.progress_bar import progress_bar

STAGING = 64 << 20  # bytes of one buffer


def weights_to_device(module: Any, device: str | torch.device) -> Any:
    """The module, all of it there. Elsewhere than on a GPU this is `module.to`."""
    place = torch.device(device)
    if place.type != "cuda":
        return module.to(place)
    own = [one for one in module.parameters() if one.device.type == "cpu"]
    staging = _Staging(place)
    total = sum(one.numel() * one.element_size() for one in own)
    with progress_bar(f"weights to {place}", total, "B") as done:
        for one in own:
            one.data = staging.send(one.data)
            done(one.numel() * one.element_size())
    staging.wait()
    return module.to(place)  # what is left: buffers, and what was made there


class _Staging:
    """Two pinned buffers, used in turn."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._nth = device, 0
        self._buffers = [torch.empty(STAGING, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._sent = [torch.cuda.Event() for _ in range(2)]

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same numbers there; the last copies may be under way."""
        source = tensor.contiguous().view(-1).view(torch.uint8)
        target = torch.empty_like(tensor, device=self._device, memory_format=torch.contiguous_format)
        bytes_there = target.view(-1).view(torch.uint8)
        for first in range(0, len(source), STAGING):
            piece = source[first : first + STAGING]
            buffer, sent = self._buffers[self._nth], self._sent[self._nth]
            sent.synchronize()
            buffer[: len(piece)].copy_(piece)
            bytes_there[first : first + len(piece)].copy_(buffer[: len(piece)], non_blocking=True)
            sent.record(torch.cuda.current_stream(self._device))
            self._nth = 1 - self._nth
        return target

    def wait(self) -> None:
        """Until all of it is there."""
        for sent in self._sent:
            sent.synchronize()
