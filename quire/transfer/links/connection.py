"""Connection: one authenticated socket: frames out, frames in, page bytes straight between socket and pages.
It takes what to send before it has its socket.

    frame   kind, body length | tag | body           bytes of a DATA frame follow it, into the pages it names

Never blocks; knows no doors: its owner says where the bytes of a DATA frame go.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol

from quire.net.hmac_authentication import GREETING_BYTES, PROOF_BYTES, TAG_BYTES, HmacAuthentication
from quire.net.tls import TlsSocket

HEAD = struct.Struct("<BxxxI")
MESSAGE, DATA, DONE = 1, 2, 3
MAX_BODY = 32 << 20
MAX_FRAMES, MAX_WAITING = 1 << 16, 256 << 20  # frames that wait to be sent, and their bytes
MAX_VIEWS = 64  # buffers of one call
BUDGET, CALL = 32 << 20, 16 << 10  # bytes of one turn, and what a call counts, so that no peer starves the others
SILENCE = 30  # seconds; a machine that is gone without a message, or takes no bytes, is lost then
SCRATCH = memoryview(bytearray(1 << 18))  # unwanted bytes go here

Views = deque[memoryview]
More = Callable[[], list[bytes | memoryview] | None]  # the next frame of a long write, and its bytes; None: no more


class Owner(Protocol):
    """What a connection asks of its link."""

    def opened(self, connection: Connection) -> None:
        """The peer has proven who it is."""

    def frame(self, connection: Connection, kind: int, body: bytes) -> Views | None:
        """A frame has come; for DATA, the places its bytes go to."""

    def filled(self, connection: Connection) -> None:
        """Those bytes are there."""


class Broken(Exception):
    """The connection cannot go on, and why."""


class Connection:
    """One peer."""

    def __init__(self, peer: str, seal: HmacAuthentication, owner: Owner, deadline: float) -> None:
        self.sock: socket.socket | TlsSocket | None = None  # while its peer's name is looked up
        self.peer = peer
        self.name = ""
        self.is_open = False
        self.deadline = deadline  # of the handshake
        self._seal = seal
        self._owner = owner
        self._out: Views = deque([memoryview(seal.greeting())])  # of the frame on its way
        self.is_sending_bytes = False  # of a long write: what is on its way refers to pages
        self._frames: deque[tuple[int, bytes]] = deque()
        self._waiting = 0  # bytes of these
        self._long: deque[More] = deque()
        self._need = GREETING_BYTES
        self._buffer = bytearray(GREETING_BYTES)
        self._have = 0
        self._on_bytes: Callable[[bytes], None] = self._on_greeting
        self._kind = 0
        self._views: Views = deque()  # where page bytes go; empty: a frame is being read

    def attach(self, sock: socket.socket, tls: TlsSocket | None = None) -> None:
        """Its socket. Probes find out that a silent peer is gone, the last limit that one takes no bytes."""
        sock.setblocking(False)
        limits = {
            "TCP_KEEPIDLE": 5,
            "TCP_KEEPINTVL": 5,
            "TCP_KEEPCNT": max(SILENCE // 5, 1),
            "TCP_USER_TIMEOUT": 1000 * SILENCE,
        }
        with contextlib.suppress(OSError):  # a socket that is still connecting may refuse
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in limits.items():
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.sock = tls or sock

    @property
    def interest(self) -> int:
        """What to wait for."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._wants_out else 0)
        return self.sock.interest(wanted) if isinstance(self.sock, TlsSocket) else wanted

    # -- out ---------------------------------------------------------------------------------------------------------

    def queue(self, kind: int, body: bytes, *, first: bool = False) -> None:
        """Send a frame, before whatever is left of long writes; or before everything."""
        if len(self._frames) >= MAX_FRAMES or self._waiting + len(body) > MAX_WAITING:
            raise Broken(f"{len(self._frames)} frames, {self._waiting} bytes wait for it")
        self._waiting += len(body)
        (self._frames.appendleft if first else self._frames.append)((kind, body))

    def queue_long(self, more: More) -> None:
        """Send frames with bytes, one after the other, in between."""
        self._long.append(more)

    @property
    def _wants_out(self) -> bool:
        """There is something to send."""
        return bool(self._out) or (self.is_open and bool(self._frames or self._long))

    def send_some(self) -> None:
        """As much as the socket takes."""
        assert self.sock is not None
        budget = BUDGET
        while budget > 0 and (self._out or self._next_frame()):
            views = [self._out[nth] for nth in range(min(len(self._out), MAX_VIEWS))]
            try:
                sent = self.sock.sendmsg(views)
            except BlockingIOError:
                return
            budget -= sent + CALL
            _advance(self._out, sent)
            self.is_sending_bytes = self.is_sending_bytes and bool(self._out)

    def _next_frame(self) -> bool:
        if not self.is_open:
            return False
        if self._frames:
            kind, body = self._frames.popleft()
            self._waiting -= len(body)
            self._out.extend(memoryview(part) for part in self._sealed(kind, body))
            return True
        while self._long:
            parts = self._long[0]()
            if parts is not None:
                body = bytes(parts[0])
                self._out.extend(memoryview(part) for part in (*self._sealed(DATA, body), *parts[1:]) if len(part))
                self.is_sending_bytes = True
                return True
            self._long.popleft()
        return False

    def _sealed(self, kind: int, body: bytes) -> list[bytes]:
        head = HEAD.pack(kind, len(body))
        return [head + self._seal.tag(head + body), body] if body else [head + self._seal.tag(head)]

    # -- in ----------------------------------------------------------------------------------------------------------

    def receive_some(self) -> None:
        """As much as there is, frame by frame; page bytes go where they belong."""
        assert self.sock is not None
        budget = BUDGET
        while budget > 0 or (isinstance(self.sock, TlsSocket) and self.sock.has_more):
            views = [self._views[nth] for nth in range(min(len(self._views), MAX_VIEWS))]
            try:
                got = self.sock.recvmsg_into(views or [memoryview(self._buffer)[self._have : self._need]])[0]
            except BlockingIOError:
                return
            if not got:
                raise Broken("it closed the connection")
            budget -= got + CALL
            if views:
                _advance(self._views, got)
                if not self._views:
                    self._owner.filled(self)
            else:
                self._have += got
                if self._have == self._need:
                    self._on_bytes(bytes(self._buffer[: self._need]))

    def discard(self) -> None:
        """The rest of these page bytes is not wanted any more."""
        self._views = discard_views(sum(len(view) for view in self._views))

    def _read_next(self, need: int, then: Callable[[bytes], None]) -> None:
        if len(self._buffer) < need or len(self._buffer) > max(need, 1 << 16):
            self._buffer = bytearray(need)
        self._need, self._have, self._on_bytes = need, 0, then

    def _on_greeting(self, data: bytes) -> None:
        self.name = self._seal.greeted(data)
        self._out.append(memoryview(self._seal.proof()))
        self._read_next(PROOF_BYTES, self._proven)

    def _proven(self, data: bytes) -> None:
        if not self._seal.proven(data):
            raise Broken("it does not know the secret")
        self.is_open = True
        self._read_next(HEAD.size + TAG_BYTES, self._on_head)
        self._owner.opened(self)

    def _on_head(self, data: bytes) -> None:
        kind, size = HEAD.unpack_from(data)
        if size > MAX_BODY:
            raise Broken(f"it sends a frame of {size} bytes, the most is {MAX_BODY}")
        self._kind = kind
        if size:
            self._read_next(size, lambda body: self._on_frame(data, body))
        else:
            self._on_frame(data, b"")

    def _on_frame(self, head: bytes, body: bytes) -> None:
        self._read_next(HEAD.size + TAG_BYTES, self._on_head)
        if not self._seal.matches(head[: HEAD.size] + body, head[HEAD.size :]):
            raise Broken("a frame's tag is wrong")
        views = self._owner.frame(self, self._kind, body)
        if views is not None:
            self._views = views
            if not views:
                self._owner.filled(self)


def discard_views(size: int) -> Views:
    """Places for unwanted bytes."""
    views: Views = deque()
    while size > 0:
        views.append(SCRATCH[: min(size, len(SCRATCH))])
        size -= len(views[-1])
    return views


def _advance(views: Views, count: int) -> None:
    """So many bytes are done."""
    while count:
        first = views[0]
        if len(first) > count:
            views[0] = first[count:]
            return
        count -= len(first)
        views.popleft()
