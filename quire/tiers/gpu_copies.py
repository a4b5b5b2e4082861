"""Copies of many pieces of memory by one launch, in Triton. Owns the kernel, its tiles and its table of addresses.
Knows no pages and no tiers: it is given addresses that the GPU can reach, of its own memory or of pinned host memory.

    fragments   (source, target), (source, target), ...   each `width` bytes
    tiles       every fragment in pieces of TILE words; program p of P carries tiles p, p + P, p + 2 P, ...

A call per page costs microseconds, which pages below some megabytes cannot pay (64 KiB cross the link in one). A few
programs fill the link: bytes are on their way all the time, and the other processors stay free for the model.
Triton is imported by the first copy: the module itself needs neither it nor a GPU.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

WORD = 8  # bytes that the kernel reads at a time, at the least
TILE = 4096  # words
PROGRAMS = 8  # as fast as 64 of them (benchmarks/gpu_moves.py)
WARPS = 8

tl: Any = None  # triton.language, once _kernel() has put it here: the compiler looks up names in this module
if TYPE_CHECKING:  # and these two, which it finds in annotations
    from typing import Any as constexpr
    from typing import Any as tensor

Addresses = NDArray[np.int64]


class FragmentCopies:
    """Carries fragments on the device's current stream; one caller, and one copy at a time."""

    __slots__ = ("_device", "_here", "_there", "programs")

    def __init__(self, device: torch.device, programs: int = PROGRAMS) -> None:
        self._device = device
        self.programs = programs
        self._here = self._there = torch.empty(0, dtype=torch.int64)

    def run(self, sources: Addresses, targets: Addresses, width: int, *, swap: bool = False) -> None:
        """Queue the copies; with `swap` the two fragments of a pair change places.

        Requires: `fits` said so for each; the copies of the run before are done; no fragment overlaps another target.
        """
        count = len(sources)
        if not count:
            return
        self._make_room(count)
        self._here[: 2 * count].numpy()[:] = np.concatenate((sources, targets))
        if self._there is not self._here:
            self._there[: 2 * count].copy_(self._here[: 2 * count], non_blocking=True)
        words = width // WORD
        grid = (min(self.programs, count * -(-words // TILE)),)
        wide = not ((width | int(np.bitwise_or.reduce(self._here[: 2 * count].numpy()))) & 15)
        _kernel()[grid](self._there, count, words, TILE, wide, swap, num_warps=WARPS)

    def _make_room(self, count: int) -> None:
        """A table for so many pairs, twice: the GPU would read addresses slowly over the link."""
        if len(self._here) < 2 * count:
            size, on_gpu = 2 << count.bit_length(), self._device.type == "cuda"
            self._here = torch.empty(size, dtype=torch.int64, pin_memory=on_gpu)
            self._there = torch.empty(size, dtype=torch.int64, device=self._device) if on_gpu else self._here


def fits(*numbers: int) -> bool:
    """Whether fragments of these addresses, steps and widths can be carried: all are whole words."""
    return not any(number % WORD for number in numbers)


def is_available() -> bool:
    """Whether Triton is there."""
    return find_spec("triton") is not None


@cache
def _kernel() -> Any:
    triton, language = import_module("triton"), import_module("triton.language")
    globals().update(tl=language, constexpr=language.constexpr, tensor=language.tensor)
    return triton.jit(_carry, do_not_specialize=["table", "count", "words"])


def _carry(table: tensor, count: tensor, words: tensor, tile: constexpr, wide: constexpr, swap: constexpr) -> None:
    """One program: its share of all tiles."""
    pointer = tl.pointer_type(tl.int64)
    lane, tiles = tl.arange(0, tile), tl.cdiv(words, tile)
    for item in range(tl.program_id(0), count * tiles, tl.num_programs(0)):
        which, at = item // tiles, item % tiles * tile
        source, target = tl.load(table + which), tl.load(table + count + which)
        if wide:  # then a thread reads two words at once
            source, target = tl.multiple_of(source, 16), tl.multiple_of(target, 16)
        inside = at + lane < words
        from_at, to_at = source.to(pointer) + at + lane, target.to(pointer) + at + lane
        here = tl.load(from_at, mask=inside)
        if swap:
            there = tl.load(to_at, mask=inside)
            tl.store(from_at, there, mask=inside)
        tl.store(to_at, here, mask=inside)
