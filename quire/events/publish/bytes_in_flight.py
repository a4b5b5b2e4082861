"""BytesInFlight: bytes of answers under way, by peer: handed to a socket, or about to be. Knows no requests.

ZMQ bounds what it queues in messages, not in bytes, and does not say who reads. But it says when it has let go of a
buffer: what has not been let go is counted here. One payload on its way to several peers is there once, and counts so.
"""

from __future__ import annotations

import zmq

SMALL = 1 << 13  # bytes below which a payload is copied and not counted: a socket's bound in messages is enough
SHARE = 4  # a peer may have one part in so many of the room


class PayloadInFlight:
    """A payload on its way to a peer."""

    __slots__ = ("_tracker", "payload")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self._tracker: zmq.MessageTracker | None = None

    @property
    def is_done(self) -> bool:
        """The socket has let go of it."""
        return self._tracker is not None and self._tracker.done

    def frame(self) -> zmq.Frame | bytes:
        """As a socket takes it without a copy; from now on it is the socket's."""
        if len(self.payload) < SMALL:
            return self.payload
        frame = zmq.Frame(self.payload, track=True, copy=False)
        self._tracker = frame.tracker
        return frame


class BytesInFlight:
    """What is under way to all peers."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: dict[bytes, list[PayloadInFlight]] = {}
        self._copies: dict[int, int] = {}  # payload -> peers it is on its way to
        self.num_bytes = 0  # of payloads, each counted once

    @property
    def is_full(self) -> bool:
        """No more is to be put under way."""
        return self.num_bytes >= self._max_bytes

    def has_room(self, peer: bytes) -> bool:
        """Whether another part may go there; one part may be larger than all the room."""
        return not self.is_full and self.bytes_to(peer) < self._max_bytes // SHARE

    def bytes_to(self, peer: bytes) -> int:
        """Of payloads on their way there."""
        return sum(len(part.payload) for part in self._parts.get(peer, ()))

    def add(self, peer: bytes, payload: bytes) -> PayloadInFlight:
        """A part that will be sent there."""
        part = PayloadInFlight(payload)
        if len(payload) >= SMALL:
            self._parts.setdefault(peer, []).append(part)
            copies = self._copies.get(id(payload), 0)
            self._copies[id(payload)] = copies + 1
            self.num_bytes += 0 if copies else len(payload)
        return part

    def forget_sent(self) -> bool:
        """Forget what the socket has let go of; whether there was any."""
        gone = 0
        for peer, parts in list(self._parts.items()):
            left = [part for part in parts if part.is_done]
            for part in left:
                parts.remove(part)
                self._drop(part)
            if not parts:
                del self._parts[peer]
            gone += len(left)
        return gone > 0

    def give_up(self, peer: bytes, part: PayloadInFlight) -> None:
        """It will not be sent."""
        if part in self._parts.get(peer, ()):
            self._parts[peer].remove(part)
            self._drop(part)

    def _drop(self, part: PayloadInFlight) -> None:
        name = id(part.payload)
        self._copies[name] -= 1
        if not self._copies[name]:
            del self._copies[name]
            self.num_bytes -= len(part.payload)
