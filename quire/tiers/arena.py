"""ArenaTier: slots in plain memory, one NumPy array per pool of layer groups. Owns the arrays; knows no device.

It is the reference for all tiers, the host tier of a machine without a GPU, and the stand-in for a device in tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.core.records.errors import InputError, StateError, say
from quire.tiers.base import Bytes, TierInfo, check_call, check_distinct, pools_in


class ArenaTier:
    """Zeroed memory [num_slots, page_bytes] per group; groups of one number in `pool_of` have it together."""

    __slots__ = ("_arenas", "_info")

    def __init__(
        self, name: str, num_slots: Sequence[int], page_bytes: Sequence[int], pool_of: Sequence[int] = ()
    ) -> None:
        if len(num_slots) != len(page_bytes):
            fact = f"{len(num_slots)} slot counts, {len(page_bytes)} page sizes"
            raise InputError(say(f"tier {name!r}", fact, "give one of each per group"))
        if min(num_slots, default=0) < 0 or min(page_bytes, default=1) < 1:
            fact = f"slots {list(num_slots)}, page bytes {list(page_bytes)}"
            raise InputError(say(f"tier {name!r}", fact, "give slots >= 0 and page bytes >= 1"))
        self._info = TierInfo(name, tuple(num_slots), tuple(page_bytes), tuple(pool_of))
        firsts = self._info.first_of
        own = {group: np.zeros((num_slots[group], page_bytes[group]), np.uint8) for group in sorted(set(firsts))}
        self._arenas: list[Bytes] | None = [own[first] for first in firsts]

    @classmethod
    def over(cls, name: str, arenas: Sequence[Bytes]) -> ArenaTier:
        """A tier over memory the caller owns: uint8 [num_slots, page_bytes] per group, shared.

        Groups of one pool are given the same memory: that is how the tier knows them.
        """
        for group, arena in enumerate(arenas):
            if arena.ndim != 2 or arena.dtype != np.uint8 or not arena.flags.c_contiguous or not arena.flags.writeable:
                fact = f"group {group} is {arena.dtype} {list(arena.shape)}, {_flags(arena)}"
                raise InputError(say(f"tier {name!r}", fact, "give contiguous writable uint8 [num_slots, page_bytes]"))
        tier = cls(name, [0] * len(arenas), [1] * len(arenas))
        tier._arenas = list(arenas)
        pools = pools_in(name, [(arena.__array_interface__["data"][0], arena.nbytes) for arena in arenas])
        slots, sizes = tuple(len(arena) for arena in arenas), tuple(arena.shape[1] for arena in arenas)
        tier._info = TierInfo(name, slots, sizes, pools)
        return tier

    def info(self) -> TierInfo:
        """What the tier is."""
        return self._info

    def view(self, group: int) -> Bytes:
        """The slots themselves."""
        check_call(self._info, group, (), ())
        return self._open()[group]

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        """Fill the buffers from the slots."""
        arenas = self._open()
        check_call(self._info, group, slots, out)
        for slot, buffer in zip(slots, out, strict=True):
            strips, width = buffer.shape
            buffer[:] = arenas[group][slot].reshape(strips, -1)[:, :width]

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        """Fill the slots from the buffers."""
        arenas = self._open()
        check_call(self._info, group, slots, data)
        check_distinct(self._info, group, slots)
        for slot, buffer in zip(slots, data, strict=True):
            strips, width = buffer.shape
            arenas[group][slot].reshape(strips, -1)[:, :width] = buffer

    def close(self) -> None:
        """Let go of the arrays."""
        self._arenas = None

    def _open(self) -> list[Bytes]:
        if self._arenas is None:
            raise StateError(say(f"tier {self._info.name!r}", "it is closed", "open a new one"))
        return self._arenas


def _flags(arena: Bytes) -> str:
    return f"{'' if arena.flags.c_contiguous else 'not '}contiguous, {'' if arena.flags.writeable else 'not '}writable"
