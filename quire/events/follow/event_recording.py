"""Recording: a stream in a file, frame by frame as it came, with the time of each. Knows no events.

b"quire-events 1\\n"  then per message  msgpack [seconds, topic, number, payload]  behind its length (4 bytes)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import zmq
from msgspec import Meta

from quire.core.records.errors import InputError, say
from quire.events.wire import protocol
from quire.net.curve_keys import Keys, ServerSockets, join, public_key
from quire.net.zmq_sockets import open_socket

NAME = b"quire-events "
MAGIC = NAME + b"1\n"
MAX_BYTES = protocol.MAX_MESSAGE + (1 << 16)  # of a message in a file, with what is around its payload
LONGEST = 1e9  # seconds a recording may have lasted


class RecordedMessage(msgspec.Struct, array_like=True, frozen=True):
    """One message of a stream."""

    seconds: Annotated[float, Meta(ge=0, le=LONGEST)]  # since the first
    topic: bytes
    seq: int
    payload: bytes

    def __repr__(self) -> str:
        return f"RecordedMessage({self.seq}, {self.topic!r}, {len(self.payload)} bytes, at {self.seconds:.3f} s)"


class Recording:
    """A file of messages, to write or to read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Recording({str(self.path)!r})"

    def write(self, messages: Iterable[RecordedMessage]) -> int:
        """Write messages as they come; returns how many."""
        count = 0
        with self.path.open("wb") as file:
            file.write(MAGIC)
            for message in messages:
                _put(file, message)
                count += 1
        return count

    def __iter__(self) -> Iterator[RecordedMessage]:
        """The messages; a file that ends in the middle of one is misuse of it, told when it is met."""
        with self.path.open("rb") as file:
            self._check_magic(file.read(len(MAGIC)))
            nth = 0
            while head := file.read(4):
                try:
                    message = _read(file, head)
                except (msgspec.DecodeError, RecursionError) as error:
                    ask = f"message {nth} of {self.path}"
                    raise InputError(say(ask, str(error), "record the stream again")) from error
                yield message
                nth += 1

    def _check_magic(self, head: bytes) -> None:
        if head == MAGIC:
            return
        fact, cure = "it is not a recorded stream", "make one with `quire events record`"
        if head.startswith(NAME):
            fact, cure = (
                "another version of Quire recorded it, in a format that this one does not know",
                "upgrade Quire",
            )
        raise InputError(say(f"{self.path}", fact, cure))


_decoder = msgspec.msgpack.Decoder(RecordedMessage)


def _read(file: BinaryIO, head: bytes) -> RecordedMessage:
    size = int.from_bytes(head, "big")
    if size > MAX_BYTES:
        raise msgspec.DecodeError(f"it is {size} bytes long, {MAX_BYTES} at most are")
    body = file.read(size)
    if len(head) < 4 or len(body) < size:
        raise msgspec.DecodeError("it ends in the middle")
    message = _decoder.decode(body)
    if not 0 <= message.seq < 1 << 64:
        raise msgspec.DecodeError(f"its number is {message.seq}")
    return message


def _put(file: BinaryIO, message: RecordedMessage) -> None:
    body = msgspec.msgpack.encode(message)
    file.write(len(body).to_bytes(4, "big") + body)
    file.flush()  # an interrupted recording keeps what came


def messages(
    endpoint: str, topic: str = "", *, bind: bool = False, count: int | None = None, seconds: float | None = None,
    keys: Keys | None = None, server: bytes | str | None = None,
) -> Iterator[RecordedMessage]:  # fmt: skip
    """What a stream says from now on, up to `count` messages or for `seconds`; with CURVE, of the one with that key."""
    socket = open_socket(zmq.SUB)
    try:
        protocol.bound(socket)
        join(socket, keys, None if server is None else public_key(server))
        socket.subscribe(topic.encode())
        protocol.attach(socket, endpoint, bind)
        begun, first, seen = time.monotonic(), None, 0
        while count is None or seen < count:
            left = None if seconds is None else begun + seconds - time.monotonic()
            if left is not None and (left <= 0 or not socket.poll(int(1000 * left) + 1)):
                return
            frames = socket.recv_multipart()
            seq = protocol.seq_of(frames[1]) if len(frames) == 3 else None
            if seq is not None:
                now = time.monotonic()
                first = now if first is None else first
                seen += 1
                yield RecordedMessage(now - first, frames[0], seq, frames[2])
    finally:
        socket.close(0)


def replay(
    path: str | Path, endpoint: str, *, bind: bool | None = None, speed: float | None = 1.0, keys: Keys | None = None
) -> int:
    """Publish a file again, as fast as it was (times `speed`; None: at once); how many messages were sent."""
    if speed is not None and not speed > 0:
        raise InputError(say(f"speed {speed!r}", "it leads nowhere", "pass a number above 0, or None for no pauses"))
    server_sockets = ServerSockets(keys)
    socket = server_sockets.socket(zmq.XPUB)  # a PUB that hears subscriptions
    recorded, count = iter(Recording(path)), 0
    try:
        first = next(recorded, None)  # a file that is not one is refused before anything waits
        socket.set_hwm(0)
        socket.set(zmq.MAXMSGSIZE, protocol.MAX_SUBSCRIPTION)
        protocol.attach(socket, endpoint, protocol.is_bound(endpoint) if bind is None else bind)
        _await_listener(socket)
        begun = time.monotonic()
        for message in chain([] if first is None else [first], recorded):
            if speed is not None:
                time.sleep(max(0.0, begun + message.seconds / speed - time.monotonic()))
            socket.send_multipart([message.topic, protocol.number(message.seq), message.payload])
            count += 1
            while socket.poll(0):
                socket.recv()  # subscriptions must not pile up
    finally:
        socket.close(1000)
        server_sockets.close()
    return count


def _await_listener(socket: zmq.Socket[bytes], seconds: float = 2.0) -> None:
    """Give a subscriber the time to come: what is published before is lost to it."""
    if socket.poll(int(1000 * seconds)):
        socket.recv()
