"""Connection: HTTP as uvicorn reads it with httptools, with bounds on what comes before a body. Knows no requests.

Neither of the two bounds a head: without these limits anybody could fill the memory with one that never ends.
"""

from __future__ import annotations

import asyncio
import json

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.core.records.errors import say
from quire.serve.errors import ApiError

MOST_HEAD = 64 << 10  # bytes of a request's line, headers and trailers
HEAD_SECONDS = 10.0  # until a head is complete, from the connection or from its first byte
HEAD = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
REASONS = {431: b"Request Header Fields Too Large", 408: b"Request Timeout"}


class BoundedConnection(HttpToolsProtocol):
    """One connection. A head that is too long or too slow is told so, and the connection is closed."""

    _head = 0  # bytes of the head so far, as the parser has told
    _untold = 0  # that came since the parser told anything: it keeps them for itself
    _has_told = False
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there, and has to say something."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there."""
        self._come()
        super().connection_lost(exc)

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
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait()  # an answer is on its way: whoever reads it may write the next request slowly
        elif self.scope is None:
            self.transport.close()  # nobody has said anything
        else:
            self._refuse(408, f"its line and headers have not come in {HEAD_SECONDS:g} s", "send them faster")

    def _refuse(self, status: int, fact: str, cure: str) -> None:
        """Tell it, unless an answer is on its way, and hang up."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            body = json.dumps(ApiError(status, say("the request", fact, cure)).body).encode()
            head = (
                b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head % (status, REASONS[status], len(body)) + body)
        self.transport.close()
