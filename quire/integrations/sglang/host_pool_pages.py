"""HostPoolPages: the pages of one of SGLang's host pools as bytes. Owns how they are cut; knows no place.

    a few buffers of one size (MLA, or K and V, of page_first layouts)   each is a page of its own, in place
    anything else (layer_first, states)                                 one page, a copy

A pool says where its buffers are (`get_page_buffer_meta`), or gives flat copies (`get_data_page`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.core.records.errors import InputError, say
from quire.tiers.base import Bytes

MOST_PARTS = 4  # more, smaller parts cost more on a disk than a copy
NO_BUFFERS = (AttributeError, NotImplementedError, ValueError, AssertionError, RuntimeError, TypeError)


class HostPoolPages:
    """One pool. `parts` pages of `part_bytes` each stand for one of SGLang's."""

    def __init__(self, pool: Any, in_place: bool) -> None:
        self.pool, self.page_size = pool, getattr(pool, "page_size", 1) or 1
        sizes = self._buffer_sizes() if in_place else []
        self.in_place = 0 < len(sizes) <= MOST_PARTS and len(set(sizes)) == 1
        if self.in_place:
            self.parts, self.part_bytes = len(sizes), sizes[0]
        else:
            self._sample = pool.get_dummy_flat_data_page()
            self.parts, self.part_bytes = 1, self._sample.numel() * self._sample.element_size()

    @property
    def page_bytes(self) -> int:
        """Of one of SGLang's pages."""
        return int(self.parts * self.part_bytes)

    def _buffer_sizes(self) -> list[int]:
        import torch

        try:
            return [int(size) for size in self.pool.get_page_buffer_meta(torch.arange(self.page_size))[1]]
        except NO_BUFFERS:
            return []

    def keys(self, keys: Sequence[str]) -> list[bytes]:
        """The keys of all parts, page by page."""
        return [f"{key}/{part}".encode() for key in keys for part in range(self.parts)]

    def fits(self, keys: Sequence[str], indices: Any) -> bool:
        """Whether there is a place for every key."""
        return indices is not None and indices.numel() == len(keys) * self.page_size

    def to_write(self, indices: Any) -> list[Bytes]:
        """The bytes of the pages at these places."""
        if self.in_place:
            return self._buffers(indices)
        return [flat_bytes(self.pool.get_data_page(at, flat=True)) for at in self._starts(indices)]

    def to_fill(self, indices: Any) -> list[Bytes]:
        """Where the bytes for these places go."""
        if self.in_place:
            return self._buffers(indices)
        return [np.empty(self.part_bytes, np.uint8) for _ in self._starts(indices)]

    def filled(self, indices: Any, pages: Sequence[Bytes], good: Sequence[bool]) -> None:
        """Those have come."""
        if self.in_place:
            return
        import torch

        for at, page, is_good in zip(self._starts(indices), pages, good, strict=True):
            if is_good:
                self.pool.set_from_flat_data_page(at, torch.from_numpy(page).view(self._sample.dtype))

    def _starts(self, indices: Any) -> list[int]:
        return [int(at) for at in indices.reshape(-1)[:: self.page_size].tolist()]

    def _buffers(self, indices: Any) -> list[Bytes]:
        places, sizes = self.pool.get_page_buffer_meta(indices)
        if set(sizes) - {self.part_bytes} or len(places) * self.page_size != self.parts * indices.numel():
            fact = f"it has {len(places)} buffers of {sorted(set(sizes))} bytes"
            raise InputError(say("a host pool that has changed its form", fact, "attach the storage again"))
        return [_memory(place, self.part_bytes) for place in places]


def _memory(place: int, size: int) -> Bytes:
    """The pool's own bytes at an address that it gave."""
    found: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(place))
    return found


def flat_bytes(tensor: Any) -> Bytes:
    """A tensor's bytes, in place where it is whole."""
    import torch

    found: Bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return found
