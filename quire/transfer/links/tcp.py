"""TcpLink: messages and pages over sockets. Page bytes go from the sender's pages to the socket and from the socket
into the receiver's; the link makes no copy. Everything happens in `poll`, on the caller's thread.

    write   DATA frames, one after the other; DONE comes back when all is there, or when it is refused
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from quire.core.errors import InputError, StateError, say
from quire.tiers.base import Bytes
from quire.transfer.links.auth import Seal
from quire.transfer.links.connection import DATA, DONE, MAX_BODY, MESSAGE, Broken, Connection, Views, wasted
from quire.transfer.links.going import CHUNK, WRITE, Coming, Going
from quire.transfer.links.link import Door, Lost, Message, Moved, News, check_source
from quire.transfer.rows import Rows, from_bytes
from quire.transfer.slices import Places

MOST_UNPROVEN = 64  # connections whose peer has not shown that it knows the secret
MOST_SPOILT = 4096  # writes of one peer that were refused and go on
WORD = struct.Struct("<Q?")  # ticket, good


class TcpLink:
    """One process's sockets. A peer is `host:port` to dial, or `name@host:port` when it has dialled us."""

    def __init__(
        self, name: str, pages: Sequence[Bytes], secret: bytes, *, listen: str | None = "127.0.0.1:0",
        patience: float = 5.0,
    ) -> None:  # fmt: skip
        Seal(secret, name, dialled=True)  # refuse a bad secret or name now, not at the first connection
        for page in pages:
            if page.dtype != np.uint8 or page.ndim != 2 or not page.flags.c_contiguous or not page.flags.writeable:
                raise InputError(say("pages of a link", f"{page.dtype} {page.shape}", "give uint8 [slots, bytes]"))
        self.name = name
        self.pages = list(pages)
        self._flat = [page.reshape(-1).data for page in pages]
        self._secret = secret
        self._patience = patience  # seconds for a handshake
        self._selector = selectors.DefaultSelector()
        self._peers: dict[str, Connection] = {}
        self._news: list[News] = []
        self._doors: dict[int, Door] = {}
        self._coming: dict[Connection, Coming] = {}
        self._spoilt: set[tuple[str, int]] = set()  # writes of which a frame was refused
        self._going: dict[int, Going] = {}
        self._numbers = int.from_bytes(np.random.default_rng().bytes(4), "little") << 16
        self._server = self._listen(listen) if listen is not None else None

    def _listen(self, where: str) -> socket.socket:
        host, port = _split(where)
        try:
            server = socket.create_server((host, port))
        except OSError as wrong:
            raise StateError(say(f"listen on {where}", str(wrong), "choose a free address")) from wrong
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)
        return server

    @property
    def address(self) -> str:
        """Where others reach it."""
        if self._server is None:
            raise StateError(say(f"address of link {self.name!r}", "it does not listen", "give `listen`"))
        host, port = self._server.getsockname()[:2]
        return f"{host}:{port}"

    # -- the contract ------------------------------------------------------------------------------------------------

    def send(self, peer: str, message: bytes) -> bool:
        """Dials when there is no connection yet."""
        if len(message) > MAX_BODY:
            raise InputError(say("a message", f"it has {len(message)} bytes", f"send at most {MAX_BODY}"))
        connection = self._reach(peer)
        if connection is None:
            return False
        try:
            connection.queue(MESSAGE, message)
        except Broken as wrong:
            self._lose(connection, str(wrong))
            return False
        if connection.is_open:
            self._turn(connection, selectors.EVENT_WRITE)  # now, as far as the socket takes it: nobody need poll for it
        return True

    def write(self, peer: str, door: int, rows: Rows) -> int:
        """Queue the bytes; they leave the pages when the socket takes them."""
        check_source(rows, self.pages)
        ticket, connection = self._number(), self._reach(peer)
        if connection is None:
            self._news.append(Moved(ticket, "it is out of reach"))
            return ticket
        going = self._going[ticket] = Going(peer, door, ticket, rows)
        try:
            self._start(connection, going, rows)
        except Broken as wrong:
            self._lose(connection, str(wrong))
        return ticket

    def _start(self, connection: Connection, going: Going, rows: Rows) -> None:
        connection.queue_long(lambda: self._next(going))

    def _next(self, going: Going) -> list[bytes | memoryview] | None:
        frame = going.more(self._flat)
        if frame is None and going.problem is not None:
            self._over(going, going.problem)
        return frame

    def door(self, places: Sequence[Places]) -> Door:
        """Let peers fill these slots."""
        door = Door(self._number(), places, self.pages, self._shut)
        self._doors[door.number] = door
        return door

    def _shut(self, door: Door) -> bool:
        """What is left of a frame on its way in goes nowhere: nothing lands from now on."""
        self._doors.pop(door.number, None)
        for connection, coming in self._coming.items():
            if coming.door == door.number:
                coming.good = False
                connection.discard()
        return True

    def poll(self, timeout: float = 0.0) -> list[News]:
        """Accept, receive, send."""
        for connection in self._peers.values():
            self._selector.modify(connection.sock, _interest(connection), connection)
        for key, events in self._selector.select(0.0 if self._news else timeout):
            if key.data is None:
                self._accept()
            else:
                self._turn(key.data, events)
        now = time.monotonic()
        for connection in [c for c in self._peers.values() if not c.is_open and now >= c.deadline]:
            self._lose(connection, "it did not answer in time")
        news, self._news = self._news, []
        return news

    def close(self, peer: str | None = None) -> bool:
        """Close one connection, or all and the server. Closed sockets move nothing."""
        for connection in [c for c in self._peers.values() if peer in (None, c.peer)]:
            self._lose(connection, "closed")
        if peer is None:
            if self._server is not None:
                self._server.close()
            self._selector.close()
        return True

    # -- connections -------------------------------------------------------------------------------------------------

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _reach(self, peer: str) -> Connection | None:
        known = self._peers.get(peer)
        if known is not None or "@" in peer:
            return known
        where, sock = _split(peer), socket.socket()
        sock.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError):
                sock.connect(where)
        except (OSError, TypeError, ValueError):  # the last two: a name that is none
            sock.close()
            return None
        return self._join(sock, peer, dialled=True)

    def _join(self, sock: socket.socket, peer: str, *, dialled: bool) -> Connection:
        seal = Seal(self._secret, self.name, dialled=dialled)
        connection = Connection(sock, peer, seal, self, time.monotonic() + self._patience)
        self._peers[peer] = connection
        self._selector.register(sock, _interest(connection), connection)
        return connection

    def _accept(self) -> None:
        assert self._server is not None
        try:
            sock, address = self._server.accept()
        except OSError:
            return  # it has gone again
        if sum(not known.is_open for known in self._peers.values()) >= MOST_UNPROVEN:
            sock.close()
            return
        self._join(sock, f"?@{address[0]}:{address[1]}", dialled=False)

    def _turn(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                connection.receive_some()
            if events & selectors.EVENT_WRITE:
                connection.send_some()
        except (Broken, OSError, InputError, struct.error) as wrong:  # the last one: a body too short for its kind
            self._lose(connection, str(wrong))

    def _lose(self, connection: Connection, reason: str) -> None:
        """Its writes are over, in both directions; then it is told as lost."""
        if self._peers.get(connection.peer) is not connection:
            return
        del self._peers[connection.peer]
        self._selector.unregister(connection.sock)
        connection.sock.close()
        self._coming.pop(connection, None)
        self._spoilt = {spoilt for spoilt in self._spoilt if spoilt[0] != connection.peer}
        for going in [going for going in self._going.values() if going.peer == connection.peer]:
            self._over(going, reason)
        self._news.append(Lost(connection.peer, reason))

    # -- what connections tell ---------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """A peer that dialled us is known by its name from now on."""
        if connection.peer.startswith("?@"):
            del self._peers[connection.peer]
            connection.peer = connection.name.replace("@", "-") + connection.peer[1:]
            self._peers[connection.peer] = connection

    def frame(self, connection: Connection, kind: int, body: bytes) -> Views | None:
        """A frame has come."""
        if kind == MESSAGE:
            self._news.append(Message(connection.peer, body))
        elif kind == DONE:
            ticket, good = WORD.unpack_from(body)
            self._moved(connection, ticket, None if good else body[WORD.size :].decode(errors="replace"))
        elif kind == DATA:
            return self._coming_in(connection, body)
        else:
            raise Broken(f"it sends a frame of kind {kind}")
        return None

    def _coming_in(self, connection: Connection, body: bytes) -> Views:
        rows = from_bytes(body[WRITE.size :])
        size = int(rows[:, 3].sum())
        if size > CHUNK:
            raise Broken(f"it sends {size} bytes at once, the most is {CHUNK}")
        door, ticket, last = WRITE.unpack_from(body)
        coming = self._coming[connection] = Coming(door, ticket, last)
        known = self._doors.get(door)
        coming.good = known is not None and known.admits(rows)
        if not coming.good:
            return wasted(size)
        return deque(self._flat[group][target : target + size] for group, _, target, size in rows.tolist())

    def filled(self, connection: Connection) -> None:
        """A frame's bytes are there; after a write's last frame its sender is told."""
        coming = self._coming.pop(connection)
        write = (connection.peer, coming.ticket)
        if not coming.good and write not in self._spoilt:
            self._spoil(write)
            self.tell(connection, coming.ticket, "its door is shut")  # now: the rest need not be sent
        if coming.last and write not in self._spoilt:
            self.tell(connection, coming.ticket, None)
        if coming.last:
            self._spoilt.discard(write)

    def _spoil(self, write: tuple[str, int]) -> None:
        if write not in self._spoilt and sum(peer == write[0] for peer, _ in self._spoilt) >= MOST_SPOILT:
            raise Broken(f"it goes on with {MOST_SPOILT} writes that were refused")
        self._spoilt.add(write)

    def tell(self, connection: Connection, ticket: int, problem: str | None) -> None:
        """A write of that peer is over."""
        connection.queue(DONE, WORD.pack(ticket, problem is None) + (problem or "").encode()[:500])

    def _moved(self, connection: Connection, ticket: int, problem: str | None) -> None:
        """A write has landed, or was refused; then it is over when the frame on its way has left."""
        going = self._going.get(ticket)
        if going is None or going.peer != connection.peer:
            return
        going.flushed = going.flushed or (going.is_handed_out and not connection.is_sending_bytes)
        problem = going.problem or problem or (None if going.flushed else "it was told as landed before it had left")
        if not going.flushed:
            going.problem = problem
        else:
            self._over(going, problem)

    def _over(self, going: Going, problem: str | None) -> None:
        if self._going.pop(going.ticket, None) is not None:
            self._news.append(Moved(going.ticket, problem))


def _interest(connection: Connection) -> int:
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_out else 0)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(say(f"address {address!r}", "it is no host:port", "name a host and a port"))
    return host, int(port)
