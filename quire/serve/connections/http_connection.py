"""Connection: HTTP as uvicorn reads it with httptools, with bounds on what comes before a body. Knows no requests.

Neither of the two bounds a head, or how many connections there are: without these limits any client could fill the
memory. What cannot be read is answered in the form of all errors, and no connection is reset while its client still
sends.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.core.records.errors import say
from quire.net.limits.open_connections import OpenConnections
from quire.serve.connections.lingering import LingeringTransport
from quire.serve.http.api_errors import ApiError

MOST_HEAD = 64 << 10  # bytes of a request's line, headers and trailers
HEAD_SECONDS = 10.0  # until a head is complete, from the connection or from its first byte
PROBES = (b"/health", b"/ready", b"/metrics")  # what may be asked when all places are taken
ONCE = (b"host", b"authorization", b"content-type", b"content-length", b"transfer-encoding")  # of each one header
LOOKS = (0.0, 0.25, 2.0)  # seconds after which it is looked whether a client that sends no more still reads
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"  # means nothing to a client that waits; one that is gone resets it
HEAD = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
REASONS = {
    400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large", 503: b"Service Unavailable",
}  # fmt: skip
LATER = b"retry-after: 1\r\n"
BODY = (b"content-length", b"transfer-encoding")


class BoundedConnection(HttpToolsProtocol):
    """One connection. A head that is too long or too slow is refused, and the connection is closed."""

    transport: LingeringTransport
    handshake: asyncio.Task[None] | None = None  # of TLS, until it is made
    has_place = True  # else it is one of the reserve
    _head = 0  # bytes of the head so far, as the parser has reported
    _unparsed = 0  # bytes that came since the parser reported anything: it keeps them
    _has_parsed = False
    _late: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None
    _upgrade_body = b""  # headers that say how long the body is of a request that wants an upgrade
    _is_wanted, _is_turned_away = True, False  # if that is decided before it is made
    _is_last = False  # no request follows the one that is here: nothing more is read
    _keeps = True  # the client wants to ask again

    def __init__(self, limit: OpenConnections[BoundedConnection], **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limit = limit

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected, and has to send something."""
        super().connection_made(transport)
        self.transport = LingeringTransport(transport, self.loop, self._is_sending)
        self._wait()
        if not self._is_wanted:
            self.transport.abort()
        elif self._is_turned_away:
            self.turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._come()
        self.transport.forget()
        if self._look is not None:
            self._look.cancel()
        self._limit.remove(self)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. One that has asked may still read: it gets its answer, and that was all.

        With TLS it has said that it reads no more, either.
        """
        if self.is_idle or self.cycle.more_body or self.transport.is_closing() or self.scheme == "https":
            return False
        self._end_after_this()
        self._look_for_client(0)
        return True

    @property
    def is_idle(self) -> bool:
        """Nothing is answered here: it is between two requests, or its first is not complete."""
        return self.cycle is None or self.cycle.response_complete

    def _is_sending(self) -> bool:
        return self.cycle is not None and self.cycle.more_body

    @property
    def is_reading(self) -> bool:
        """The body of its request is still coming."""
        if self.cycle is None or self.pipeline or self.transport.is_closing():
            return False
        return self.cycle.more_body and not self.cycle.response_started

    def hang_up(self) -> None:
        """Another client needs the place."""
        self._is_wanted = False
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def turn_away(self) -> None:
        """Another client needs the place, and this one is sent away; between two requests without a word."""
        self._is_turned_away = True
        if self.transport is None and self.handshake is not None:
            self.hang_up()
        elif self.transport is None:
            pass  # in a moment
        elif self.cycle is not None and self.cycle.response_complete:
            self.transport.linger()
        else:
            fact = "there is no place left for a request that is not complete"
            self._refuse(503, fact, "come back later", LATER)

    def shutdown(self) -> None:
        """The server ends."""
        if self.transport.is_lingering:
            self.transport.abort()
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Some bytes: refused when they are too many for a head, or no HTTP."""
        if self.transport.is_lingering:
            self.transport.pass_over(len(data))
        if self.parser is None or self._is_last or self.transport.is_closing():
            return
        self._has_parsed = False
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(400, "it is not readable HTTP", "send a request as RFC 9112 has it")
        self._unparsed = 0 if self._has_parsed else self._unparsed + len(data)
        if self._head + self._unparsed > MOST_HEAD:
            self._refuse(431, f"its line and headers have more than {MOST_HEAD} bytes", "send less")

    def _parse(self, data: bytes) -> None:
        """An upgrade is passed over: the request is answered as HTTP, with the body that the parser leaves unread."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._upgrade_body:
                self._end_after_this()  # what follows may be anything
                return
            self.parser = httptools.HttpRequestParser(_BodyOnly(self))
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n\r\n" % self._upgrade_body)
            self.parser.feed_data(data[upgrade.args[0] :])

    # -- what the parser reports -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._has_parsed, self._head = True, 0
        self._wait()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Some of its line."""
        self._has_parsed = True
        self._head += len(url)
        if self._head <= MOST_HEAD:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One more of them, or a trailer behind the body."""
        self._has_parsed = True
        self._head += len(name) + len(value) + 4
        if self._head <= MOST_HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is over; one that is too long, or says a thing twice, is refused."""
        self._has_parsed = True
        self._come()
        if self._is_over or not self._is_sound():
            return
        if not self.has_place and self.url.partition(b"?")[0] not in PROBES:
            fact = f"{self._limit.most} connections are open, and none of them is idle"
            self._refuse(503, fact, "come back later", LATER)
            return
        super().on_headers_complete()
        if self.parser.should_upgrade():
            kept = [name + b": " + value for name, value in self.headers if name in BODY]
            self._upgrade_body = b"\r\n".join(kept)
        self._keeps = self.cycle.keep_alive and self.has_place
        self.cycle.keep_alive = False  # answered before its body has come, a client shall not ask again behind it

    def on_body(self, body: bytes) -> None:
        """Some of the body; its reader bounds it."""
        self._has_parsed = True
        if not self._is_over:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is over."""
        self._has_parsed = True
        if self._is_over or (self._upgrade_body and self.parser.should_upgrade()):
            return
        super().on_message_complete()
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps and not self._is_last and not self._limit.is_draining
            self.cycle.more_body = False

    @property
    def _is_over(self) -> bool:
        return self._head > MOST_HEAD or self.transport.is_closing() or self._is_last

    def _is_sound(self) -> bool:
        """Whether no header that counts is there twice: a proxy in front of us may have read the other one."""
        names = [name for name, _ in self.headers if name in ONCE]
        for name in ONCE:
            if names.count(name) > 1:
                self._refuse(400, f"it has more than one {name.decode()} header", "send one")
                return False
        if b"host" not in names and self.parser.get_http_version() == "1.1":
            self._refuse(400, "it has no Host header", "send one, as HTTP/1.1 asks for")
            return False
        return True

    # -- time, and the end -------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def _come(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        if not self.is_idle:
            self._wait()  # an answer is on its way: its reader may write the next request slowly
        elif self.scope is None:
            self.transport.close()  # nothing was sent
        else:
            self._refuse(408, f"its line and headers have not come in {HEAD_SECONDS:g} s", "send them faster")

    def _look_for_client(self, nth: int) -> None:
        """A client that has closed its connection looks like one that only sends no more, until it gets more
        to read: something that means nothing, as long as its answer has not begun. A few times: some count them."""
        self._look = None
        waits = not self.pipeline and not self.cycle.response_started and not self.transport.is_closing()
        if waits and self.scope["http_version"] == "1.1":
            self.transport.write(INTERIM)
            if nth + 1 < len(LOOKS):
                self._look = self.loop.call_later(LOOKS[nth + 1], self._look_for_client, nth + 1)

    def _end_after_this(self) -> None:
        """The request that is here is the last one."""
        self._is_last = True
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _refuse(self, status: int, fact: str, cure: str, more: bytes = b"") -> None:
        """Answer with the error and close the connection; behind an answer that is under way, close it silently."""
        if self.transport.is_closing():
            return
        if not self.is_idle and not self.is_reading:
            self._end_after_this()
            return
        body = json.dumps(ApiError(status, say("the request", fact, cure)).body).encode()
        self.transport.write(HEAD % (status, REASONS[status], len(body)) + more + b"\r\n" + body)
        self._is_last = True
        if self.is_reading:  # the body's reader learns that the client is gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._limit.set_aside(self)
        self.transport.linger()


class _BodyOnly:
    """What a parser reports of a body whose head another one has read. No request follows it."""

    def __init__(self, connection: BoundedConnection) -> None:
        self._connection = connection
        self.on_body = connection.on_body
        self._is_head = True

    def on_headers_complete(self) -> None:
        """Of the head that we wrote."""
        self._is_head = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A trailer, behind that."""
        if not self._is_head:
            self._connection.on_header(name, value)

    def on_message_complete(self) -> None:
        """The request is over."""
        self._connection._keeps = False
        self._connection.on_message_complete()
        self._connection._end_after_this()
