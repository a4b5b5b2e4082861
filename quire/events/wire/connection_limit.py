"""Crowd: bounds how many are connected to a bound socket, since ZMQ does not. Knows no messages.

ZMQ cannot send one peer away. So when there are too many, all are: the endpoint is closed, with what was queued for
them, and opened again. Who lives comes back by itself, and asks again. If those are too many too, they are let be for
a while: sent away at once, over and over, none of them would ever hear an answer to its end.
"""

from __future__ import annotations

import time
from itertools import count

import zmq
from zmq.utils.monitor import parse_monitor_message

from quire.events.wire import protocol

_addresses = (f"inproc://quire-crowd-{number}" for number in count())
CALM = 10.0  # seconds for which those who came back are let be
SURGE = 4  # times too many are too many at once
_NEWS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class Crowd:
    """Those connected to one endpoint; `news` is readable when somebody came or went."""

    def __init__(self, socket: zmq.Socket[bytes], most: int) -> None:
        """Of a socket that has just been bound. Its linger must be 0: what it has queued is given up."""
        self._socket, self._most = socket, most
        self._endpoint = protocol.bound_to(socket)
        self._peers: set[int] = set()  # their numbers as files
        self._open = True
        self._closed = False  # the endpoint is: it can be had again
        self._calm = 0.0  # until when those who are here are let be
        address = next(_addresses)
        socket.monitor(address, _NEWS)
        self.news: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        self.news.set_hwm(0)  # nobody waits for us to read it
        self.news.connect(address)

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def is_open(self) -> bool:
        """Whether peers can come; if not, a `look` may help."""
        return self._open

    def look(self) -> None:
        """Take the news, and send all away when they are too many."""
        while self.news.poll(0):
            news = parse_monitor_message(self.news.recv_multipart())
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
            self.send_away()

    def send_away(self) -> None:
        """Cut all off, with what is queued for them."""
        if self._open:
            self._socket.unbind(self._endpoint)
            self._open = False

    def _are_too_many(self) -> bool:
        most = self._most if time.monotonic() >= self._calm else SURGE * self._most
        return len(self._peers) > most

    def _reopen(self) -> None:
        try:
            self._socket.bind(self._endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
            return  # somebody else has it just now
        self._open, self._closed = True, False
        self._calm = time.monotonic() + CALM

    def close(self) -> None:
        """Before its socket is closed."""
        self._socket.disable_monitor()
        self.news.close(0)
