"""TorchTier: slots in tensors on any device, such as the page pools that an engine's kernels read. Owns its stream and
the order of its copies; the tensors are the caller's, shared. Not part of `quire.tiers`, since it needs torch.

    default stream   ... kernels queued before the call ...             kernels launched after the call ...
                                                      \\               /
    own stream                                         copies ... done

Copies wait for what is on the device's default stream, and each call returns when they are done. What runs on other
streams is the caller's to order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from numpy.lib.stride_tricks import as_strided

from quire.core.records.errors import InputError, MissingExtra, StateError, install_line, say
from quire.tiers.base import Bytes, TierInfo, check_call, check_copy, check_distinct, pools_in, runs

try:
    import torch
except ImportError as missing:
    raise MissingExtra(say("quire.tiers.torch_tier", f"it needs torch ({missing})", install_line("torch"))) from missing


class TorchTier:
    """A tier over memory the caller owns: uint8 [num_slots, page_bytes] per group, contiguous, all on one device.

    Groups of one pool are given the same memory. It has no view, as a processor cannot address a device; for tensors on
    the CPU, ArenaTier.over is faster.
    """

    __slots__ = ("_arenas", "_info", "_stream")

    def __init__(self, name: str, arenas: Sequence[torch.Tensor]) -> None:
        for group, arena in enumerate(arenas):
            if arena.ndim != 2 or arena.dtype != torch.uint8 or not arena.is_contiguous() or arena.shape[1] < 1:
                fact = f"group {group} is {arena.dtype} {list(arena.shape)} with strides {list(arena.stride())}"
                raise InputError(say(f"tier {name!r}", fact, "give contiguous uint8 [num_slots, page_bytes]"))
        devices = {arena.device for arena in arenas}
        if len(devices) > 1:
            fact = f"its groups are on {', '.join(sorted(map(str, devices)))}"
            raise InputError(say(f"tier {name!r}", fact, "keep all groups of a tier on one device"))
        pools = pools_in(name, [(arena.data_ptr(), arena.numel()) for arena in arenas])
        slots, sizes = tuple(len(arena) for arena in arenas), tuple(arena.shape[1] for arena in arenas)
        self._info = TierInfo(name, slots, sizes, pools)
        self._arenas: list[torch.Tensor] | None = list(arenas)
        on_cuda = [device for device in devices if device.type == "cuda"]
        self._stream = torch.cuda.Stream(on_cuda[0]) if on_cuda else None

    def info(self) -> TierInfo:
        """What the tier is."""
        return self._info

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        """Fill the buffers from the slots."""
        arenas = self._open()
        check_call(self._info, group, slots, out)
        with self._copies():
            for slot, buffer in _joined(slots, out):
                pages = _cut(arenas[group], buffer.shape[1:])[slot : slot + len(buffer)]
                if buffer.flags.c_contiguous:
                    torch.from_numpy(buffer).copy_(pages, non_blocking=self._stream is not None)
                else:  # a device fills one stretch of memory only; this waits for its bytes
                    buffer[:] = pages.cpu().numpy()

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        """Fill the slots from the buffers."""
        arenas = self._open()
        check_call(self._info, group, slots, data)
        check_distinct(self._info, group, slots)
        with self._copies():
            for slot, buffer in _joined(slots, data):
                if not (buffer.flags.c_contiguous and buffer.flags.writeable):  # torch takes no other
                    buffer = buffer.copy(order="C")
                pages = _cut(arenas[group], buffer.shape[1:])[slot : slot + len(buffer)]
                pages.copy_(torch.from_numpy(buffer), non_blocking=self._stream is not None)

    def copy(self, group: int, src_slots: Sequence[int], dst_slots: Sequence[int], cut: tuple[int, int]) -> None:
        """Fill the cut of the targets from the sources, on the device."""
        arenas = self._open()
        check_copy(self._info, group, src_slots, dst_slots, cut)
        pages = _cut(arenas[group], cut)
        with self._copies():
            for target, source, count in runs(dst_slots, src_slots):
                pages[target : target + count].copy_(pages[source : source + count])

    def close(self) -> None:
        """Let go of the tensors."""
        self._arenas = None

    def _open(self) -> list[torch.Tensor]:
        if self._arenas is None:
            raise StateError(say(f"tier {self._info.name!r}", "it is closed", "open a new one"))
        return self._arenas

    @contextmanager
    def _copies(self) -> Iterator[None]:
        """Copies in here are queued on the tier's stream, and done at the end, be it an error."""
        with torch.inference_mode():  # arenas may have been made in it, and then they can be written nowhere else
            if self._stream is None:
                yield
                return
            self._stream.wait_stream(torch.cuda.default_stream(self._stream.device))
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                self._stream.synchronize()


def _cut(arena: torch.Tensor, cut: tuple[int, ...]) -> torch.Tensor:
    """The leading part of every strip of every slot: [num_slots, strips, width]."""
    strips, width = cut
    return arena.view(len(arena), strips, arena.shape[1] // strips)[:, :, :width]


def _joined(slots: Sequence[int], buffers: Sequence[Bytes]) -> Iterator[tuple[int, Bytes]]:
    """First slots with their buffers [count, strips, width]: one copy for those that are neighbours on both sides."""
    order = sorted(range(len(slots)), key=slots.__getitem__)
    start = 0
    for stop in range(1, len(order) + 1):
        if stop < len(order):
            before, after = order[stop - 1], order[stop]
            if slots[after] == slots[before] + 1 and _adjacent(buffers[before], buffers[after]):
                continue
        first, count = buffers[order[start]], stop - start
        joined = first[None] if count == 1 else as_strided(first, (count, *first.shape), (first.nbytes, *first.strides))
        yield slots[order[start]], joined
        start = stop


def _adjacent(one: Bytes, other: Bytes) -> bool:
    """Whether two buffers of a shape are contiguous, and lie side by side in one array."""
    if one.base is None or one.base is not other.base or one.shape != other.shape:
        return False
    if not (one.flags.c_contiguous and other.flags.c_contiguous):
        return False
    return bool(other.__array_interface__["data"][0] - one.__array_interface__["data"][0] == one.nbytes)
