"""Crowd: bounds how many are connected to a bound socket, since ZMQ does not. Knows no messages.

ZMQ cannot send one peer away. So when there are too many, all are: the endpoint is closed, with what was queued for
them, and opened again. Who lives comes back by itself, and asks again.
"""

from __future__ import annotations

from itertools import count

import zmq
from zmq.utils.monitor import parse_monitor_message

from quire.events import wire

_addresses = (f"inproc://quire-crowd-{number}" for number in count())
_NEWS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class Crowd:
    """Those connected to one endpoint; `news` is readable when somebody came or went."""

    def __init__(self, socket: zmq.Socket[bytes], most: int) -> None:
        """Of a socket that has just been bound. Its linger must be 0: what it has queued is given up."""
        self._socket, self._most = socket, most
        self._endpoint = wire.bound_to(socket)
        self._peers: set[int] = set()  # their numbers as files
        self._open = True
        address = next(_addresses)
        socket.monitor(address, _NEWS)
        self.news = wire.socket(zmq.PAIR)
        self.news.set_hwm(0)  # nobody waits for us to read it
        self.news.connect(address)

    def __len__(self) -> int:
        return len(self._peers)

    def look(self) -> None:
        """Take the news, and send all away when they are too many."""
        while self.news.poll(0):
            news = parse_monitor_message(self.news.recv_multipart())
            if news["event"] == zmq.EVENT_ACCEPTED:
                self._peers.add(int(news["value"]))
            elif news["event"] == zmq.EVENT_DISCONNECTED:
                self._peers.discard(int(news["value"]))
            elif not self._open:  # the endpoint is closed: it can be had again
                self._socket.bind(self._endpoint)
                self._open = True
        if self._open and len(self._peers) > self._most:
            self._socket.unbind(self._endpoint)
            self._peers.clear()
            self._open = False

    def close(self) -> None:
        """Before its socket is closed."""
        self._socket.disable_monitor()
        self.news.close(0)
