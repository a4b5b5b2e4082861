"""EventTemplate: many events that differ only in hash, parent and tokens, written at once. Knows nothing of the rest.

A decode step stores one block for each of many sequences; made one by one, such events cost more than all the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from quire.events.wire import pack
from quire.events.wire.batch_columns import SingleBlocks

HASH, PARENT, TOKEN = 0x9111111111111111, 0x9222222222222222, 0x7A7A7A7A  # each takes the widest encoding of its kind


@dataclass(frozen=True, slots=True)
class EncodedEvents:
    """So many events, encoded, back to back."""

    count: int
    data: bytearray


class EventTemplate:
    """An encoded event with gaps."""

    __slots__ = ("_data", "_form")

    def __init__(self, event: Any, size: int, has_parent: bool) -> None:
        """From an event that has the marks above in its gaps, and as many tokens as a block has.

        Gaps come before the names that others chose (adapter, salt): the first place that looks like one is one.
        """
        self._data = msgspec.msgpack.encode(event)
        gaps: dict[str, tuple[Any, int]] = {
            "hash": (">u8", self._data.index(HASH.to_bytes(8, "big"))),
            "tokens": ((pack.TOKEN, (size,)), self._data.index(b"\xce" + TOKEN.to_bytes(4, "big"))),
        }
        if has_parent:  # else a salt may hold those very bytes
            gaps["parent"] = (">u8", self._data.index(PARENT.to_bytes(8, "big")))
        formats, offsets = zip(*gaps.values(), strict=True)
        form = {"names": list(gaps), "formats": formats, "offsets": offsets, "itemsize": len(self._data)}
        self._form = np.dtype(form)  # type: ignore[call-overload]  # NumPy's types know no subarrays here

    def fill(self, blocks: SingleBlocks) -> EncodedEvents:
        """One event per block."""
        data = bytearray(self._data * len(blocks.hashes))
        rows = np.frombuffer(data, self._form)
        rows["hash"], rows["tokens"]["number"] = blocks.hashes, blocks.tokens
        if "parent" in self._form.fields:
            rows["parent"] = blocks.parents
        return EncodedEvents(len(blocks.hashes), data)
