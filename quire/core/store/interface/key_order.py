"""An order of eviction over a caller's keys."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import Protocol

from quire.core.store.interface.arrays import Int32Array, Int64Array


class KeyOrder(Protocol):
    """Which of a caller's keys go next: an order without tree, tiers and bytes. Keys are bytes."""

    def __init__(self, room: int, ghosts: int = 8, adaptive: bool = True) -> None: ...

    def __len__(self) -> int: ...

    def __contains__(self, key: object) -> bool: ...

    def clear(self) -> None:
        """All keys go, held ones too, and all that was learned."""

    @property
    def num_free(self) -> int:
        """Keys that may go."""

    def set_time(self, now: int) -> None:
        """In microseconds; it never goes back."""

    def meet(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """These will come: how many of them were there before, and the class of the last of those."""

    def come(self, key: bytes) -> None:
        """A key is there from now on, and held."""

    def hold(self, key: bytes) -> None:
        """A key may not go from now on."""

    def let_go(self, key: bytes) -> None:
        """A key may go from now on."""

    def take(self, count: int, spared: Collection[bytes] = ()) -> list[bytes] | None:
        """So many keys go, neither held nor spared; None: there are fewer, and nothing has changed."""

    def drop(self, key: bytes) -> None:
        """A key is gone, held or not, and not for want of room."""

    def chain(self, keys: Sequence[bytes]) -> None:
        """Each key continues the one before it: it is of no use without it, and goes before it."""

    def use(self, keys: Sequence[bytes], reused: Container[bytes], continued: bool) -> int:
        """A request is over that used these keys, found the `reused` ones there, and made the others; `continued`: it
        went on from known text. Its last key goes first. The class that the last reused key had."""

    def hint(self, keys: Sequence[bytes], back: int) -> int:
        """When the text of these keys comes back (0: unknown): of the last ones, which no other text shares. How many
        keys that is."""

    def retain(self, keys: Sequence[bytes], priority: int) -> None:
        """These keys have this priority from now on: lower ones go before them."""

    @property
    def is_due(self) -> bool:
        """Whether there is enough new to learn from."""

    def take_counts(self) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """As `Store.take_counts` of a group."""

    def set_rank(self, cells: Int32Array, recency: bool) -> None:
        """Evict in this order of cells from now on; all are named. `recency`: by age alone."""
