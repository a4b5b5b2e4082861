"""OpenConnections: how many connections a server has open, and which one goes when one more comes. Knows no HTTP.

Counted from the moment that one is accepted, a handshake included. When all places are taken, there goes

first     an idle one: of the address with the most connections, the oldest of them; a quiet one keeps no one
          out, and a client that opens thousands loses its own
then      one whose request is still coming, chosen likewise
else      none: what is being answered goes on, and the newcomer gets one of a few places in reserve. There it may
          ask whether the server is well; asking for more, it is sent away for a while

A client that must go is asked to come back, which takes a moment: that is in reserve, too. When that is full, it is
cut.
"""

from __future__ import annotations

import logging
import resource
from typing import Generic, Protocol, TypeVar

from quire.net.limits.by_host import ByHost

SPARE_FILES = 256  # of a process, for everything but connections: disk, logs, the reserve
RESERVE = 64  # connections beyond the places: health checks, and clients that are being sent away
_log = logging.getLogger("quire.serve")


class Open(Protocol):
    """A connection."""

    @property
    def is_idle(self) -> bool:
        """Nothing is answered on it."""

    @property
    def is_reading(self) -> bool:
        """Its request is not complete, and nothing of an answer has been sent."""

    def hang_up(self) -> None:
        """End it at once."""

    def turn_away(self) -> None:
        """Ask the client to come back, and close the connection."""


T = TypeVar("T", bound=Open)


class OpenConnections(Generic[T]):
    """Of one server. At most `most` connections and a reserve, and never more than the process may have files."""

    def __init__(self, most: int) -> None:
        files = open_files(most + SPARE_FILES)
        self.most = min(most, max(1, files - SPARE_FILES))
        self.reserve = max(1, min(RESERVE, files // 4))
        self.is_draining = False  # the server takes no more: connections end with their answers
        self._open: ByHost[T] = ByHost()  # those that have a place
        self._reserved: ByHost[T] = ByHost()
        if self.most < most:
            _log.warning(
                "this process may have %d files open, which is room for %d connections and not for %d: raise ulimit -n",
                files, self.most, most,
            )  # fmt: skip

    def __len__(self) -> int:
        """Those that have a place."""
        return len(self._open)

    @property
    def num_open(self) -> int:
        """Those in reserve included."""
        return len(self._open) + len(self._reserved)

    def add(self, connection: T, address: str) -> bool:
        """One more; False: it has one of the places in reserve."""
        if len(self._open) >= self.most and not self.make_room():
            self._add_reserved(connection, address)
            return False
        self._open.add(connection, address)
        return True

    def remove(self, connection: T) -> None:
        """It is closed, or will be; one that is not there is let pass."""
        self._reserved.remove(connection)
        self._open.remove(connection)

    def make_room(self) -> bool:
        """Whether one could go."""
        found = self._open.first(lambda one: one.is_idle) or self._open.first(lambda one: one.is_reading)
        if found is not None:
            self.set_aside(found)
            found.turn_away()
        return found is not None

    def give_back(self) -> bool:
        """End one at once, since there are no files left; whether there was one that may go."""
        found = next(iter(self._reserved), None) or self._open.first(lambda one: one.is_idle)
        if found is not None:
            self.remove(found)
            found.hang_up()
        return found is not None

    def set_aside(self, connection: T) -> None:
        """It is being sent away, which takes a moment: its place is free."""
        host = self._open.remove(connection)
        if host is not None:
            self._add_reserved(connection, host)

    def drain(self) -> None:
        """No client is waited for whose request is not complete."""
        self.is_draining = True
        for connection in [one for one in self._open if one.is_reading and not one.is_idle]:
            connection.turn_away()

    def _add_reserved(self, connection: T, address: str) -> None:
        oldest = self._reserved.first() if len(self._reserved) >= self.reserve else None
        if oldest is not None:
            self.remove(oldest)
            oldest.hang_up()
        self._reserved.add(connection, address)


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
