"""Follower: brings workers' streams to an index over ZMQ, and asks for what is missing. Owns sockets and one thread.

A worker that has been quiet for a while is asked for its last number and digest: the last batch may be the lost one.
"""

from __future__ import annotations

import logging
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

from quire.core.records.errors import InputError, StateError, UnknownError, say, without_words
from quire.events.follow.index import Index
from quire.events.follow.stream_state import ReplayRequest
from quire.events.wire import protocol
from quire.net.curve_keys import Keys, join, public_key
from quire.net.zmq_sockets import open_socket

_log = logging.getLogger("quire.events")
BURST = 256  # messages of one worker before the others are looked at
MAX_REQUESTS = 64  # of one worker that are not answered yet
PAUSE = 0.5  # seconds until a thread that failed goes on


@dataclass(slots=True)
class _Feed:
    """One worker: its stream, and the way to ask."""

    worker: Hashable
    stream: zmq.Socket[bytes]
    replay_socket: zmq.Socket[bytes] | None
    replay_endpoint: str | None
    server: bytes | None  # its public key
    heard: float
    requests: deque[ReplayRequest] = field(default_factory=deque)  # not answered yet; answers come in the same order
    since: float = 0.0  # when the first of these was sent, or the last part of an answer came


class Follower:
    """Follows any number of workers into one index."""

    def __init__(
        self, index: Index, *, quiet: float = 1.0, patience: float = 2.0, keys: Keys | None = None,
        max_message: int = protocol.MAX_MESSAGE, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`keys` are ours for CURVE; a worker that sends a message of more than `max_message` bytes is cut off.

        `clock` gives the seconds by which workers are quiet, or silent.
        """
        if type(max_message) is not int or max_message < 1:
            raise InputError(say(f"max_message {max_message!r}", "that is not a length", "pass a positive int"))
        self.index = index
        self._clock = clock
        self._keys, self._max_message = keys, max_message
        self._quiet, self._patience = quiet, patience  # seconds until a worker is asked, and until it counts as silent
        self._feeds: dict[Hashable, _Feed] = {}
        self._orders: queue.SimpleQueue[tuple[Callable[[], object], queue.SimpleQueue[Exception | None]] | None]
        self._orders = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: StateError | None = None  # why the thread takes no more orders
        self.failures = 0  # times that its thread began again
        self._poller = zmq.Poller()
        self._waker, self._wakeup = sockets.socketpair()
        self._poller.register(self._wakeup, zmq.POLLIN)
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
                self._waker.send(b"!")
        self._thread.join()
        self._waker.close()
        self._wakeup.close()

    @property
    def stopped(self) -> bool:
        """Whether its thread has ended, and the index stands still: it should not before `close`."""
        return not self._thread.is_alive()

    def __repr__(self) -> str:
        return f"Follower({len(self._feeds)} workers{'' if self._ended is None else ', ended'})"

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(self, act: Callable[[], object]) -> None:
        """Have the thread do it, since the sockets belong to the thread; its errors are raised here."""
        done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._orders.put((act, done))
            self._waker.send(b"!")
        error = done.get()
        if error is not None:
            raise error

    # -- the thread's side -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over():
                continue
        finally:
            self._end()

    def _is_over(self) -> bool:
        """Listen until it is closed, or fails: then it begins again."""
        try:
            self._loop()
            return True
        except Exception as error:
            self.failures += 1
            _log.error("the follower has failed, and goes on: %s", without_words(error))
            return not self._begin_again()

    def _end(self) -> None:
        """No order waits for a thread that is gone."""
        for worker in list(self._feeds):
            self._close(worker)
        with self._lock:
            self._ended = StateError(say("follow", "the follower is closed", "make a new one"))
            while not self._orders.empty():
                order = self._orders.get()
                if order is not None:
                    order[1].put(self._ended)

    def _begin_again(self) -> bool:
        """Another poller for all that is open, after a pause; nothing is sure of workers until they have answered.

        False: to end.
        """
        time.sleep(PAUSE)
        self._poller = zmq.Poller()
        self._poller.register(self._wakeup, zmq.POLLIN)
        for feed in self._feeds.values():
            with suppress(UnknownError):
                self.index.silent(feed.worker)
            for socket in (feed.stream, feed.replay_socket):
                if socket is not None:
                    self._poller.register(socket, zmq.POLLIN)
        return self._do_orders()

    def _loop(self) -> None:
        going = True
        while going:
            pause = int(1000 * min(self._quiet, self._patience) / 2)
            ready = dict(self._poller.poll(pause if self._feeds else None))
            if self._wakeup.fileno() in ready:
                self._wakeup.recv(4096)
                going = self._do_orders()
            for feed in list(self._feeds.values()):
                try:
                    self._serve(feed, ready)
                except UnknownError:  # removed from the index behind our back
                    self._close(feed.worker)
                except Exception as error:  # an error of one worker must not stop the others
                    self._close(feed.worker)
                    with suppress(UnknownError):
                        self.index.fail(feed.worker, f"following it ended with {without_words(error)}")

    def _serve(self, feed: _Feed, ready: dict[Any, int]) -> None:
        if feed.stream in ready:
            self._hear_stream(feed)
        if feed.replay_socket is not None and feed.replay_socket in ready:
            self._hear_answer(feed, feed.replay_socket)
        self._check_quiet(feed)

    def _do_orders(self) -> bool:
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
        stream = open_socket(zmq.SUB)
        replay_socket = None
        try:
            self._set_up(stream, server)
            stream.subscribe(topic.encode())
            protocol.attach(stream, endpoint, bind)
            replay_socket = self._connect_replay(replay, server) if replay is not None else None
            self.index.add(worker, mendable=replay_socket is not None)
        except Exception:
            for socket in (stream, replay_socket):
                if socket is not None:
                    socket.close(0)
            raise
        if worker in self._feeds:
            self._close(worker)  # it was removed from the index, not from here
        feed = self._feeds[worker] = _Feed(worker, stream, replay_socket, replay, server, self._clock())
        for socket in (stream, replay_socket):
            if socket is not None:
                self._poller.register(socket, zmq.POLLIN)
        self._send(feed, self.index.check(worker))  # it may have published long before

    def _drop(self, worker: Hashable) -> None:
        if worker in self._feeds:
            self._close(worker)
        self.index.remove(worker)

    def _close(self, worker: Hashable) -> None:
        feed = self._feeds.pop(worker)
        for socket in (feed.stream, feed.replay_socket):
            if socket is not None:
                self._poller.unregister(socket)
                socket.close(0)

    def _hear_stream(self, feed: _Feed) -> None:
        """Read what has come, but not more than BURST messages: other workers wait too."""
        feed.heard = self._clock()
        for frames in _waiting(feed.stream, BURST):
            seq = protocol.seq_of(frames[1]) if len(frames) == 3 else None
            if seq is not None:
                self._send(feed, self.index.hear(feed.worker, seq, frames[2]))

    def _hear_answer(self, feed: _Feed, replay_socket: zmq.Socket[bytes]) -> None:
        """An answer, or part of one."""
        for frames in _waiting(replay_socket, BURST):
            feed.heard = feed.since = self._clock()  # of each: reading many may take longer than the patience
            number, payload = frames[-2:] if len(frames) > 1 else (b"", b"")
            if len(number) != 8:
                continue  # no answer
            if number != protocol.END:
                self._send(feed, self.index.hear(feed.worker, int.from_bytes(number, "big"), payload, asked=True))
            elif feed.requests:
                self._send(feed, self.index.answered(feed.worker, feed.requests.popleft()))
            if feed.replay_socket is not replay_socket:
                return  # another socket has taken its place: the rest is not for us

    def _send(self, feed: _Feed, request: ReplayRequest | None) -> None:
        if request is not None and feed.replay_socket is not None:
            if len(feed.requests) >= MAX_REQUESTS:  # it never answers: what was asked is given up
                feed.replay_socket = self._reopen(feed, feed.replay_socket)
            feed.since = feed.since if feed.requests else self._clock()
            feed.requests.append(request)
            plain = protocol.SNAPSHOT if request.start is None else protocol.number(request.start)
            feed.replay_socket.send_multipart([b"", protocol.MARK if request.check else plain])

    def _check_quiet(self, feed: _Feed) -> None:
        """Ask a quiet worker, and ask again one that did not answer."""
        now = self._clock()
        if feed.replay_socket is None:
            return
        if feed.requests and now - feed.since > self._patience:
            if feed.replay_socket.poll(0):
                return  # its answer is here, and not read yet
            self.index.silent(feed.worker)
            feed.replay_socket = self._reopen(feed, feed.replay_socket)
            self._send(feed, self.index.check(feed.worker))
        elif not feed.requests and now - max(feed.heard, feed.since) > self._quiet:
            self._send(feed, self.index.check(feed.worker))

    def _reopen(self, feed: _Feed, replay_socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """A fresh socket, so that late answers are not taken for later ones. Without one nothing changes."""
        fresh = self._connect_replay(str(feed.replay_endpoint), feed.server)
        feed.requests.clear()
        self._poller.unregister(replay_socket)
        replay_socket.close(0)
        self._poller.register(fresh, zmq.POLLIN)
        return fresh

    def _connect_replay(self, endpoint: str, server: bytes | None) -> zmq.Socket[bytes]:
        """The way to ask a worker."""
        replay_socket = open_socket(zmq.DEALER)
        try:
            self._set_up(replay_socket, server)
            protocol.attach(replay_socket, endpoint, False)
        except Exception:
            replay_socket.close(0)
            raise
        return replay_socket

    def _set_up(self, socket: zmq.Socket[bytes], server: bytes | None) -> None:
        protocol.bound(socket, self._max_message)
        join(socket, self._keys, server)


def _waiting(socket: zmq.Socket[bytes], most: int) -> Iterator[list[bytes]]:
    """Messages that have come already, without polling before each of them."""
    with suppress(zmq.Again):
        for _ in range(most):
            yield socket.recv_multipart(zmq.DONTWAIT)
