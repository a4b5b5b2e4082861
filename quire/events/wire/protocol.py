"""Protocol: frames, endpoints and requests, as vLLM's publisher and its consumers speak them. Knows no events.

stream    PUB     [topic, number, payload]
request   DEALER  ["", first number]  or  ["", "snapshot?"]  or  ["", "mark?"]
answer    ROUTER  ["", topic, number, payload] ... ["", "", END, ""]
"""

from __future__ import annotations

from typing import NamedTuple

import zmq

from quire.core.records.errors import InputError, StateError, say
from quire.net.zmq_sockets import bound_to

END = (-1).to_bytes(8, "big", signed=True)
MAX_MESSAGE = 256 << 20  # bytes of one that a listener takes; a peer that sends more is disconnected
MAX_SUBSCRIPTION = 1 << 12  # bytes of one; a peer that sends more is disconnected
QUEUED = 32  # messages that wait in a listener's socket; more wait at the sender
SNAPSHOT, MARK = b"snapshot?", b"mark?"  # not eight bytes: no numbers


class NumberedPayload(NamedTuple):
    """A batch as it is sent, and its number in the stream."""

    seq: int
    payload: bytes


def bound(socket: zmq.Socket[bytes], max_message: int = MAX_MESSAGE) -> None:
    """Bound what a listener's socket takes in; what it sends is never dropped, and never waits."""
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, QUEUED)
    socket.set(zmq.MAXMSGSIZE, max_message)


def seq_of(frame: bytes) -> int | None:
    """A sequence number from a frame; None: that is none."""
    return int.from_bytes(frame, "big") if len(frame) == 8 else None


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
