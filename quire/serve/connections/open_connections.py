"""OpenConnections: how many connections a server has open, and which one goes when one more comes. Knows no HTTP.

first     an idle one: of the address with the most connections, the oldest of them; one that is quiet keeps nobody
          out, and who opens thousands loses his own
else      the newcomer: what is being answered goes on
"""

from __future__ import annotations

import resource
from typing import Generic, Protocol, TypeVar

from quire.core.hosts import neighbourhood

SPARE_FILES = 256  # of a process, for everything but connections


class Open(Protocol):
    """A connection."""

    @property
    def is_idle(self) -> bool:
        """Nothing is answered on it."""

    def hang_up(self) -> None:
        """End it at once."""


T = TypeVar("T", bound=Open)


class OpenConnections(Generic[T]):
    """Of one server. At most `most` connections, and never more than the process may have files."""

    def __init__(self, most: int) -> None:
        self.most = min(most, max(1, open_files(most + SPARE_FILES) - SPARE_FILES))
        self._open: dict[str, dict[T, None]] = {}  # by address, oldest first
        self._where: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._where)

    def add(self, connection: T, address: str) -> bool:
        """One more; False: there is no place for it."""
        place = self._next_to_close() if len(self._where) >= self.most else None
        if place is None and len(self._where) >= self.most:
            return False
        if place is not None:
            self.remove(place)
            place.hang_up()
        where = self._where[connection] = neighbourhood(address)
        self._open.setdefault(where, {})[connection] = None
        return True

    def remove(self, connection: T) -> None:
        """It is closed, or will be; one that had no place is not there."""
        where = self._where.pop(connection, None)
        if where is not None:
            del self._open[where][connection]
            if not self._open[where]:
                del self._open[where]

    def _next_to_close(self) -> T | None:
        for address in sorted(self._open, key=lambda one: -len(self._open[one])):
            for connection in self._open[address]:
                if connection.is_idle:
                    return connection
        return None


def open_files(wanted: int) -> int:
    """Files that this process may have open, after it has asked for so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    asked = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (asked, hard))
    except (OSError, ValueError):  # a system may refuse what its own limit says
        return soft
    return asked
