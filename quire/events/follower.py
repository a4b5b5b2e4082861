"""Follower: brings workers' streams to an index over ZMQ, and asks for what is missing. Owns sockets and one thread.

A worker that has been quiet for a while is asked for its last number and digest: the last batch may be the lost one.
"""

from __future__ import annotations

import queue
import socket as sockets
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import zmq

from quire.core.errors import StateError, say
from quire.events import wire
from quire.events.index import Index
from quire.events.track import Ask

BURST = 256  # messages of one worker before the others are looked at


@dataclass(slots=True)
class _Line:
    """One worker: its stream, and the way to ask."""

    worker: Hashable
    stream: zmq.Socket[bytes]
    desk: zmq.Socket[bytes] | None
    heard: float
    asked: Ask | None = None  # not answered yet
    since: float = 0.0


class Follower:
    """Follows any number of workers into one index."""

    def __init__(self, index: Index, *, quiet: float = 1.0, patience: float = 2.0) -> None:
        self.index = index
        self._quiet, self._patience = quiet, patience  # seconds until a worker is asked, and until it counts as silent
        self._lines: dict[Hashable, _Line] = {}
        self._orders: queue.SimpleQueue[tuple[Callable[[], object], queue.SimpleQueue[Exception | None]] | None]
        self._orders = queue.SimpleQueue()
        self._poller = zmq.Poller()
        self._bell, self._ear = sockets.socketpair()
        self._poller.register(self._ear, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="quire-follower", daemon=True)
        self._thread.start()

    # -- the caller's side -------------------------------------------------------------------------------------------

    def follow(
        self, worker: Hashable, endpoint: str, replay: str | None = None, *, topic: str = "", bind: bool = False
    ) -> None:
        """Add a worker to the index and listen to it; with `replay` what is missing can be asked for."""
        self._order(lambda: self._add(worker, endpoint, replay, topic, bind))

    def leave(self, worker: Hashable) -> None:
        """Stop listening to a worker and forget it."""
        self._order(lambda: self._drop(worker))

    def close(self) -> None:
        """Stop listening; what the index knows stays."""
        if self._thread.is_alive():
            self._orders.put(None)
            self._bell.send(b"!")
            self._thread.join()
            self._bell.close()
            self._ear.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(self, act: Callable[[], object]) -> None:
        """Have the thread do it, since sockets are its own; errors come back here."""
        if not self._thread.is_alive():
            raise StateError(say("follow", "the follower is closed", "make a new one"))
        done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._orders.put((act, done))
        self._bell.send(b"!")
        error = done.get()
        if error is not None:
            raise error

    # -- the thread's side -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        going = True
        while going:
            pause = int(1000 * min(self._quiet, self._patience) / 2)
            ready = dict(self._poller.poll(pause if self._lines else None))
            if self._ear.fileno() in ready:
                self._ear.recv(4096)
                going = self._obey()
            for line in list(self._lines.values()):
                if line.stream in ready:
                    self._listen(line)
                if line.desk is not None and line.desk in ready:
                    self._read(line, line.desk)
                self._watch(line)
        for worker in list(self._lines):
            self._close(worker)

    def _obey(self) -> bool:
        """What callers want done; False: to end."""
        while not self._orders.empty():
            order = self._orders.get()
            if order is None:
                return False
            act, done = order
            try:
                act()
                done.put(None)
            except Exception as error:
                done.put(error)
        return True

    def _add(self, worker: Hashable, endpoint: str, replay: str | None, topic: str, bind: bool) -> None:
        stream = wire.socket(zmq.SUB)
        desk = wire.socket(zmq.DEALER) if replay is not None else None
        try:
            stream.set_hwm(0)
            stream.subscribe(topic.encode())
            wire.attach(stream, endpoint, bind)
            if desk is not None:
                desk.set_hwm(0)
                wire.attach(desk, str(replay), False)
            self.index.add(worker, mendable=desk is not None)
        except Exception:
            for socket in (stream, desk):
                if socket is not None:
                    socket.close(0)
            raise
        line = self._lines[worker] = _Line(worker, stream, desk, time.monotonic())
        for socket in (stream, desk):
            if socket is not None:
                self._poller.register(socket, zmq.POLLIN)
        self._ask(line, self.index.check(worker))  # it may have published long before

    def _drop(self, worker: Hashable) -> None:
        self.index.remove(worker)
        self._close(worker)

    def _close(self, worker: Hashable) -> None:
        line = self._lines.pop(worker)
        for socket in (line.stream, line.desk):
            if socket is not None:
                self._poller.unregister(socket)
                socket.close(0)

    def _listen(self, line: _Line) -> None:
        """What has come, so that a burst costs few looks; not all of it, since others wait too."""
        line.heard = time.monotonic()
        for _ in range(BURST):
            if not line.stream.poll(0):
                return
            frames = line.stream.recv_multipart()
            if len(frames) == 3:
                self._ask(line, self.index.hear(line.worker, int.from_bytes(frames[1], "big"), frames[2]))

    def _read(self, line: _Line, desk: zmq.Socket[bytes]) -> None:
        """An answer, or part of one."""
        line.heard = time.monotonic()
        while desk.poll(0):
            frames = desk.recv_multipart()
            number, payload = frames[-2:] if len(frames) > 1 else (b"", b"")
            if len(number) != 8:
                continue  # whatever that is, it is no answer
            if number != wire.END:
                self._ask(line, self.index.hear(line.worker, int.from_bytes(number, "big"), payload, asked=True))
            elif line.asked is not None:
                asked, line.asked = line.asked, None
                self._ask(line, self.index.answered(line.worker, asked))

    def _ask(self, line: _Line, ask: Ask | None) -> None:
        if ask is not None and line.desk is not None:
            line.asked, line.since = ask, time.monotonic()
            plain = wire.SNAPSHOT if ask.start is None else wire.number(ask.start)
            line.desk.send_multipart([b"", wire.MARK if ask.check else plain])

    def _watch(self, line: _Line) -> None:
        """Ask a quiet worker, and ask again one that did not answer."""
        now = time.monotonic()
        if line.desk is None:
            return
        if line.asked is not None and now - line.since > self._patience:
            self.index.silent(line.worker)
            self._ask(line, self.index.check(line.worker))
        elif line.asked is None and now - max(line.heard, line.since) > self._quiet:
            self._ask(line, self.index.check(line.worker))
