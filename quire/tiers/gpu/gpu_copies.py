"""Copies of many pieces of memory by one launch, in Triton. Owns the kernel, its tiles and its table of addresses.
Knows no pages and no tiers: it is given addresses that the GPU can reach, of its own memory or of pinned host memory.

    fragments   (source, target), (source, target), ...   each `width` bytes
    pairs       the first fragments may have partners: both are read before either is written
    tiles       every fragment in pieces of TILE words; program p of P carries tiles p, p + P, p + 2 P, ...

A call per page costs microseconds, which pages below some megabytes cannot pay (64 KiB cross the link in one). A few
programs fill the link: bytes are on their way all the time, and the other processors stay free for the model.
Triton is imported by the first copy: the module itself needs neither it nor a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
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
Partners = tuple[Addresses, Addresses]  # sources, targets


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the kernel is compiled for."""

    tile: int
    wide: bool  # all fragments are whole 16 bytes
    pairs: bool  # some have partners


class FragmentCopies:
    """Carries fragments on the device's current stream; one caller, and one copy at a time."""

    __slots__ = ("_device", "_here", "_there", "programs")

    def __init__(self, device: torch.device, programs: int = PROGRAMS) -> None:
        self._device = device
        self.programs = programs
        self._here = self._there = torch.empty(0, dtype=torch.int64)

    def run(self, sources: Addresses, targets: Addresses, width: int, partners: Partners | None = None) -> None:
        """Queue the copies. `partners`: sources and targets of copies beside the first ones, one beside each.

        Requires: `fits` said so for each; the copies of the run before are done; a target overlaps no other fragment
        than its own partner.
        """
        count = len(sources)
        if not count:
            return
        columns = np.concatenate((sources, targets, *(partners or ())))
        self._make_room(len(columns))
        self._here[: len(columns)].numpy()[:] = columns
        if self._there is not self._here:
            self._there[: len(columns)].copy_(self._here[: len(columns)], non_blocking=True)
        words, num_pairs = width // WORD, 0 if partners is None else len(partners[0])
        grid = (min(self.programs, count * -(-words // TILE)),)
        wide = not ((width | int(np.bitwise_or.reduce(columns))) & 15)
        _kernel()[grid](self._there, count, num_pairs, words, _Shape(TILE, wide, num_pairs > 0), num_warps=WARPS)

    def _make_room(self, count: int) -> None:
        """A table for so many addresses, twice: the GPU would read them slowly over the link."""
        if len(self._here) < count:
            size, on_gpu = 1 << count.bit_length(), self._device.type == "cuda"
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
    return triton.jit(_carry, do_not_specialize=["table", "count", "num_pairs", "words"])


def _carry(table: tensor, count: tensor, num_pairs: tensor, words: tensor, shape: constexpr) -> None:
    """One program: its share of all tiles."""
    pointer = tl.pointer_type(tl.int64)
    lane, tiles = tl.arange(0, shape.tile), tl.cdiv(words, shape.tile)
    for item in range(tl.program_id(0), count * tiles, tl.num_programs(0)):
        which, at = item // tiles, item % tiles * shape.tile
        source, target = tl.load(table + which), tl.load(table + count + which)
        if shape.wide:  # then a thread reads two words at once
            source, target = tl.multiple_of(source, 16), tl.multiple_of(target, 16)
        inside = at + lane < words
        here = tl.load(source.to(pointer) + at + lane, mask=inside)
        if shape.pairs:
            paired = inside & (which < num_pairs)
            column = table + 2 * count + which
            other, into = tl.load(column, which < num_pairs), tl.load(column + num_pairs, which < num_pairs)
            if shape.wide:
                other, into = tl.multiple_of(other, 16), tl.multiple_of(into, 16)
            there = tl.load(other.to(pointer) + at + lane, mask=paired)
            tl.store(into.to(pointer) + at + lane, there, mask=paired)
        tl.store(target.to(pointer) + at + lane, here, mask=inside)
