"""Sockets: one process's connections: who dials, who is let in, who is lost. Knows no doors and no pages.

A name is looked up on a thread; until it is known its connection takes what is to be sent, like one that is dialling.
The handshake's deadline counts from the dial.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import selectors
import socket
import struct
import time
from abc import ABC, abstractmethod

from quire.core.records.errors import InputError, StateError, say
from quire.net.address import SocketAddress, encoded, joined, numeric_address, split
from quire.net.hmac_authentication import HmacAuthentication
from quire.net.limits.unproven_connections import UnprovenConnections
from quire.net.lookup import Lookups
from quire.net.tls import Tls, TlsSocket
from quire.transfer.links.connection import Broken, Connection, Views
from quire.transfer.links.link import Lost, News

MOST_INBOUND = 4096  # that have dialled us
BACKLOG = 1024  # that wait to be let in
ENTRIES = 8  # let in at once: in between those who are here go on, and prove themselves before others push them out

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE = 0.25  # seconds without accepting, after there was no room for one more open file

WRONG = (Broken, OSError, InputError, struct.error)  # the last one: a body too short for its kind

_log = logging.getLogger("quire.transfer")


class Sockets(ABC):
    """A peer is `host:port` to dial, or `name@host:port` when it has dialled us."""

    def __init__(self, name: str, secret: bytes, listen: str | None, patience: float, tls: Tls | None = None) -> None:
        HmacAuthentication(secret, name, dialled=True)  # refuse a bad secret or name now, not at the first connection
        self.name = name
        self._secret = secret
        self._patience = patience  # seconds for a handshake
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._peers: dict[str, Connection] = {}
        self._news: list[News] = []
        self._lookups: Lookups[Connection] | None = None  # once a name is dialled
        self._unproven: UnprovenConnections[Connection] = UnprovenConnections()
        self._outward = None if tls is None else tls.outward()
        self._inward = None if tls is None or listen is None else tls.inward()
        self._accepts_from: float | None = None  # while it accepts no connection: until when
        self._server = self._listen(listen) if listen is not None else None

    def __repr__(self) -> str:
        where = "closed" if self._is_closed else "does not listen" if self._server is None else f"at {self.address}"
        tls = ", TLS" if self._outward is not None else ""
        return f"{type(self).__name__}({self.name!r}, {where}, {len(self._peers)} connections{tls})"

    def _listen(self, where: str) -> socket.socket:
        host, port = split(where)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            server = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except (OSError, TypeError, UnicodeError) as error:
            raise StateError(say(f"listen on {where}", str(error), "choose a free address")) from error
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)
        return server

    @property
    def address(self) -> str:
        """Where others reach it."""
        if self._server is None:
            raise StateError(say(f"address of link {self.name!r}", "it does not listen", "give `listen`"))
        return joined(*self._server.getsockname()[:2])

    def fileno(self) -> int:
        """The selector's own descriptor, where it has one; it knows of everything that waits to be sent."""
        number = getattr(self._selector, "fileno", None)
        if number is None or self._is_closed:
            return -1
        self._listen_to_all()
        return int(number())

    def _listen_to_all(self) -> None:
        for connection in self._peers.values():
            if connection.sock is not None:
                self._selector.modify(connection.sock, connection.interest, connection)

    # -- coming into being -------------------------------------------------------------------------------------------

    def _reach(self, peer: str) -> Connection | None:
        """The connection to a peer, dialled if there is none; None: it is out of reach."""
        known = self._peers.get(peer)
        if known is not None or "@" in peer or self._is_closed:
            return known
        host, port = split(peer)
        name = encoded(host)
        if name is None:
            return None
        connection, address = self._new(peer, dialled=True), numeric_address(name, port)
        if address is None:
            self._peers[peer] = connection
            self._look_up(connection, name, port)
        elif self._connect(connection, address) is not None:
            return None
        return connection

    def _new(self, peer: str, *, dialled: bool) -> Connection:
        seal = HmacAuthentication(self._secret, self.name, dialled=dialled)
        return Connection(peer, seal, self, time.monotonic() + self._patience)

    def _look_up(self, connection: Connection, name: bytes, port: int) -> None:
        if self._lookups is None:
            self._lookups = Lookups()
            self._selector.register(self._lookups.ready, selectors.EVENT_READ, self._lookups)
        self._lookups.ask(connection, name, port)

    def _looked_up(self, lookups: Lookups[Connection]) -> None:
        for connection, address, problem in lookups.take():
            if self._peers.get(connection.peer) is not connection:
                continue  # given up meanwhile
            wrong = f"its name leads nowhere: {problem}" if address is None else self._connect(connection, address)
            if wrong is not None:
                self._lose(connection, wrong)

    def _connect(self, connection: Connection, to: SocketAddress) -> str | None:
        """Dial; what is wrong, if it is known at once."""
        try:
            sock = socket.socket(to.family, socket.SOCK_STREAM)
        except OSError as error:
            return str(error)
        sock.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError):
                sock.connect(to.address)
        except OSError as error:
            sock.close()
            return str(error)
        self._join(connection, sock)
        return None

    def _accept(self) -> None:
        """Let some in; when there is no room for one more unproven connection, one of those that are here is closed."""
        assert self._server is not None
        now = time.monotonic()  # of all of them: those who came first among them have had no time to speak either
        proven = sum("@" in known.peer for known in self._peers.values()) - len(self._unproven)
        for _ in range(ENTRIES):
            try:
                sock, address = self._server.accept()
            except OSError as error:  # no connection waits, or it has gone again
                if error.errno in OUT_OF_FILES and self._is_somebody_waiting():
                    self._make_room(now)
                return
            if proven >= MOST_INBOUND:
                sock.close()
                _log.info("connection from %s refused: %d peers have dialled us", joined(*address[:2]), proven)
                continue
            connection = self._new("?@" + joined(*address[:2]), dialled=False)
            self._join(connection, sock)
            closed = self._unproven.add(connection, address[0], now)
            if closed is not None:
                self._lose(closed, "too many others that have proven nothing wait")

    def _is_somebody_waiting(self) -> bool:
        """Asked because `accept` says that there are too many open files before it looks whether a connection waits."""
        assert self._server is not None
        waits = select.poll()
        waits.register(self._server, select.POLLIN)
        return bool(waits.poll(0))

    def _make_room(self, now: float) -> None:
        """No more files may be open: close a connection that has proven nothing.

        Without one no connection is accepted for a while: the listening socket would wake us again and again for
        nothing.
        """
        closed = self._unproven.next_to_close(now)
        if closed is not None:
            self._lose(closed, "there are too many open files")
            return
        assert self._server is not None
        self._selector.unregister(self._server)
        self._accepts_from = now + ACCEPT_PAUSE
        _log.warning("link %s accepts no connection for %g s: there are too many open files", self.name, ACCEPT_PAUSE)

    def _wait_to_accept(self, now: float, timeout: float) -> float:
        """Listen again when the pause is over; how long may be waited at most."""
        if self._accepts_from is None:
            return timeout
        if now < self._accepts_from:
            return min(timeout, self._accepts_from - now)
        assert self._server is not None
        self._accepts_from = None
        self._selector.register(self._server, selectors.EVENT_READ)
        return timeout

    def _join(self, connection: Connection, sock: socket.socket) -> None:
        dialled = "@" not in connection.peer
        context = self._outward if dialled else self._inward
        host = split(connection.peer)[0] if dialled else None
        tls = None if context is None else TlsSocket(sock, context, host)
        connection.attach(sock, tls)
        self._enter(connection)
        self._selector.register(tls or sock, connection.interest, connection)

    def _enter(self, connection: Connection) -> None:
        """A name belongs to one connection: an older one from the same address is over."""
        older = self._peers.get(connection.peer)
        if older is not None and older is not connection:
            self._lose(older, "it has dialled again")
        self._peers[connection.peer] = connection

    def opened(self, connection: Connection) -> None:
        """A peer that dialled us is known by its name from now on."""
        self._unproven.remove(connection)
        if connection.peer.startswith("?@"):
            del self._peers[connection.peer]
            connection.peer = connection.name.replace("@", "-") + connection.peer[1:]
            self._enter(connection)

    # -- at work -----------------------------------------------------------------------------------------------------

    def _serve(self, timeout: float) -> None:
        """One round: accept, look up, receive, send; a peer that has not proven itself in time is lost."""
        now = time.monotonic()
        self._listen_to_all()
        timeout = self._wait_to_accept(now, timeout)
        for connection in self._peers.values():
            if not connection.is_open:
                timeout = min(timeout, max(connection.deadline - now, 0.0))
        ready = self._selector.select(timeout)
        for key, events in ready:
            if isinstance(key.data, Connection):
                self._turn(key.data, events)
            elif key.data is not None:
                self._looked_up(key.data)
        if any(key.data is None for key, _ in ready):  # after those who are here: what they have said counts for them
            self._accept()
        now = time.monotonic()
        for connection in [c for c in self._peers.values() if not c.is_open and now >= c.deadline]:
            late = "it did not answer in time" if connection.sock is not None else "its name was not found in time"
            self._lose(connection, late)

    def _turn(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._unproven.heard(connection)
                connection.receive_some()
            if events & selectors.EVENT_WRITE:
                connection.send_some()
        except WRONG as error:
            if isinstance(error, OSError):
                with contextlib.suppress(*WRONG):  # what it has said before it went is heard
                    connection.receive_some()
            self._lose(connection, str(error))

    # -- and gone ----------------------------------------------------------------------------------------------------

    def _lose(self, connection: Connection, reason: str) -> None:
        """Its writes are over, in both directions; then it is reported as lost."""
        if self._peers.get(connection.peer) is not connection:
            return
        del self._peers[connection.peer]
        if not connection.is_open:
            _log.info("connection %s is refused or failed: %r", connection.peer, reason)
        self._unproven.remove(connection)
        if connection.sock is not None:
            self._selector.unregister(connection.sock)
            connection.sock.close()
        elif self._lookups is not None:
            self._lookups.forget(connection)
        self._gone(connection, reason)
        self._news.append(Lost(connection.peer, reason))

    def _leave(self) -> None:
        """Close everything; what is left to report can still be taken."""
        for connection in list(self._peers.values()):
            self._lose(connection, "closed")
        if self._server is not None:
            self._server.close()
        if self._lookups is not None:
            self._lookups.close()
        self._selector.close()
        self._is_closed = True

    # -- what a link adds --------------------------------------------------------------------------------------------

    @abstractmethod
    def frame(self, connection: Connection, kind: int, body: bytes) -> Views | None:
        """A frame has come; for DATA, the places its bytes go to."""

    @abstractmethod
    def filled(self, connection: Connection) -> None:
        """Those bytes are there."""

    @abstractmethod
    def _gone(self, connection: Connection, reason: str) -> None:
        """End what was under way on it."""
