"""Connection: HTTP as uvicorn reads it with httptools, with bounds on what comes before a body. Knows no requests.

Neither of the two bounds a head, or how many connections there are: without these limits anybody could fill the memory.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.core.records.errors import say
from quire.serve.connections.open_connections import OpenConnections
from quire.serve.errors import ApiError

MOST_HEAD = 64 << 10  # bytes of a request's line, headers and trailers
HEAD_SECONDS = 10.0  # until a head is complete, from the connection or from its first byte
HEAD = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
REASONS = {431: b"Request Header Fields Too Large", 408: b"Request Timeout", 503: b"Service Unavailable"}
LATER = b"retry-after: 1\r\n"


class BoundedConnection(HttpToolsProtocol):
    """One connection. A head that is too long or too slow is told so, and the connection is closed."""

    _head = 0  # bytes of the head so far, as the parser has told
    _untold = 0  # that came since the parser told anything: it keeps them for itself
    _has_told = False
    _late: asyncio.TimerHandle | None = None

    def __init__(self, limit: OpenConnections[BoundedConnection], **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limit = limit

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there, and has to say something. One too many: somebody who is idle goes, or else it."""
        super().connection_made(transport)
        self._wait()
        if not self._limit.add(self, self.client[0] if self.client else ""):
            fact = f"{self._limit.most} connections are open, and none of them is idle"
            self._refuse(503, fact, "come back later", LATER)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there."""
        self._come()
        self._limit.remove(self)
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Nothing is answered here: it is between two requests, or its first is not complete."""
        return self.cycle is None or self.cycle.response_complete

    def hang_up(self) -> None:
        """Somebody else needs the place."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Some bytes: refused when they are too many for a head."""
        if self.parser is None or self.transport.is_closing():
            return
        self._has_told = False
        super().data_received(data)
        self._untold = 0 if self._has_told else self._untold + len(data)
        if self._head + self._untold > MOST_HEAD:
            self._refuse(431, f"its line and headers have more than {MOST_HEAD} bytes", "send less")

    # -- what the parser tells ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._has_told, self._head = True, 0
        self._wait()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Some of its line."""
        self._has_told = True
        self._head += len(url)
        if self._head <= MOST_HEAD:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One more of them, or a trailer behind the body."""
        self._has_told = True
        self._head += len(name) + len(value) + 4
        if self._head <= MOST_HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is over; one that is too long is no request."""
        self._has_told = True
        self._come()
        if self._head <= MOST_HEAD:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of the body, which whoever reads it bounds."""
        self._has_told = True
        if self._head <= MOST_HEAD:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is over."""
        self._has_told = True
        if self._head <= MOST_HEAD:
            super().on_message_complete()

    # -- time --------------------------------------------------------------------------------------------------------

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
            self._wait()  # an answer is on its way: whoever reads it may write the next request slowly
        elif self.scope is None:
            self.transport.close()  # nobody has said anything
        else:
            self._refuse(408, f"its line and headers have not come in {HEAD_SECONDS:g} s", "send them faster")

    def _refuse(self, status: int, fact: str, cure: str, more: bytes = b"") -> None:
        """Tell it, unless an answer is on its way, and hang up."""
        if self.transport.is_closing():
            return
        if self.is_idle:
            body = json.dumps(ApiError(status, say("the request", fact, cure)).body).encode()
            self.transport.write(HEAD % (status, REASONS[status], len(body)) + more + b"\r\n" + body)
        self.transport.close()
