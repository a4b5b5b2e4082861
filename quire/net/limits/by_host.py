"""ByHost: connections by the host they come from, so that who has most loses his own first. Knows no sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, groupby
from typing import Generic, TypeVar

from quire.net.hosts import neighbourhood

T = TypeVar("T")


class ByHost(Generic[T]):
    """Connections, oldest first."""

    def __init__(self) -> None:
        self._hosts: dict[T, str] = {}
        self._connections: dict[str, dict[T, int]] = {}  # by host: each with its number, which is its age
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[T]:
        return iter(self._hosts)

    def add(self, connection: T, address: str) -> None:
        """One more, the youngest; addresses that one host can have many of are one host's."""
        host = self._hosts[connection] = neighbourhood(address)
        self._connections.setdefault(host, {})[connection] = next(self._numbers)

    def remove(self, connection: T) -> str | None:
        """The host that it came from; None: it was not there."""
        host = self._hosts.pop(connection, None)
        if host is not None:
            del self._connections[host][connection]
            if not self._connections[host]:
                del self._connections[host]
        return host

    def first(self, may_go: Callable[[T], bool] = lambda _: True) -> T | None:
        """Of those that may go, the oldest of the host that has most connections; None: no one may."""
        by_number = sorted(self._connections.values(), key=len, reverse=True)
        for _, alike in groupby(by_number, key=len):
            found = [next(((age, one) for one, age in those.items() if may_go(one)), None) for those in alike]
            oldest = min((pair for pair in found if pair is not None), key=lambda pair: pair[0], default=None)
            if oldest is not None:
                return oldest[1]
        return None

    def of_the_most(self) -> list[T]:
        """Those of the host that has most."""
        return list(max(self._connections.values(), key=len, default=()))
