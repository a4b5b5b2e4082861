"""Follower: brings workers' streams to an index over ZMQ, and asks for what is missing. Owns sockets and one thread.

A worker that has been quiet for a while is asked for its last number and digest: the last batch may be the lost one.
"""

from __future__ import annotations

import queue
import socket as sockets
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import zmq

from quire.core.records.errors import InputError, StateError, UnknownError, say
from quire.events.follow.index import Index
from quire.events.follow.stream_state import Ask
from quire.events.wire import protocol
from quire.events.wire.curve import Keys, join, public_key

BURST = 256  # messages of one worker before the others are looked at
MAX_ASKS = 64  # of one worker that are not answered yet


@dataclass(slots=True)
class _Line:
    """One worker: its stream, and the way to ask."""

    worker: Hashable
    stream: zmq.Socket[bytes]
    desk: zmq.Socket[bytes] | None
    replay: str | None
    server: bytes | None  # its public key
    heard: float
    asks: deque[Ask] = field(default_factory=deque)  # not answered yet, in order: so are the answers
    since: float = 0.0  # from when on an answer is waited for: the first of these asks, or the last part that came


class Follower:
    """Follows any number of workers into one index."""

    def __init__(
        self, index: Index, *, quiet: float = 1.0, patience: float = 2.0, keys: Keys | None = None,
        max_message: int = protocol.MAX_MESSAGE,
    ) -> None:  # fmt: skip
        """`keys` are ours for CURVE; a worker that sends a message of more than `max_message` bytes is cut off."""
        if type(max_message) is not int or max_message < 1:
            raise InputError(say(f"max_message {max_message!r}", "that is no length", "pass a positive int"))
        self.index = index
        self._keys, self._max_message = keys, max_message
        self._quiet, self._patience = quiet, patience  # seconds until a worker is asked, and until it counts as silent
        self._lines: dict[Hashable, _Line] = {}
        self._orders: queue.SimpleQueue[tuple[Callable[[], object], queue.SimpleQueue[Exception | None]] | None]
        self._orders = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: StateError | None = None  # why the thread takes no more orders
        self._poller = zmq.Poller()
        self._bell, self._ear = sockets.socketpair()
        self._poller.register(self._ear, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="quire-follower", daemon=True)
        self._thread.start()

    # -- the caller's side -------------------------------------------------------------------------------------------

    def follow(
        self, worker: Hashable, endpoint: str, replay: str | None = None, *, topic: str = "", bind: bool = False,
        server: bytes | str | None = None,
    ) -> None:  # fmt: skip
        """Add a worker to the index and listen to it; with `replay` what is missing can be asked for.

        `server` is the public key of a publisher that speaks CURVE, or the file that has it.
        """
        key = None if server is None else public_key(server)
        self._order(lambda: self._add(worker, endpoint, replay, topic, bind, key))

    def leave(self, worker: Hashable) -> None:
        """Stop listening to a worker and forget it."""
        self._order(lambda: self._drop(worker))

    def close(self) -> None:
        """Stop listening; what the index knows stays."""
        with self._lock:
            if self._ended is None:
                self._orders.put(None)
                self._bell.send(b"!")
        self._thread.join()
        self._bell.close()
        self._ear.close()

    def __repr__(self) -> str:
        return f"Follower({len(self._lines)} workers{'' if self._ended is None else ', ended'})"

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(self, act: Callable[[], object]) -> None:
        """Have the thread do it, since sockets are its own; errors come back here."""
        done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._orders.put((act, done))
            self._bell.send(b"!")
        error = done.get()
        if error is not None:
            raise error

    # -- the thread's side -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        why, cause = "the follower is closed", None
        try:
            self._loop()
        except Exception as error:
            why, cause = f"its thread ended with {error!r}", error
        for worker in list(self._lines):
            if cause is not None:
                with suppress(UnknownError):
                    self.index.silent(worker)
            self._close(worker)
        with self._lock:
            self._ended = StateError(say("follow", why, "make a new one"))
            self._ended.__cause__ = cause
            while not self._orders.empty():
                order = self._orders.get()
                if order is not None:
                    order[1].put(self._ended)

    def _loop(self) -> None:
        going = True
        while going:
            pause = int(1000 * min(self._quiet, self._patience) / 2)
            ready = dict(self._poller.poll(pause if self._lines else None))
            if self._ear.fileno() in ready:
                self._ear.recv(4096)
                going = self._obey()
            for line in list(self._lines.values()):
                try:
                    self._serve(line, ready)
                except UnknownError:  # removed from the index behind our back
                    self._close(line.worker)
                except Exception as error:  # whatever one worker makes happen is no other's trouble
                    self._close(line.worker)
                    with suppress(UnknownError):
                        self.index.fail(line.worker, f"following it ended with {error!r}")

    def _serve(self, line: _Line, ready: dict[Any, int]) -> None:
        if line.stream in ready:
            self._listen(line)
        if line.desk is not None and line.desk in ready:
            self._read(line, line.desk)
        self._watch(line)

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

    def _add(
        self, worker: Hashable, endpoint: str, replay: str | None, topic: str, bind: bool, server: bytes | None
    ) -> None:
        stream = protocol.socket(zmq.SUB)
        desk = None
        try:
            self._ready(stream, server)
            stream.subscribe(topic.encode())
            protocol.attach(stream, endpoint, bind)
            desk = self._desk(replay, server) if replay is not None else None
            self.index.add(worker, mendable=desk is not None)
        except Exception:
            for socket in (stream, desk):
                if socket is not None:
                    socket.close(0)
            raise
        if worker in self._lines:
            self._close(worker)  # of one that was removed from the index
        line = self._lines[worker] = _Line(worker, stream, desk, replay, server, time.monotonic())
        for socket in (stream, desk):
            if socket is not None:
                self._poller.register(socket, zmq.POLLIN)
        self._ask(line, self.index.check(worker))  # it may have published long before

    def _drop(self, worker: Hashable) -> None:
        if worker in self._lines:
            self._close(worker)
        self.index.remove(worker)

    def _close(self, worker: Hashable) -> None:
        line = self._lines.pop(worker)
        for socket in (line.stream, line.desk):
            if socket is not None:
                self._poller.unregister(socket)
                socket.close(0)

    def _listen(self, line: _Line) -> None:
        """What has come, so that a burst costs few looks; not all of it, since others wait too."""
        line.heard = time.monotonic()
        for frames in _waiting(line.stream, BURST):
            seq = protocol.seq_of(frames[1]) if len(frames) == 3 else None
            if seq is not None:
                self._ask(line, self.index.hear(line.worker, seq, frames[2]))

    def _read(self, line: _Line, desk: zmq.Socket[bytes]) -> None:
        """An answer, or part of one."""
        line.heard = line.since = time.monotonic()
        for frames in _waiting(desk, BURST):
            number, payload = frames[-2:] if len(frames) > 1 else (b"", b"")
            if len(number) != 8:
                continue  # whatever that is, it is no answer
            if number != protocol.END:
                self._ask(line, self.index.hear(line.worker, int.from_bytes(number, "big"), payload, asked=True))
            elif line.asks:
                self._ask(line, self.index.answered(line.worker, line.asks.popleft()))
            if line.desk is not desk:
                return  # what it has left to say is not heard

    def _ask(self, line: _Line, ask: Ask | None) -> None:
        if ask is not None and line.desk is not None:
            if len(line.asks) >= MAX_ASKS:  # it has us ask again and again: what it has not answered is given up
                line.desk = self._reopened(line, line.desk)
            line.since = line.since if line.asks else time.monotonic()
            line.asks.append(ask)
            plain = protocol.SNAPSHOT if ask.start is None else protocol.number(ask.start)
            line.desk.send_multipart([b"", protocol.MARK if ask.check else plain])

    def _watch(self, line: _Line) -> None:
        """Ask a quiet worker, and ask again one that did not answer."""
        now = time.monotonic()
        if line.desk is None:
            return
        if line.asks and now - line.since > self._patience:
            if line.desk.poll(0):
                return  # it has answered; it was we who had no time to read it
            self.index.silent(line.worker)
            line.desk = self._reopened(line, line.desk)
            self._ask(line, self.index.check(line.worker))
        elif not line.asks and now - max(line.heard, line.since) > self._quiet:
            self._ask(line, self.index.check(line.worker))

    def _reopened(self, line: _Line, desk: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """Another way to ask, so that late answers are not taken for those to come; without one nothing changes."""
        fresh = self._desk(str(line.replay), line.server)
        line.asks.clear()
        self._poller.unregister(desk)
        desk.close(0)
        self._poller.register(fresh, zmq.POLLIN)
        return fresh

    def _desk(self, endpoint: str, server: bytes | None) -> zmq.Socket[bytes]:
        """The way to ask a worker."""
        desk = protocol.socket(zmq.DEALER)
        try:
            self._ready(desk, server)
            protocol.attach(desk, endpoint, False)
        except Exception:
            desk.close(0)
            raise
        return desk

    def _ready(self, socket: zmq.Socket[bytes], server: bytes | None) -> None:
        protocol.bound(socket, self._max_message)
        join(socket, self._keys, server)


def _waiting(socket: zmq.Socket[bytes], most: int) -> Iterator[list[bytes]]:
    """Messages that have come already; the socket is not looked at before each of them."""
    with suppress(zmq.Again):
        for _ in range(most):
            yield socket.recv_multipart(zmq.DONTWAIT)
