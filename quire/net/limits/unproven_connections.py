"""Connection limit: how many connections may be open that have not proven that they know the secret, and which of them
is closed when one more comes, so that idle ones keep no peer out. Knows no sockets.

    first     one that has said nothing, or has had its time: of the address with the most, the oldest; none of those
              that came in this very moment, since they were not read yet
    else      one of the address with the most, by lot, the newcomer among them
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Generic, TypeVar

from quire.net.limits.by_host import ByHost

MOST_UNPROVEN = 256
FAIR = 1.0  # seconds in which an honest peer proves itself, wherever it is

T = TypeVar("T")


@dataclass(slots=True)
class _Unproven:
    """What is known of one: since when it is open, whether it has said anything."""

    since: float
    is_silent: bool = True


class UnprovenConnections(Generic[T]):
    """Those that are open, oldest first."""

    def __init__(self) -> None:
        self._connections: dict[T, _Unproven] = {}
        self._by_host: ByHost[T] = ByHost()

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, token: T, address: str, now: float) -> T | None:
        """One more; which one must be closed for it, if one must: it may be itself."""
        self._connections[token] = _Unproven(now)
        self._by_host.add(token, address)
        return self.next_to_close(now) if len(self._connections) > MOST_UNPROVEN else None

    def heard(self, token: T) -> None:
        """It has said something, whatever that is worth."""
        if token in self._connections:
            self._connections[token].is_silent = False

    def remove(self, token: T) -> None:
        """It has proven itself, or is gone."""
        self._connections.pop(token, None)
        self._by_host.remove(token)

    def next_to_close(self, now: float) -> T | None:
        """Which one is closed first; None: there is none."""

        def is_overdue(token: T) -> bool:
            one = self._connections[token]
            return (one.is_silent and one.since < now) or now >= one.since + FAIR

        overdue = self._by_host.first(is_overdue)
        return random.choice(self._by_host.of_the_most() or [None]) if overdue is None else overdue
