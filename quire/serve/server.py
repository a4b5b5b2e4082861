"""Server: uvicorn around an application, with an end of its own: drain, then cut, then go. Knows no endpoints.

first signal ─► takes no more, open answers go on ─► grace is over: they are cut, and say so ─► connections close
second signal ─► at once

Until the last answer is over it still listens: new requests get 503, and health checks that it ends.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from quire.core.records.errors import InputError, say, shown
from quire.net.limits.open_connections import OpenConnections
from quire.serve.any_service import AnyService
from quire.serve.app import make_app
from quire.serve.connections.acceptor import Acceptor
from quire.serve.connections.http_connection import BoundedConnection

LEAVE = 5.0  # seconds for cut answers to be sent, behind the grace
LOOK = 0.1  # seconds between looks whether a second signal has come
BACKLOG = 2048


class Server(uvicorn.Server):
    """Serves until a signal, or until `should_exit`; `grace` seconds are for answers under way."""

    def __init__(self, service: AnyService, *, grace: float = 30.0, tls: tuple[str, str] | None = None) -> None:
        check_grace(grace)
        self.service, self.grace = service, grace
        self.on_ready: Callable[[], object] = lambda: None  # called when it listens
        self.connections: OpenConnections[BoundedConnection] = OpenConnections(service.settings.max_connections)
        cert, key = tls or (None, None)
        config = uvicorn.Config(
            make_app(service), log_config=None, access_log=False, server_header=False, lifespan="off",
            timeout_graceful_shutdown=int(LEAVE), ssl_certfile=cert, ssl_keyfile=key, backlog=BACKLOG,
            proxy_headers=False,  # nothing here depends on who a proxy says has asked
            ws="none",
        )  # fmt: skip
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """On a signal shut down, on a second one at once. The process exits as one ended by that signal."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then print where."""
        await self.lifespan.startup()
        config = self.config
        listening = sockets or [bind(config.host, config.port)]
        acceptors = [Acceptor(one, self.connections, self._connection, config.ssl) for one in listening]
        for acceptor in acceptors:
            acceptor.start(config.backlog)
        self.servers = acceptors  # type: ignore[assignment]  # they are closed, and waited for: nothing else
        self.started = True
        self.on_ready()

    def _connection(self) -> BoundedConnection:
        loop = asyncio.get_running_loop()
        return BoundedConnection(
            self.connections, config=self.config, server_state=self.server_state, app_state=self.lifespan.state,
            _loop=loop,
        )  # fmt: skip

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then cut."""
        self.service.end()
        self.connections.drain()
        timer = asyncio.get_running_loop().call_later(self.grace, self.service.cut)
        try:
            await self._wait_for_answers(set(self.server_state.tasks))
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            self.service.cut()  # after a second signal

    async def _wait_for_answers(self, under_way: set[asyncio.Task[None]]) -> None:
        """Until answers under way are over, or were cut: meanwhile it listens, and refuses."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.grace + LEAVE
        while under_way and not self.force_exit and loop.time() < end:
            _, under_way = await asyncio.wait(under_way, timeout=LOOK)


def check_grace(grace: object) -> None:
    """Refuse a wrong time for answers under way, before a model is loaded."""
    if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace < math.inf:
        raise InputError(say("a server", f"grace is {shown(grace)}", "give a number of seconds from 0 on"))


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens later: a wrong address is refused before a model is loaded."""
    if not 0 <= port < 1 << 16:
        raise InputError(say(f"an address {host}:{port}", "there is no such port", "give one from 0 to 65535"))
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(kind, socket.SOCK_STREAM)
    except (OSError, UnicodeError, OverflowError) as error:
        raise InputError(
            say(f"an address {host}:{port}", str(error), "give a host and a port of this machine")
        ) from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except (OSError, OverflowError) as error:
        made.close()
        raise InputError(say(f"an address {host}:{port}", str(error), "give a free port of this machine")) from None
    return made
