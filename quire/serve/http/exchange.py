"""Exchange: one request and its response, over ASGI. Owns the body's bounds, and notices when the client leaves.

    body in, bounded ──► watched(): the work, cancelled when the client leaves ──► JSON, or events and their end

Knows bytes; what they mean is its caller's.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from quire.core.records.errors import QuireError, say, shown
from quire.serve.http.api_errors import RETRY_AFTER, ApiError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ID = re.compile(r"[\x21-\x7e]{1,128}")
JSON = "application/json"
PIECE = 1 << 13  # entries of a list that are encoded at once
LEAST_RATE = 1024  # bytes of a body a second, behind ...
PATIENCE = 5.0  # ... the first seconds
_PROCESS, _NUMBERS = secrets.token_hex(8), count()  # ids of ours: no two alike, and made without asking the system
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class ClientGone(QuireError):
    """The client has closed the connection: there is no reader for an answer."""


class BodyRoom:
    """Bytes of bodies that may be on their way at the same time, of all clients together."""

    def __init__(self, most: int) -> None:
        self.left = most

    def take(self, size: int) -> None:
        """Room for so many more; without it they are refused."""
        if size > self.left:
            fact = "as many bodies are on their way as this server reads at once"
            raise ApiError(429, say("the body", fact, "send it again later"), code="bodies_full", headers=RETRY_AFTER)
        self.left -= size

    def give(self, size: int) -> None:
        """They have been read."""
        self.left += size


class _BodyPace:
    """How long the next part of a body is waited for: all of it has a deadline, and less than a least rate ends it."""

    def __init__(self, timer: asyncio.Timeout, seconds: float) -> None:
        self._timer, self._began = timer, asyncio.get_running_loop().time()
        self._seconds = seconds

    def came(self, size: int) -> None:
        """So many bytes are here."""
        self._timer.reschedule(self._began + min(self._seconds, PATIENCE + size / LEAST_RATE))


class Exchange:
    """What came in and what goes out. Nothing is sent twice."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.path: str = scope["path"]
        self.query: bytes = scope.get("query_string", b"")
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.header(b"x-request-id").decode("latin-1")
        self.has_own_id = ID.fullmatch(given) is not None
        self.id = given if self.has_own_id else f"{_PROCESS}{next(_NUMBERS):08x}"
        self.tenant = ""  # who asks, where keys say so
        self.status = 0  # 0: nothing was sent
        self.more_headers: dict[str, str] = {}  # of the reply, known before it begins
        self.is_events = False
        self.body_size = 0
        self.complete = False
        self.gone = False

    def header(self, name: bytes) -> bytes:
        """One header of the request; empty: it has none."""
        return self._headers.get(name, b"")

    # -- what comes in -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def body(self, max_bytes: int, seconds: float, room: BodyRoom) -> AsyncIterator[bytes]:
        """The body, which must be JSON; it takes its room until it is read."""
        if self.header(b"content-type").partition(b";")[0].strip().lower() != JSON.encode():
            cure = "send content-type: application/json"
            raise ApiError(415, say("the body", "its content-type is not that of JSON", cure))
        encoding = self.header(b"content-encoding").strip().lower()
        if encoding not in (b"", b"identity"):
            fact = f"its content-encoding is {shown(encoding[:32].decode('latin-1'))}"
            headers = {"accept-encoding": "identity"}
            raise ApiError(415, say("the body", fact, "send it without one"), headers=headers)
        length = self.header(b"content-length")
        if length.isdigit() and int(length[:20]) > max_bytes:
            raise _too_large(max_bytes)
        parts: list[bytes] = []
        try:
            try:
                async with asyncio.timeout(min(seconds, PATIENCE)) as timer:
                    await self._read_body(parts, max_bytes, room, _BodyPace(timer, seconds))
            except TimeoutError:
                fact = f"it has not come in {seconds:g} s, or comes at less than {LEAST_RATE} bytes a second"
                raise ApiError(408, say("the body", fact, "send it faster")) from None
            yield b"".join(parts)
        finally:
            room.give(sum(map(len, parts)))

    async def _read_body(self, parts: list[bytes], max_bytes: int, room: BodyRoom, pace: _BodyPace) -> None:
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise ClientGone("the client left before its body had come")
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            self.body_size = size
            if size > max_bytes:
                raise _too_large(max_bytes)
            room.take(len(part))
            parts.append(part)
            pace.came(size)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Work that is cancelled when the client leaves, with a ClientGone. Requires: the body has been read."""
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.ensure_future(self._watch(task))
        try:
            yield
        except asyncio.CancelledError:
            if not self.gone:
                raise  # the server itself has ended it
            task.uncancel()
            raise ClientGone("the client left before its answer was complete") from None
        finally:
            watcher.cancel()

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.complete:
            self.gone = True
            task.cancel()

    # -- what goes out -----------------------------------------------------------------------------------------------

    async def reply(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        """All of it, as JSON."""
        await self.reply_bytes(status, encoded(body), JSON, headers)

    async def reply_bytes(self, status: int, data: bytes, kind: str, headers: Mapping[str, str] | None = None) -> None:
        """All of it."""
        more = {"content-length": str(len(data)), "content-type": kind, **(headers or {})}
        await self._start(status, more)
        await self._end(data)

    async def begin_events(self) -> None:
        """Server-sent events follow; no proxy shall keep them."""
        self.is_events = True
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        await self._start(200, {**headers, "x-accel-buffering": "no"})

    async def write(self, data: bytes) -> None:
        """More of it; waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_events(self, data: bytes = b"") -> None:
        """The last of it."""
        await self._end(data + b"data: [DONE]\n\n")

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        known = {**headers, **self.more_headers, "x-request-id": self.id}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in known.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _end(self, data: bytes) -> None:
        self.complete = True  # first: the server says that the client is gone when all is sent
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


def encoded(value: Any) -> bytes:
    """JSON, as short as it can be; halves of characters are replaced."""
    return _encode(value).encode("utf-8", errors="replace")


def encoded_list(values: list[Any] | None) -> bytes:
    """The same of a list that may be very long: between two pieces of it other threads go on."""
    if values is None:
        return b"null"
    pieces = (values[start : start + PIECE] for start in range(0, len(values), PIECE))
    return b"[" + b",".join([encoded(piece)[1:-1] for piece in pieces]) + b"]"


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encoded(value) + b"\n\n"


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, say("the body", f"it has more than {max_bytes} bytes", "send less"), code="body_too_large")
