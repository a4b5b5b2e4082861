"""KeyPlace: where pages lie under their keys. Owns the contract that a disk keeps.

Calls that move bytes wait for the medium: make them on a thread that may wait. `still` is asked before anything rests
on the caller's memory: once it says no, the call has lost its caller, and what it moved by then counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from quire.tiers.base import Bytes

Still = Callable[[], bool]
THERE = ""  # of a page that was moved; anything else says why it was not


class KeyPlace(Protocol):
    """Pages of one size by key."""

    @property
    def hanging(self) -> bool:
        """Whether the medium has not answered in time, and still does not."""
        ...

    def write(self, keys: Sequence[bytes], pages: Sequence[Bytes], still: Still) -> list[str]:
        """Keep these pages; why not, for each, or THERE."""
        ...

    def read(self, keys: Sequence[bytes], pages: Sequence[Bytes], still: Still) -> list[str]:
        """Fill the pages, each checked; why not, for each, or THERE."""
        ...

    def use(self, keys: Sequence[bytes], reused: Collection[bytes]) -> None:
        """A request is over that asked for these, in this order; `reused` were read."""
        ...

    def tidy(self) -> float | None:
        """Do what is due on a quiet moment; seconds until it is called again, None: after the next write."""
        ...

    def close(self) -> None:
        """Make durable what is there, and let go."""
        ...
