"""ConnectionLimit: bounds how many are connected to a bound socket, since ZMQ does not. Knows no messages.

ZMQ cannot disconnect one peer. So when there are too many, all are disconnected: the endpoint is closed, with what was
queued for them, and opened again. Who lives comes back by itself, and asks again. If those are too many too, they are
tolerated for a while: disconnected at once, over and over, none of them would ever hear an answer to its end.
"""

from __future__ import annotations

import logging
import time
from itertools import count

import zmq
from zmq.utils.monitor import parse_monitor_message

from quire.events.wire import protocol

_log = logging.getLogger("quire.events")
_addresses = (f"inproc://quire-connections-{number}" for number in count())
LENIENT_SECONDS = 10.0  # for which those who came back are tolerated
LENIENT_FACTOR = 4  # meanwhile so many times the limit may be connected
_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class ConnectionLimit:
    """The connections of one endpoint; `monitor` is readable when somebody connected or disconnected."""

    def __init__(self, socket: zmq.Socket[bytes], limit: int) -> None:
        """Of a socket that has just been bound. Its linger must be 0: what it has queued is given up."""
        self._socket, self._limit = socket, limit
        self._endpoint = protocol.bound_to(socket)
        self._peers: set[int] = set()  # their file descriptors
        self._open = True
        self._closed = False  # the endpoint is closed by now: it can be bound again
        self._failed = False  # binding it again has failed, and that was logged
        self._lenient_until = 0.0
        address = next(_addresses)
        socket.monitor(address, _WATCHED)
        self.monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        self.monitor.set_hwm(0)  # ZMQ's thread must not wait for us to read it
        self.monitor.connect(address)

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def is_open(self) -> bool:
        """Whether peers can connect; if not, `update` tries to open it again."""
        return self._open

    def update(self) -> None:
        """Count who came and went; disconnect all when they are too many."""
        while self.monitor.poll(0):
            news = parse_monitor_message(self.monitor.recv_multipart())
            if news["event"] == zmq.EVENT_ACCEPTED:
                self._peers.add(int(news["value"]))
            elif news["event"] == zmq.EVENT_DISCONNECTED:
                self._peers.discard(int(news["value"]))
            elif not self._open:
                self._peers.clear()  # with those who came while it was being closed
                self._closed = True
        if self._closed:
            self._reopen()
        elif self._are_too_many():
            _log.warning("%s: %d connections, %d allowed: all are disconnected", self._endpoint, len(self), self._limit)
            self.disconnect_all()

    def disconnect_all(self) -> None:
        """Disconnect all, and give up what is queued for them."""
        if self._open:
            self._socket.unbind(self._endpoint)
            self._open = False

    def _are_too_many(self) -> bool:
        limit = self._limit if time.monotonic() >= self._lenient_until else LENIENT_FACTOR * self._limit
        return len(self._peers) > limit

    def _reopen(self) -> None:
        """Bind it again; whatever keeps that from working may pass, so the next `update` tries once more."""
        try:
            self._socket.bind(self._endpoint)
        except zmq.ZMQError as error:
            if error.errno in (zmq.ETERM, zmq.ENOTSOCK):  # there is nothing left to bind
                raise
            if not self._failed:
                _log.warning("%s cannot be opened again yet: %s", self._endpoint, error)
            self._failed = True
            return
        _log.info("%s is open again", self._endpoint)
        self._open, self._closed, self._failed = True, False, False
        self._lenient_until = time.monotonic() + LENIENT_SECONDS

    def close(self) -> None:
        """Before its socket is closed."""
        self._socket.disable_monitor()
        self.monitor.close(0)
