"""A peer made by hand, for tests of links: a plain socket that knows the secret and says what no link would say."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any, Self

from quire.net.hmac_authentication import GREETING_BYTES, PROOF_BYTES, TAG_BYTES, HmacAuthentication
from quire.transfer.links.connection import HEAD
from quire.transfer.links.link import Lost, News

SECRET = b"sixteen bytes ok" * 2
DEADLINE = 120.0


class RawPeer:
    """Dials a link of this process and polls it meanwhile; `news` is what that link has told."""

    def __init__(self, link: Any, *, source: tuple[str, int] | None = None, target: str | None = None) -> None:
        host, _, port = (target or link.address).rpartition(":")
        self.link = link
        self.news: list[News] = []
        self.got = bytearray()
        self.seal = HmacAuthentication(SECRET, "m", dialled=True)
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if source is not None:
            self.sock.bind(source)
        self.sock.connect((host, int(port)))
        self.sock.setblocking(False)
        self.say(self.seal.greeting())
        self.seal.greeted(self.hear(GREETING_BYTES))
        self.say(self.seal.proof())
        assert self.seal.proven(self.hear(PROOF_BYTES))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def turn(self) -> None:
        self.news += self.link.poll(0.001)

    def until(self, done: Callable[[], bool]) -> None:
        limit = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < limit, self.news
            self.turn()

    def say(self, data: bytes) -> None:
        """Bytes as they are; the link is polled only when it must take some of them first."""
        while data:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                self.turn()

    def hear(self, size: int) -> bytes:
        """The next bytes from the link."""

        def enough() -> bool:
            with contextlib.suppress(BlockingIOError):
                self.got += self.sock.recv(1 << 16)
            return len(self.got) >= size

        self.until(enough)
        data, self.got = bytes(self.got[:size]), self.got[size:]
        return data

    def frame(self, kind: int, body: bytes) -> bytes:
        """A frame with its right tag; frames count, so say each, in order."""
        head = HEAD.pack(kind, len(body))
        return head + self.seal.tag(head + body) + body

    def heard_frame(self) -> tuple[int, bytes]:
        """The next frame from the link."""
        head = self.hear(HEAD.size + TAG_BYTES)
        kind, size = HEAD.unpack_from(head)
        body = self.hear(size)
        assert self.seal.matches(head[: HEAD.size] + body, head[HEAD.size :])
        return kind, body

    def why_lost(self) -> str:
        """The link's reason for giving this peer up."""
        self.until(lambda: any(isinstance(news, Lost) for news in self.news))
        (lost,) = [news for news in self.news if isinstance(news, Lost)]
        return lost.reason
