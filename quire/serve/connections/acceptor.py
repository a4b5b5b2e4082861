"""Acceptor: takes connections from a listening socket, each counted before anything else. Knows no HTTP.

The handshake of TLS comes behind that, and has a few seconds: a silent client is one of those that make room.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from quire.net.limits.open_connections import OpenConnections
from quire.serve.connections.http_connection import BoundedConnection

HANDSHAKE_SECONDS = 5.0
AT_ONCE = 16  # connections that are accepted before those that are here are looked at
REST = 0.1  # seconds, when there are no files left
SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger("quire.serve")


class Acceptor:
    """Of one listening socket; `make` makes the protocol of a connection. Ends as an asyncio server does."""

    def __init__(
        self, listening: socket.socket, limit: OpenConnections[BoundedConnection],
        make: Callable[[], BoundedConnection], tls: ssl.SSLContext | None,
    ) -> None:  # fmt: skip
        self.sockets = (listening,)
        self._listening, self._limit, self._make, self._tls = listening, limit, make, tls
        self._loop = asyncio.get_running_loop()
        self._open = False
        self._is_short = False
        self._coming: set[asyncio.Task[None]] = set()

    def start(self, backlog: int) -> None:
        """From now on."""
        self._listening.setblocking(False)
        self._listening.listen(backlog)
        self._open = True
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Take no more; handshakes under way are given up."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._listening.fileno())
        for task in list(self._coming) if self._tls is not None else ():
            task.cancel()

    async def wait_closed(self) -> None:
        """Until none is half open."""
        await asyncio.gather(*self._coming, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # it has gone again
                continue
            except OSError as error:
                self._rest(error)
                return
            self._is_short = False
            self._begin(accepted, str(address[0]) if isinstance(address, tuple) else "")

    def _rest(self, wrong: OSError) -> None:
        """No files left for one more, or worse: an idle connection gives one back; else a moment later."""
        if not self._is_short:  # the first time in a row
            _log.error("no connection can be accepted now: %s", wrong.strerror)
        self._is_short = True
        if wrong.errno in SHORTAGE and self._limit.give_back():
            return
        self._loop.remove_reader(self._listening.fileno())
        self._loop.call_later(REST, self._go_on)

    def _go_on(self) -> None:
        if self._open:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _begin(self, accepted: socket.socket, address: str) -> None:
        connection = self._make()
        connection.has_place = self._limit.add(connection, address)
        task = self._loop.create_task(self._connect(connection, accepted))
        if self._tls is not None:
            connection.handshake = task  # without one it is made in a moment
        self._coming.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._coming.discard(task)
            if connection.transport is None:  # it was not made
                self._limit.remove(connection)
                accepted.close()

        task.add_done_callback(over)

    async def _connect(self, connection: BoundedConnection, accepted: socket.socket) -> None:
        """To the protocol, behind the handshake if there is one; what fails there is over."""
        seconds = None if self._tls is None else HANDSHAKE_SECONDS
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )  # fmt: skip
        except Exception as error:  # of a stranger who speaks no TLS, above all
            _log.debug("a connection was not made: %s", type(error).__name__)
