"""TcpLink: messages and pages over sockets. Page bytes go from the sender's pages to the socket and from the socket
into the receiver's; the link makes no copy. Everything happens in `poll`, on the caller's thread.

    write   DATA frames, one after the other; DONE comes back when all is there, or when it is refused
"""

from __future__ import annotations

import selectors
import struct
from collections import deque
from collections.abc import Sequence

import numpy as np

from quire.core.records.errors import InputError, StateError, say
from quire.net.tls import Tls
from quire.tiers.base import Bytes
from quire.transfer.geometry.byte_rows import Rows, from_bytes
from quire.transfer.geometry.slices import Places
from quire.transfer.links.connection import DATA, DONE, MAX_BODY, MESSAGE, Broken, Connection, Views, discard_views
from quire.transfer.links.link import Door, News, Received, WriteDone, check_source
from quire.transfer.links.sockets import Sockets
from quire.transfer.links.writes import CHUNK, WRITE, IncomingWrite, OutgoingWrite

MOST_SPOILT = 4096  # writes of one peer that were refused and go on
WORD = struct.Struct("<Q?")  # ticket, good


class TcpLink(Sockets):
    """One process's sockets, and the doors to its pages."""

    def __init__(
        self, name: str, pages: Sequence[Bytes], secret: bytes, *, listen: str | None = "127.0.0.1:0",
        patience: float = 5.0, tls: Tls | None = None,
    ) -> None:  # fmt: skip
        for page in pages:
            if page.dtype != np.uint8 or page.ndim != 2 or not page.flags.c_contiguous or not page.flags.writeable:
                raise InputError(say("pages of a link", f"{page.dtype} {page.shape}", "give uint8 [slots, bytes]"))
        self.pages = list(pages)
        self._flat = [page.reshape(-1).data for page in pages]
        self._doors: dict[int, Door] = {}
        self._incoming: dict[Connection, IncomingWrite] = {}
        self._spoilt: dict[Connection, set[int]] = {}  # writes of which a frame was refused
        self._outgoing: dict[int, OutgoingWrite] = {}
        self._numbers = int.from_bytes(np.random.default_rng().bytes(4), "little") << 16
        super().__init__(name, secret, listen, patience, tls)

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
        except Broken as error:
            self._lose(connection, str(error))
            return False
        if connection.is_open:
            self._turn(connection, selectors.EVENT_WRITE)  # now, as far as the socket takes it, without a poll
        return True

    def write(self, peer: str, door: int, rows: Rows) -> int:
        """Queue the bytes; they leave the pages when the socket takes them."""
        check_source(rows, self.pages)
        ticket, connection = self._number(), self._reach(peer)
        if connection is None:
            self._news.append(WriteDone(ticket, "it is out of reach"))
            return ticket
        write = self._outgoing[ticket] = OutgoingWrite(peer, door, ticket, rows)
        try:
            self._start(connection, write, rows)
        except Broken as error:
            self._lose(connection, str(error))
        return ticket

    def _start(self, connection: Connection, write: OutgoingWrite, rows: Rows) -> None:
        connection.queue_long(lambda: self._next(write))

    def _next(self, write: OutgoingWrite) -> list[bytes | memoryview] | None:
        frame = write.more(self._flat)
        if frame is None and write.problem is not None:
            self._over(write, write.problem)
        return frame

    def door(self, places: Sequence[Places]) -> Door:
        """Let peers fill these slots."""
        door = Door(self._number(), places, self.pages, self._shut)
        self._doors[door.number] = door
        return door

    def _shut(self, door: Door) -> bool:
        """What is left of a frame on its way in goes nowhere: nothing lands from now on."""
        self._doors.pop(door.number, None)
        for connection, incoming in self._incoming.items():
            if incoming.door == door.number:
                incoming.good = False
                connection.discard()
        return True

    def poll(self, timeout: float = 0.0) -> list[News]:
        """Accept, receive, send."""
        if not self._is_closed:
            self._serve(0.0 if self._news else timeout)
        elif not self._news:
            raise StateError(say(f"link {self.name!r}", "it was closed", "open a new one"))
        news, self._news = self._news, []
        return news

    def close(self, peer: str | None = None) -> bool:
        """Close one connection, or all and the server. Closed sockets move nothing."""
        connection = None if peer is None else self._peers.get(peer)
        if connection is not None:
            self._lose(connection, "closed")
        elif peer is None and not self._is_closed:
            self._leave()
        return True

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _gone(self, connection: Connection, reason: str) -> None:
        self._incoming.pop(connection, None)
        self._spoilt.pop(connection, None)
        for write in [write for write in self._outgoing.values() if write.peer == connection.peer]:
            self._over(write, reason)

    # -- what connections report -------------------------------------------------------------------------------------

    def frame(self, connection: Connection, kind: int, body: bytes) -> Views | None:
        """A frame has come."""
        if kind == MESSAGE:
            self._news.append(Received(connection.peer, body))
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
        size = int(np.minimum(rows[:, 3], CHUNK + 1).sum())  # or else the sum of huge ones may look small
        if size > CHUNK:
            raise Broken(f"it sends more than {CHUNK} bytes at once")
        door, ticket, last = WRITE.unpack_from(body)
        incoming = self._incoming[connection] = IncomingWrite(door, ticket, last)
        known = self._doors.get(door)
        incoming.good = known is not None and known.admits(rows)
        if not incoming.good:
            return discard_views(size)
        return deque(self._flat[group][target : target + size] for group, _, target, size in rows.tolist())

    def filled(self, connection: Connection) -> None:
        """A frame's bytes are there; after a write's last frame its sender gets a report."""
        incoming = self._incoming.pop(connection)
        spoilt = incoming.ticket in self._spoilt.get(connection, ())
        if not spoilt and (incoming.last or not incoming.good):  # refused: reported now, the rest need not be sent
            self._tell(connection, incoming.ticket, None if incoming.good else "its door is shut")
        if spoilt or not incoming.good:
            self._spoil(connection, incoming)

    def _spoil(self, connection: Connection, incoming: IncomingWrite) -> None:
        """A write that was refused is known as such until its last frame, so that it is reported once."""
        mine = self._spoilt.setdefault(connection, set())
        mine.add(incoming.ticket)
        if incoming.last:
            mine.discard(incoming.ticket)
        if len(mine) > MOST_SPOILT:
            raise Broken(f"it goes on with {MOST_SPOILT} writes and more that were refused")
        if not mine:
            del self._spoilt[connection]

    def _tell(self, connection: Connection, ticket: int, problem: str | None) -> None:
        """A write of that peer is over."""
        connection.queue(DONE, WORD.pack(ticket, problem is None) + (problem or "").encode()[:500])

    def _moved(self, connection: Connection, ticket: int, problem: str | None) -> None:
        """A write has landed, or was refused; then it is over when the frame on its way has left."""
        write = self._outgoing.get(ticket)
        if write is None or write.peer != connection.peer:
            return
        write.flushed = write.flushed or (write.is_handed_out and not connection.is_sending_bytes)
        problem = write.problem or problem or (None if write.flushed else "it counted as landed before it had left")
        if not write.flushed:
            write.problem = problem
        else:
            self._over(write, problem)

    def _over(self, write: OutgoingWrite, problem: str | None) -> None:
        if self._outgoing.pop(write.ticket, None) is not None:
            self._news.append(WriteDone(write.ticket, problem))
