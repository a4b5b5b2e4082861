"""Server: uvicorn around an application, with an end of its own: drain, then cut, then go. Knows no endpoints.

first signal ─► takes no more, open answers go on ─► grace is over: they are cut, and told ─► connections close
second signal ─► at once
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn

from quire.core.records.errors import InputError, say
from quire.serve.app import ShortWay
from quire.serve.connections.connection import BoundedConnection
from quire.serve.connections.open_connections import OpenConnections
from quire.serve.service import Service

LEAVE = 5.0  # seconds for cut answers to be told, behind the grace
BACKLOG = 2048


class Server(uvicorn.Server):
    """Serves until a signal, or until `should_exit`; `grace` seconds are for answers under way."""

    def __init__(self, service: Service, *, grace: float = 30.0, tls: tuple[str, str] | None = None) -> None:
        self.service, self.grace = service, grace
        self.on_ready: Callable[[], object] = lambda: None  # called when it listens
        self.connections: OpenConnections[BoundedConnection] = OpenConnections(service.settings.max_connections)
        cert, key = tls or (None, None)
        config = uvicorn.Config(
            ShortWay(service), log_config=None, access_log=False, server_header=False, lifespan="off",
            timeout_graceful_shutdown=int(grace + LEAVE) + 1, ssl_certfile=cert, ssl_keyfile=key, backlog=BACKLOG,
            proxy_headers=False,  # nothing here depends on who a proxy says has asked
            http=partial(BoundedConnection, self.connections),  # type: ignore[arg-type]  # called, and nothing else
            ws="none",
        )  # fmt: skip
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the end, and a second one the end at once. The process ends as one that was asked to."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self.on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then cut."""
        self.service.end()
        timer = asyncio.get_running_loop().call_later(self.grace, self.service.cut)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            self.service.cut()  # after a second signal


def check_tls(cert: str, key: str) -> None:
    """Refuse files that are no certificate and its key, before a model is loaded."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as wrong:
        fact = f"{cert} and {key} cannot be used: {wrong}"
        raise InputError(say("TLS", fact, "give a certificate and its key, in PEM")) from None


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens later: what is wrong with an address is told before a model is loaded."""
    if not 0 <= port < 1 << 16:
        raise InputError(say(f"an address {host}:{port}", "there is no such port", "give one from 0 to 65535"))
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(kind, socket.SOCK_STREAM)
    except (OSError, UnicodeError, OverflowError) as wrong:
        raise InputError(
            say(f"an address {host}:{port}", str(wrong), "give a host and a port of this machine")
        ) from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except (OSError, OverflowError) as wrong:
        made.close()
        raise InputError(say(f"an address {host}:{port}", str(wrong), "give a free port of this machine")) from None
    return made
