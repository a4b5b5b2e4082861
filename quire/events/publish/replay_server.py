"""ReplayServer: answers replay requests, as fast as each peer reads. Owns the ROUTER; knows no batches.

A ROUTER drops what is over its bound, and an answer must be whole: so its bound is small, and the rest of an answer
waits here as something yet to be read from the archive, which takes no memory. What is under way is bounded in bytes,
for one peer and for all.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import zmq

from quire.core.records.errors import without_words
from quire.events.publish.bytes_in_flight import BytesInFlight, PayloadInFlight
from quire.events.wire import protocol
from quire.events.wire.protocol import NumberedPayload
from quire.net.curve_keys import ServerSockets
from quire.net.limits.zmq_connections import LENIENT_FACTOR, ConnectionLimit

_log = logging.getLogger("quire.events")
MAX_QUEUED = 32  # messages in the socket for one peer
MAX_BYTES = 1 << 12  # of one request; a peer that sends more is disconnected
MAX_REQUESTS = 8  # of one peer that wait; others are passed over
STALL = 10.0  # seconds in which no peer reads while others wait for room, until all are disconnected
PAUSE = 1  # milliseconds until a peer that was full is looked at again
IDLE_PAUSE = 100  # milliseconds until it looks whether answers that nothing waits behind have been read

Batches = Iterator[NumberedPayload]  # the answer to one request


class _Message(NamedTuple):
    """One message of an answer."""

    head: list[bytes]
    payload: PayloadInFlight


class ReplayServer:
    """One ROUTER. A peer that asks and does not read delays only itself, and their number is limited."""

    def __init__(self, topic: bytes, max_peers: int, max_bytes: int, sockets: ServerSockets) -> None:
        self._max_peers = max_peers
        self._socket = sockets.socket(zmq.ROUTER)
        self._socket.set_hwm(MAX_QUEUED)
        self._socket.set(zmq.MAXMSGSIZE, MAX_BYTES)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.BACKLOG, max(100, min(max_peers, 4096)))  # they may all come back at once
        self._socket.set(zmq.ROUTER_MANDATORY, 1)  # says when a peer is full or gone
        self._limit: ConnectionLimit | None = None  # once it is open
        self._topic = topic
        self._requests: dict[bytes, deque[bytes]] = {}  # by peer, oldest first; the first is being answered
        self._answers: dict[bytes, Iterator[list[bytes]]] = {}
        self._next: dict[bytes, _Message] = {}  # a message that had no room
        self._in_flight = BytesInFlight(max_bytes)
        self._progress = time.monotonic()  # when something was last let go, or there was room

    def open(self, endpoint: str) -> str:
        """Let peers come; the endpoint with the port it got."""
        opened = protocol.attach(self._socket, endpoint, True)
        self._limit = ConnectionLimit(self._socket, self._max_peers)
        return opened

    def close(self, linger: int) -> None:
        """Send what is queued for so many milliseconds, then end."""
        if self._limit is not None:
            self._limit.close()
        self._socket.close(linger)

    @property
    def num_bytes(self) -> int:
        """Bytes under way to those who asked."""
        return self._in_flight.num_bytes

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Readable when there is something to `take`."""
        return [self._socket] if self._limit is None else [self._socket, self._limit.monitor]

    @property
    def pause(self) -> int | None:
        """How long to wait before `serve` may get on, in milliseconds; None: nothing waits and nothing is under way."""
        if self._requests:
            return PAUSE
        return IDLE_PAUSE if self._in_flight.num_bytes else None  # the memory of what was read is given back

    def take(self) -> None:
        """Who came and went, and one request; what is none, or one too many of its peer, is passed over."""
        if self._limit is not None:
            self._limit.update()
        if not self._socket.poll(0):
            return
        frames = self._socket.recv_multipart()
        if len(frames) == 3 and (len(frames[2]) == 8 or frames[2] in (protocol.SNAPSHOT, protocol.MARK)):
            if frames[0] not in self._requests and len(self._requests) >= LENIENT_FACTOR * self._max_peers:
                return  # most of these have gone, which ZMQ reports only when they are sent something
            requests = self._requests.setdefault(frames[0], deque())
            if len(requests) < MAX_REQUESTS:
                requests.append(frames[2])

    def serve(self, answer: Callable[[bytes], Batches | None]) -> None:
        """Send as much as there is room for; `answer` makes the answer to a request when its turn comes."""
        now = time.monotonic()
        if self._in_flight.forget_sent() or not self._in_flight.is_full:
            self._progress = now
        elif self._requests and self._limit is not None and now - self._progress > STALL:
            _log.warning("no peer reads the answers it asked for, and there is no room for more: all are disconnected")
            self._limit.disconnect_all()
            self._progress = now
        # a peer that reads has little under way, and goes first
        for peer in sorted(self._requests, key=self._in_flight.bytes_to):
            try:
                self._serve(peer, answer)
            except zmq.Again:
                continue
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
            except Exception as error:  # an answer that cannot be made does not concern the others
                _log.error("an answer to a router could not be made: %s", without_words(error))
            self._forget(peer)

    def _forget(self, peer: bytes) -> None:
        message = self._next.pop(peer, None)
        if message is not None:
            self._in_flight.give_up(peer, message.payload)
        for kept in (self._requests, self._answers):
            kept.pop(peer, None)

    def _serve(self, peer: bytes, answer: Callable[[bytes], Batches | None]) -> None:
        requests = self._requests[peer]
        while requests:
            if peer not in self._answers:
                self._answers[peer] = self._messages(answer(requests[0]))
            while message := self._message(peer):
                self._socket.send_multipart([peer, b"", *message.head], zmq.DONTWAIT | zmq.SNDMORE)
                self._socket.send(message.payload.frame())
                del self._next[peer]
                # of those with as much under way the others come first now
                self._requests[peer] = self._requests.pop(peer)
            del self._answers[peer]
            requests.popleft()

    def _message(self, peer: bytes) -> _Message | None:
        """The next of an answer, not made before there is room for it."""
        if peer not in self._next:
            if not self._in_flight.has_room(peer):
                raise zmq.Again
            frames = next(self._answers[peer], None)
            if frames is None:
                return None
            self._next[peer] = _Message(frames[:-1], self._in_flight.add(peer, frames[-1]))
        return self._next[peer]

    def _messages(self, answer: Batches | None) -> Iterator[list[bytes]]:
        if answer is not None:
            for seq, payload in answer:
                yield [self._topic, protocol.number(seq), payload]
            yield [b"", protocol.END, b""]
