"""Wire: frames, endpoints and requests, as vLLM's publisher and its consumers speak them. Knows no events.

    stream    PUB     [topic, number, payload]
    ask       DEALER  ["", first number]  or  ["", "snapshot?"]  or  ["", "mark?"]
    answer    ROUTER  ["", topic, number, payload] ... ["", "", END, ""]
"""

from __future__ import annotations

from typing import Any

import zmq

from quire.core.errors import InputError, StateError, say

END = (-1).to_bytes(8, "big", signed=True)
SNAPSHOT, MARK = b"snapshot?", b"mark?"  # not eight bytes: no numbers


def socket(kind: int) -> zmq.Socket[bytes]:
    """A socket of the process's context."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    return context.socket(kind)


def number(seq: int) -> bytes:
    """A sequence number as a frame."""
    return seq.to_bytes(8, "big")


def is_bound(endpoint: str) -> bool:
    """Whether an endpoint says by itself that it is to be bound: a wildcard, or a local name."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def attach(socket: zmq.Socket[bytes], endpoint: str, bind: bool) -> str:
    """Bind or connect; the endpoint with the port it got."""
    if not isinstance(endpoint, str) or "://" not in endpoint:
        raise InputError(say(f"endpoint {endpoint!r}", "it names no transport", "use tcp://host:port or ipc://path"))
    try:
        if bind:
            socket.bind(endpoint)
            return bound_to(socket).replace("//0.0.0.0:", "//127.0.0.1:")
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        verb = "bind" if bind else "connect"
        raise StateError(say(f"{verb} {endpoint}", str(error), "choose a free and valid address")) from error
    return endpoint


def bound_to(socket: zmq.Socket[bytes]) -> str:
    """The endpoint that a socket was bound to last, as ZMQ knows it."""
    last: Any = socket.getsockopt(zmq.LAST_ENDPOINT)
    return str(last.rstrip(b"\0").decode())
