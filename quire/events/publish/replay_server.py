"""Desk: answers those who ask a publisher, as fast as each of them reads. Owns the ROUTER; knows no batches.

A ROUTER drops what is over its bound, and an answer must be whole: so its bound is small, and the rest of an answer
waits here as something yet to be read from the archive, which takes no memory. What is under way is bounded in bytes,
for one peer and for all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

import zmq

from quire.events.publish.flight import Flight, Part
from quire.events.wire import protocol
from quire.events.wire.connection_limit import SURGE, Crowd
from quire.events.wire.curve import Gate

MAX_QUEUED = 32  # messages in the socket for one peer
MAX_BYTES = 1 << 12  # of one that asks; who sends more is cut off
MAX_ASKS = 8  # of one peer that wait; others are passed over
STALL = 10.0  # seconds for which nobody reads while others wait for room, until all are sent away
PAUSE, CLOSED_PAUSE = 1, 50  # milliseconds until a peer that was full is looked at again, or an endpoint not had

Answer = Iterator[tuple[int, bytes]]


class Desk:
    """One ROUTER; whoever asks and reads nothing holds up itself only, and there are only so many."""

    def __init__(self, topic: bytes, max_peers: int, max_bytes: int, gate: Gate) -> None:
        self._max_peers = max_peers
        self._socket = gate.socket(zmq.ROUTER)
        self._socket.set_hwm(MAX_QUEUED)
        self._socket.set(zmq.MAXMSGSIZE, MAX_BYTES)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.BACKLOG, max(100, min(max_peers, 4096)))  # they may all come back at once
        self._socket.set(zmq.ROUTER_MANDATORY, 1)  # says when a peer is full or gone
        self._crowd: Crowd | None = None
        self._topic = topic
        self._asks: dict[bytes, deque[bytes]] = {}  # by peer, oldest first; the first is being answered
        self._parts: dict[bytes, Iterator[list[bytes]]] = {}
        self._next: dict[bytes, tuple[list[bytes], Part]] = {}  # a message that had no room
        self._flight = Flight(max_bytes)
        self._moved = time.monotonic()  # when something of it was let go, or there was room

    def open(self, endpoint: str) -> str:
        """Let peers come; the endpoint with the port it got."""
        opened = protocol.attach(self._socket, endpoint, True)
        self._crowd = Crowd(self._socket, self._max_peers)
        return opened

    def close(self, linger: int) -> None:
        """Send what is queued for so many milliseconds, then end."""
        if self._crowd is not None:
            self._crowd.close()
        self._socket.close(linger)

    @property
    def num_bytes(self) -> int:
        """Bytes under way to those who asked."""
        return self._flight.num_bytes

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Readable when there is something to `take`."""
        return [self._socket] if self._crowd is None else [self._socket, self._crowd.news]

    @property
    def pause(self) -> int | None:
        """How long to wait before `serve` may get on, in milliseconds; None: nothing waits."""
        if self._asks:
            return PAUSE
        return None if self._crowd is None or self._crowd.is_open else CLOSED_PAUSE

    def take(self) -> None:
        """Who came and went, and one ask; what is none, or one too many of its peer, is passed over."""
        if self._crowd is not None:
            self._crowd.look()
        if not self._socket.poll(0):
            return
        frames = self._socket.recv_multipart()
        if len(frames) == 3 and (len(frames[2]) == 8 or frames[2] in (protocol.SNAPSHOT, protocol.MARK)):
            if frames[0] not in self._asks and len(self._asks) >= SURGE * self._max_peers:
                return  # most of these have gone, which nobody says before there is room to answer them
            asks = self._asks.setdefault(frames[0], deque())
            if len(asks) < MAX_ASKS:
                asks.append(frames[2])

    def serve(self, answer: Callable[[bytes], Answer | None]) -> None:
        """Send as much as there is room for; `answer` makes the answer to an ask when its turn comes."""
        if self._crowd is not None and not self._crowd.is_open:
            self._crowd.look()
        now = time.monotonic()
        if self._flight.look() or not self._flight.is_full:
            self._moved = now
        elif self._asks and self._crowd is not None and now - self._moved > STALL:
            self._crowd.send_away()  # somebody holds all the room and reads nothing
            self._moved = now
        for peer in sorted(self._asks, key=self._flight.bytes_to):  # who reads has little under way, and goes first
            try:
                self._serve(peer, answer)
            except zmq.Again:
                continue
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
            self._forget(peer)

    def _forget(self, peer: bytes) -> None:
        _, part = self._next.pop(peer, (None, None))
        if part is not None:
            self._flight.give_up(peer, part)
        for kept in (self._asks, self._parts):
            kept.pop(peer, None)

    def _serve(self, peer: bytes, answer: Callable[[bytes], Answer | None]) -> None:
        asks = self._asks[peer]
        while asks:
            if peer not in self._parts:
                self._parts[peer] = self._messages(answer(asks[0]))
            while message := self._message(peer):
                head, part = message
                self._socket.send_multipart([peer, b"", *head], zmq.DONTWAIT | zmq.SNDMORE)
                self._socket.send(part.frame())
                del self._next[peer]
                self._asks[peer] = self._asks.pop(peer)  # of those with as much under way the others come first now
            del self._parts[peer]
            asks.popleft()

    def _message(self, peer: bytes) -> tuple[list[bytes], Part] | None:
        """The next of an answer, not made before there is room for it."""
        if peer not in self._next:
            if not self._flight.has_room(peer):
                raise zmq.Again
            message = next(self._parts[peer], None)
            if message is None:
                return None
            self._next[peer] = message[:-1], self._flight.add(peer, message[-1])
        return self._next[peer]

    def _messages(self, answer: Answer | None) -> Iterator[list[bytes]]:
        if answer is not None:
            for seq, payload in answer:
                yield [self._topic, protocol.number(seq), payload]
            yield [b"", protocol.END, b""]
