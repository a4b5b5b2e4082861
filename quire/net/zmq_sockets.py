"""ZMQ sockets: how one is opened in the process's context, and the endpoint it was bound to. Knows no frames."""

from __future__ import annotations

from typing import Any

import zmq


def open_socket(kind: int) -> zmq.Socket[bytes]:
    """A socket of the process's context."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    return context.socket(kind)


def bound_to(socket: zmq.Socket[bytes]) -> str:
    """The endpoint that a socket was bound to last, as ZMQ knows it."""
    last: Any = socket.getsockopt(zmq.LAST_ENDPOINT)
    return str(last.rstrip(b"\0").decode())
