"""ConnectionLimit: bounds how many are connected to a bound socket, since ZMQ does not. Knows no messages.

ZMQ has no call that disconnects a peer. Unbinding the endpoint would disconnect all, but ZMQ aborts the whole process
when one of them hangs up meanwhile with half a message on its way. So the connections are shut down below ZMQ, which
then takes them for peers that hung up, and gives up what was queued for them. When there are too many, all are
disconnected: who lives comes back by itself, and asks again. If those are too many too, they are tolerated for a
while: disconnected at once, over and over, none of them would ever hear an answer to its end.
"""

from __future__ import annotations

import logging
import os
import socket as sockets
import time
from contextlib import suppress
from itertools import count

import zmq
from zmq.utils.monitor import parse_monitor_message

from quire.net.zmq_sockets import bound_to

_log = logging.getLogger("quire.events")
_addresses = (f"inproc://quire-connections-{number}" for number in count())
LENIENT_SECONDS = 10.0  # for which those who came back are tolerated
LENIENT_FACTOR = 4  # meanwhile so many times the limit may be connected
_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED


class ConnectionLimit:
    """The connections of one endpoint; `monitor` is readable when a peer connected or disconnected."""

    def __init__(self, socket: zmq.Socket[bytes], limit: int) -> None:
        """Of a socket that has just been bound. Its linger must be 0: what it has queued is given up."""
        self._socket, self._limit = socket, limit
        self._endpoint = bound_to(socket)
        self._peers: set[int] = set()  # their file descriptors
        self._lenient_until = 0.0
        address = next(_addresses)
        socket.monitor(address, _WATCHED)
        self.monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        self.monitor.set_hwm(0)  # ZMQ's thread must not wait for us to read it
        self.monitor.connect(address)

    def __len__(self) -> int:
        return len(self._peers)

    def update(self) -> None:
        """Count who came and went; disconnect all when they are too many."""
        while self.monitor.poll(0):
            news = parse_monitor_message(self.monitor.recv_multipart())
            if news["event"] == zmq.EVENT_ACCEPTED:
                self._peers.add(int(news["value"]))
            else:
                self._peers.discard(int(news["value"]))
        if self._are_too_many():
            _log.warning("%s: %d connections, %d allowed: all are disconnected", self._endpoint, len(self), self._limit)
            self.disconnect_all()

    def disconnect_all(self) -> None:
        """Disconnect all, and give up what is queued for them."""
        for number in self._peers:
            self._disconnect(number)
        self._peers.clear()  # later reports of them come before their numbers are given to others
        self._lenient_until = time.monotonic() + LENIENT_SECONDS

    def _are_too_many(self) -> bool:
        limit = self._limit if time.monotonic() >= self._lenient_until else LENIENT_FACTOR * self._limit
        return len(self._peers) > limit

    def _disconnect(self, number: int) -> None:
        """ZMQ may have closed this file, and its number may be another file by now: a duplicate is looked at first."""
        with suppress(OSError):
            mine = os.dup(number)
            try:
                connection = sockets.socket(fileno=mine)
            except OSError:  # it is not a socket
                os.close(mine)
                raise
            with connection:
                if self._is_of(connection):
                    connection.shutdown(sockets.SHUT_RDWR)

    def _is_of(self, connection: sockets.socket) -> bool:
        """Whether it was accepted at this endpoint: then it has the same address on this side."""
        mine = connection.getsockname()
        if isinstance(mine, tuple):
            return self._endpoint.startswith("tcp://") and self._endpoint.endswith(f":{mine[1]}")
        name = mine if isinstance(mine, str) else "@" + mine[1:].decode(errors="replace")
        return bool(name) and self._endpoint == f"ipc://{name}"

    def close(self) -> None:
        """Before its socket is closed."""
        self._socket.disable_monitor()
        self.monitor.close(0)
