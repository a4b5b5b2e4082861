"""ByHost: connections grouped by host: the host with the most of them loses one of its own first. Knows no sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, groupby
from operator import itemgetter
from typing import Generic, TypeVar

from quire.net.hosts import neighbourhood

T = TypeVar("T")


class ByHost(Generic[T]):
    """Connections, oldest first."""

    def __init__(self) -> None:
        self._hosts: dict[T, str] = {}
        self._connections: dict[str, dict[T, int]] = {}  # by host, each with its number: lower is older
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[T]:
        return iter(self._hosts)

    def add(self, connection: T, address: str) -> None:
        """Add one, as the youngest; addresses of one IPv6 network count as one host (`neighbourhood`)."""
        host = self._hosts[connection] = neighbourhood(address)
        self._connections.setdefault(host, {})[connection] = next(self._numbers)

    def remove(self, connection: T) -> str | None:
        """Remove one and return its host; None: it was not there."""
        host = self._hosts.pop(connection, None)
        if host is not None:
            del self._connections[host][connection]
            if not self._connections[host]:
                del self._connections[host]
        return host

    def first(self, may_go: Callable[[T], bool] = lambda _: True) -> T | None:
        """Of those that may go, the oldest of the host with the most connections; None: none may."""
        hosts = sorted(self._connections.values(), key=len, reverse=True)
        for _, same_size in groupby(hosts, key=len):
            candidates = [next(((age, one) for one, age in host.items() if may_go(one)), None) for host in same_size]
            oldest = min((pair for pair in candidates if pair is not None), key=itemgetter(0), default=None)
            if oldest is not None:
                return oldest[1]
        return None

    def of_the_most(self) -> list[T]:
        """All connections of the host with the most."""
        return list(max(self._connections.values(), key=len, default=()))
