"""Link: the contract of all transports, and doors. Knows no sessions and no messages' meaning.

One rule: only the process that owns a page writes into it. A receiver opens a door for the slots one session may fill;
what comes for other slots, or after the door was shut, is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, say
from quire.tiers.base import Bytes
from quire.transfer.geometry.byte_rows import Rows
from quire.transfer.geometry.slices import Places


class Received(NamedTuple):
    """A peer has said something."""

    peer: str
    data: bytes


class WriteDone(NamedTuple):
    """A write is over: it has landed, or there was a problem. Its source is not read any more."""

    ticket: int
    problem: str | None


class Lost(NamedTuple):
    """A peer is gone, or was closed; a later send tries it again."""

    peer: str
    reason: str


News = Received | WriteDone | Lost


class Link(Protocol):
    """Messages and page writes between one process and its peers. One caller at a time; nothing blocks but `poll`.

    A peer is a name that this link understands: where to reach it, or who has reached us. Messages to one peer arrive
    in order, or the peer is lost. A write is over when its `WriteDone` comes; every write gets exactly one.
    """

    def send(self, peer: str, message: bytes) -> bool:
        """Hand a message over; False when the peer is known to be out of reach."""
        ...

    def write(self, peer: str, door: int, rows: Rows) -> int:
        """Start moving own bytes through a peer's door; a ticket. Their source must stay as it is until `WriteDone`."""
        ...

    def door(self, places: Sequence[Places]) -> Door:
        """Let peers fill these slots, per group."""
        ...

    def poll(self, timeout: float = 0.0) -> list[News]:
        """Make progress and return what happened; waits up to `timeout` seconds for the first news.

        A closed link returns what is left; then it is an error.
        """
        ...

    def fileno(self) -> int:
        """What can be read from when `poll` has something to do; -1: it must be called again and again."""
        ...

    def close(self, peer: str | None = None) -> bool:
        """Drop one peer, or everything. True: proven that nothing of it is read or written any more."""
        ...


class Door:
    """The slots that one session's writers may fill. `shut` returns whether nothing more can land, now or later."""

    __slots__ = ("_allowed", "_on_shut", "_page_bytes", "is_open", "number")

    def __init__(
        self, number: int, places: Sequence[Places], pages: Sequence[Bytes], on_shut: Callable[[Door], bool]
    ) -> None:
        if len(places) != len(pages):
            fact = f"{len(places)} groups, the link has {len(pages)}"
            raise InputError(say("a door", fact, "name slots of every group"))
        self.number = number
        self.is_open = True
        self._page_bytes = [page.shape[1] for page in pages]
        self._allowed = [_mask(slots, len(page)) for slots, page in zip(places, pages, strict=True)]
        self._on_shut = on_shut

    def admits(self, rows: Rows) -> bool:
        """Whether all of it goes into this door's slots."""
        if not self.is_open:
            return False
        for group, _, target, size in rows.tolist():
            if not 0 <= group < len(self._allowed) or size <= 0 or target < 0:
                return False
            width, allowed = self._page_bytes[group], self._allowed[group]
            if target + size > len(allowed) * width:
                return False
            if not allowed[target // width : (target + size - 1) // width + 1].all():
                return False
        return True

    def shut(self) -> bool:
        """Let nothing in any more; False while something that was let in may still land: ask again."""
        self.is_open = False
        return self._on_shut(self)


def _mask(slots: Places, count: int) -> NDArray[np.bool_]:
    named = slots[slots >= 0]
    if len(named) and int(named.max()) >= count:
        raise InputError(say(f"a door for slot {int(named.max())}", f"there are {count}", "name slots of the pool"))
    allowed = np.zeros(count, np.bool_)
    allowed[named] = True
    return allowed


def check_source(rows: Rows, pages: Sequence[Bytes]) -> None:
    """Refuse rows that read outside the pools."""
    for group, source, _, size in rows.tolist():
        if not 0 <= group < len(pages) or not 0 <= source <= source + size <= pages[group].size:
            fact = f"bytes [{source}, {source + size}) of group {group} are not all there"
            raise InputError(say("a write", fact, "name bytes of the pools"))
