"""TorchTier: slots in tensors on any device, such as the page pools that an engine's kernels read. Owns its stream and
the order of its copies; the tensors are the caller's, shared. Not part of `quire.tiers`, since it needs torch.

    default stream   ... kernels queued before the call ...             kernels launched after the call ...
                                                      \\               /
    own stream                                         copies ... done

Copies wait for what is on the device's default stream, and each call returns when they are done. What runs on other
streams is the caller's to order. Between a GPU and pinned memory one launch carries a whole batch (gpu_copies.py).
With an event in `behind`, copies to and from other memory wait for that alone, and so may run beside newer kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from quire.core.records.errors import InputError, MissingExtra, StateError, install_line, say
from quire.tiers.base import Bytes, Pages, TierInfo, check_bulk, check_call, check_copy, check_distinct, pools_in, runs

try:
    import torch
except ImportError as missing:
    raise MissingExtra(say("quire.tiers.torch_tier", f"it needs torch ({missing})", install_line("torch"))) from missing

from quire.tiers.gpu.gpu_copies import PROGRAMS, FragmentCopies, fits, is_available

PLAIN_BYTES = 4 << 20  # a page from this size on is copied by a call of its own, which costs no more
MOST_VIEWS = 16  # whose memory a tier knows to be pinned


class TorchTier:
    """A tier over memory the caller owns: uint8 [num_slots, page_bytes] per group, contiguous, all on one device.

    Groups of one pool are given the same memory. It has no view, as a processor cannot address a device; for tensors on
    the CPU, ArenaTier.over is faster. `programs`: how many of a GPU's processors carry a batch, at most.
    """

    __slots__ = ("_arenas", "_fragments", "_info", "_pinned", "_stream", "behind")

    def __init__(self, name: str, arenas: Sequence[torch.Tensor], *, programs: int = PROGRAMS) -> None:
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
        self._fragments = FragmentCopies(arenas[0].device if arenas else torch.device("cpu"), programs)
        self.behind: torch.cuda.Event | None = None
        self._pinned: dict[int, Bytes] = {}  # by address; kept, so that nothing else comes to lie there

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
        with self._copies(inside=True):
            for target, source, count in runs(dst_slots, src_slots):
                pages[target : target + count].copy_(pages[source : source + count])

    def reaches(self, group: int, view: Bytes) -> bool:
        """Whether a GPU can read and write that memory itself: pinned, in pages of whole words."""
        if self._stream is None or self._arenas is None or not (view.flags.c_contiguous and is_available()):
            return False
        address = view.__array_interface__["data"][0]
        if not fits(address, self._arenas[group].data_ptr(), self._info.page_bytes[group]):
            return False
        if self._pinned.get(address) is not view:
            if not (view.flags.writeable and torch.from_numpy(view).is_pinned()):
                return False
            while len(self._pinned) >= MOST_VIEWS:
                del self._pinned[next(iter(self._pinned))]
            self._pinned[address] = view
        return True

    def read_into(
        self, group: int, slots: Sequence[int], view: Bytes, rows: Sequence[int], cut: tuple[int, int]
    ) -> None:
        """Fill the rows from the slots, by one launch unless pages are large."""
        check_bulk(self._info, group, slots, view, rows)
        if cut[0] * cut[1] >= PLAIN_BYTES or not fits(cut[1], view.shape[1] // cut[0]):
            pages = view.reshape(len(view), cut[0], -1)[:, :, : cut[1]]
            return self.read(group, slots, [pages[row] for row in rows])
        self._launch(_addresses(self._start(group), view.shape[1], slots, cut), _rows(view, rows, cut), cut[1])

    def write_from(
        self, group: int, slots: Sequence[int], view: Bytes, rows: Sequence[int], cut: tuple[int, int]
    ) -> None:
        """Fill the slots from the rows, by one launch unless pages are large."""
        check_bulk(self._info, group, slots, view, rows)
        if cut[0] * cut[1] >= PLAIN_BYTES or not fits(cut[1], view.shape[1] // cut[0]):
            pages = view.reshape(len(view), cut[0], -1)[:, :, : cut[1]]
            return self.write(group, slots, [pages[row] for row in rows])
        check_distinct(self._info, group, slots)
        self._launch(_rows(view, rows, cut), _addresses(self._start(group), view.shape[1], slots, cut), cut[1])

    def exchange(self, group: int, slots: Sequence[int], view: Bytes, rows: Sequence[int]) -> None:
        """Whole pages change places, both ways at once over the link."""
        check_bulk(self._info, group, slots, view, rows)
        check_distinct(self._info, group, slots)
        cut = (1, view.shape[1])
        here, there = _addresses(self._start(group), view.shape[1], slots, cut), _rows(view, rows, cut)
        self._launch(here, there, view.shape[1], (there, here))

    def read_and_write(self, group: int, view: Bytes, down: Pages, up: Pages) -> None:
        """Whole pages go both ways at once: a slot that is read may be written, by the page beside it."""
        for slots, rows in (down, up):
            check_bulk(self._info, group, slots, view, rows)
            check_distinct(self._info, group, slots)
        if view.shape[1] >= PLAIN_BYTES:
            self.read_into(group, down[0], view, down[1], (1, view.shape[1]))
            return self.write_from(group, up[0], view, up[1], (1, view.shape[1]))
        beside = {slot: nth for nth, slot in enumerate(up[0])}
        pairs = [(nth, beside.pop(slot)) for nth, slot in enumerate(down[0]) if slot in beside]
        paired = {nth for nth, _ in pairs}
        pairs += zip((nth for nth in range(len(down[0])) if nth not in paired), list(beside.values()), strict=False)
        self._launch_both(group, view, down, up, np.array(pairs, np.int64).reshape(-1, 2))

    def close(self) -> None:
        """Let go of the tensors."""
        self._arenas = None
        self._pinned.clear()

    def _start(self, group: int) -> int:
        return int(self._open()[group].data_ptr())

    def _launch(
        self, sources: Addresses, targets: Addresses, width: int, partners: tuple[Addresses, Addresses] | None = None
    ) -> None:
        with self._copies():
            self._fragments.run(sources, targets, width, partners)

    def _launch_both(self, group: int, view: Bytes, down: Pages, up: Pages, pairs: NDArray[np.int64]) -> None:
        """Pairs of a page down and one up; then what is left of the longer list."""
        cut = (1, view.shape[1])
        here, up_to = (_addresses(self._start(group), view.shape[1], slots, cut) for slots in (down[0], up[0]))
        there, up_from = (_rows(view, rows, cut) for rows in (down[1], up[1]))
        left, waiting = np.ones(len(here), bool), np.ones(len(up_to), bool)
        left[pairs[:, 0]] = waiting[pairs[:, 1]] = False
        sources = np.concatenate((here[pairs[:, 0]], here[left], up_from[waiting]))
        targets = np.concatenate((there[pairs[:, 0]], there[left], up_to[waiting]))
        self._launch(sources, targets, view.shape[1], (up_from[pairs[:, 1]], up_to[pairs[:, 1]]))

    def _open(self) -> list[torch.Tensor]:
        if self._arenas is None:
            raise StateError(say(f"tier {self._info.name!r}", "it is closed", "open a new one"))
        return self._arenas

    @contextmanager
    def _copies(self, inside: bool = False) -> Iterator[None]:
        """Copies in here are queued on the tier's stream, and done at the end, be it an error. `inside`: of the tier;
        they may read what the newest kernels write."""
        with torch.inference_mode():  # arenas may have been made in it, and then they can be written nowhere else
            if self._stream is None:
                yield
                return
            behind = None if inside else self.behind  # which another thread may set meanwhile
            if behind is None:
                self._stream.wait_stream(torch.cuda.default_stream(self._stream.device))
            else:
                self._stream.wait_event(behind)
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                self._stream.synchronize()


def _cut(arena: torch.Tensor, cut: tuple[int, ...]) -> torch.Tensor:
    """The leading part of every strip of every slot: [num_slots, strips, width]."""
    strips, width = cut
    return arena.view(len(arena), strips, arena.shape[1] // strips)[:, :, :width]


Addresses = NDArray[np.int64]


def _addresses(start: int, page_bytes: int, pages: Sequence[int], cut: tuple[int, int]) -> Addresses:
    """Where each strip of each page begins, in memory that begins at `start`."""
    strips = np.arange(cut[0], dtype=np.int64) * (page_bytes // cut[0])
    return (start + np.asarray(pages, np.int64)[:, None] * page_bytes + strips).ravel()


def _rows(view: Bytes, rows: Sequence[int], cut: tuple[int, int]) -> Addresses:
    return _addresses(view.__array_interface__["data"][0], view.shape[1], rows, cut)


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
