"""Publisher: a cache's events for routers, in a thread of its own. Owns sockets and the queue; knows no encodings.

`tell` is called once per step and never waits: when the queue is full it leaves the events where they are, in the
recorder, which is bounded, counts what it loses and is then published whole. A batch that cannot be made is left out
and counted: the digest in the next one shows routers that they miss something. Whatever else goes wrong in the thread,
it opens its sockets anew and goes on; `failure` says why while it does not.
"""

from __future__ import annotations

import logging
import select
import socket as sockets
import threading
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import zmq

from quire.core.cache import Cache
from quire.core.records.errors import InputError, StateError, say, without_words
from quire.core.records.events import EventBatch, merged
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.publish.replay_server import Batches, ReplayServer
from quire.events.publish.room import Room
from quire.events.wire import protocol
from quire.events.wire.encode import Encoding
from quire.events.wire.names import Names
from quire.events.wire.protocol import NumberedPayload
from quire.net.curve_keys import ServerSockets
from quire.net.limits.zmq_connections import ConnectionLimit

_log = logging.getLogger("quire.events")
BURST = 16  # batches sent before those who ask are looked at
GATHERED = 1_024  # hashes; a batch with so many is sent without joining more of the queue to it
HIGH_WATER = 1_000  # messages a slow subscriber may have waiting before it misses some; it can ask for them
LOCAL = "tcp://127.0.0.1:5557"
PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds until a thread that failed tries again, twice as long each time


class QueuedBatch(NamedTuple):
    """A batch in the queue."""

    batch: EventBatch
    lost: int  # hashes that the recorder had no room for, and that this whole state makes up for


class Publisher:
    """PUB with sequence numbers and, with `replay`, a ROUTER that answers subscribers that missed something."""

    def __init__(
        self, cache: Cache, endpoint: str | None = None, *, replay: str | None = None, topic: str = "",
        encoding: Encoding = "map", bind: bool | None = None, media: Iterable[str] | None = None,
        room: Room | None = None,
    ) -> None:  # fmt: skip
        """Without an endpoint it is bound to port 5557 of this machine, which no other machine can reach."""
        if not isinstance(cache, Cache) or not cache.config.events:
            raise InputError(say("a publisher", "the cache records no events", "use CacheConfig(..., events=True)"))
        if encoding not in ("map", "array"):
            raise InputError(say(f"encoding {encoding!r}", "there is no such one", "use 'map' or 'array'"))
        self._cache = cache
        self._room = room or Room()
        archive = Archive(self._room.batches, self._room.num_bytes)
        self._maker = PayloadMaker(Names.from_config(cache.config, media), encoding, archive, cache.config.rank)
        self._topic = topic.encode()
        self._lock = threading.Lock()
        self._queue: deque[QueuedBatch] = deque()
        self._waiting = 0  # hashes in the queue
        self._overflows = False  # the queue was full when `tell` was called last
        self._whole = True  # what is published next is the state itself: no router knows anything yet
        self.repairs = 0  # times that events did not follow from those before, and the whole state was published
        self._closing = False
        self.unmade = 0  # batches that could not be made, and were left out
        self.restarts = 0  # times that its thread went on with new sockets
        self._failure: Exception | None = None
        if endpoint is None:
            endpoint, bind = LOCAL, True if bind is None else bind
        self._bind = protocol.is_bound(endpoint) if bind is None else bind
        self._open(endpoint, replay)
        self._addresses = _again(endpoint, self.endpoint), replay and _again(replay, str(self.replay_endpoint))
        self._waker, self._wakeup = sockets.socketpair()  # wakes the thread; a queue cannot be polled beside a socket
        self._waker.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="quire-publisher", daemon=True)
        self._thread.start()

    def _open(self, endpoint: str, replay: str | None) -> None:
        self._sockets = ServerSockets(self._room.keys)
        self._pub = self._sockets.socket(zmq.PUB)
        self._replay_server = ReplayServer(self._topic, self._room.peers, self._room.answers, self._sockets)
        self._pub.set_hwm(HIGH_WATER)
        self._pub.set(zmq.MAXMSGSIZE, protocol.MAX_SUBSCRIPTION)
        self._pub.set(zmq.LINGER, 0)
        self._limit: ConnectionLimit | None = None
        self.replay_endpoint: str | None = None
        try:
            self.endpoint = protocol.attach(self._pub, endpoint, self._bind)
            if self._bind and not endpoint.startswith("inproc:"):
                self._limit = ConnectionLimit(self._pub, self._room.subscribers)
            if replay is not None:
                self.replay_endpoint = self._replay_server.open(replay)
        except Exception:
            self._close_sockets(0)
            raise

    def _close_sockets(self, linger: int) -> None:
        if self._limit is not None:
            self._limit.close()
        self._pub.close(linger)
        self._replay_server.close(linger)
        self._sockets.close()

    # -- the engine's side -------------------------------------------------------------------------------------------

    def tell(self, *, whole: bool = False) -> int | None:
        """Queue what the cache has recorded since the last call, or its whole state; never waits.

        Returns the number of records; None when the queue is full or the thread has failed, and nothing was taken.
        """
        with self._lock:
            if self._closing:
                raise StateError(say("tell", "it is closed", "make a new publisher"))
            if self._failure is not None or self._is_full():
                return None
            queued = self._take(whole or self._whole)
            batch = queued.batch
            if not len(batch):
                return 0
            self._whole = False  # the thread sets it again when only the whole state helps
            self._waiting += len(batch.hashes)
            self._queue.append(queued)
        self._wake()
        return len(batch)

    def _is_full(self) -> bool:
        """Whether the queue takes no more; the first time in a row is logged."""
        full = self._waiting > self._room.waiting
        if full and not self._overflows:
            _log.warning("%s: the queue is full, %d hashes wait to be sent", self.endpoint, self._waiting)
        self._overflows = full
        return full

    def _take(self, whole: bool) -> QueuedBatch:
        batch = self._cache.take_events(whole=whole)
        lost = batch.lost
        if lost:
            _log.warning("%s: the recorder had no room for %d hashes; the whole state is sent", self.endpoint, lost)
        if lost and not whole:
            batch = self._cache.take_events(whole=True)
        return QueuedBatch(batch, lost)

    def _wake(self) -> None:
        try:
            self._waker.send(b"!")
        except (BlockingIOError, OSError):
            return  # it will wake anyway, or it has ended

    @property
    def published(self) -> int:
        """Batches sent so far: the number of the next one."""
        return self._maker.next

    @property
    def waiting(self) -> int:
        """Hashes in the queue, not yet sent."""
        return self._waiting

    @property
    def failure(self) -> Exception | None:
        """The error that keeps its thread from publishing; it tries again by itself."""
        return self._failure

    @property
    def stopped(self) -> bool:
        """Whether its thread has ended though it is open: it should not, whatever it meets."""
        return not self._closing and not self._thread.is_alive()

    @property
    def dropped(self) -> int:
        """Events that could not be encoded, and batches that could not be made. Our index misses nothing by the first,
        and repairs the second."""
        return self._maker.dropped + self.unmade

    @property
    def lost(self) -> int:
        """Hashes the recorder had no room for; each time the whole state was published after it."""
        return self._maker.lost

    def close(self) -> None:
        """Send what waits in the queue, then end."""
        with self._lock:
            self._closing = True
        self._wake()
        self._thread.join()
        self._waker.close()
        self._wakeup.close()

    def __repr__(self) -> str:
        state = "failed" if self._failure is not None else "closed" if self._closing else f"{self._waiting} waiting"
        return f"Publisher({self.endpoint}, {self.published} batches published, {state})"

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the thread's side -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = PAUSE
        while True:
            began = self.published
            try:
                self._work()
                return
            except Exception as error:
                self._failure = error
                _log.error("%s: the publisher has failed: %s", self.endpoint, without_words(error))
            finally:
                self._close_sockets(1000 if self._closing else 0)
            pause = PAUSE if self.published > began else min(2 * pause, LONGEST_PAUSE)
            while not self._is_reopened(pause):
                if self._closing:
                    return
                pause = min(2 * pause, LONGEST_PAUSE)

    def _is_reopened(self, pause: float) -> bool:
        """After a pause new sockets, at the same addresses; what routers have missed is published whole."""
        waits = select.poll()
        waits.register(self._wakeup, select.POLLIN)
        if waits.poll(pause * 1000) and self._wakeup.recv(4096) and self._closing:
            return False
        try:
            self._open(*self._addresses)
        except Exception as error:  # another process has the port, for instance
            self._failure = error
            return False
        with self._lock:
            self._failure, self._whole = None, True
        self.restarts += 1
        _log.warning("%s: the publisher goes on", self.endpoint)
        return True

    def _work(self) -> None:
        poller = zmq.Poller()
        monitors = () if self._limit is None else (self._limit.monitor,)
        for readable in (self._wakeup, *monitors, *self._replay_server.sockets):
            poller.register(readable, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(self._pause()))
            if self._wakeup.fileno() in ready:
                self._wakeup.recv(4096)
            self._send_waiting()
            if self._limit is not None and self._limit.monitor in ready:
                self._limit.update()
            if any(readable in ready for readable in self._replay_server.sockets):
                self._replay_server.take()
            self._replay_server.serve(self._answer)
            if self._closing and not self._queue:
                return

    def _pause(self) -> int | None:
        """Milliseconds until there is something to do, unless it is woken; None: for ever."""
        return 0 if self._queue else self._replay_server.pause

    def _send_waiting(self) -> None:
        """Send a part of the queue: an engine may fill it as fast as this sends; requests are answered in between."""
        for _ in range(BURST):
            if not self._queue:
                return
            batches, lost = self._gather()
            before = self._maker.inconsistent
            try:
                made = self._make_payload(batches, lost)
                if made is not None:
                    self._pub.send_multipart([self._topic, protocol.number(made.seq), made.payload])
            finally:
                with self._lock:
                    self._waiting -= sum(len(batch.hashes) for batch in batches)
            with self._lock:
                if self._maker.inconsistent > before and not batches[-1].whole:  # else telling it again would not help
                    self._whole = True
                    self.repairs += 1
                    _log.warning("%s: events do not follow from those before: the whole state is next", self.endpoint)

    def _make_payload(self, batches: list[EventBatch], lost: int) -> NumberedPayload | None:
        """The next payload; None: it cannot be made, and routers see from the next one's digest what they miss."""
        before = self._maker.dropped
        try:
            made = self._maker.make(merged(batches), lost)
        except Exception as error:
            self.unmade += 1
            _log.error("%s: a batch of events is left out: %s", self.endpoint, without_words(error))
            return None
        if not before < self._maker.dropped:
            return made
        level = logging.DEBUG if before else logging.WARNING  # else such names would fill the log
        _log.log(level, "%s: events that cannot be encoded are left out, and counted", self.endpoint)
        return made

    def _gather(self) -> tuple[list[EventBatch], int]:
        """The next batch to send, with those right behind it: a thread that lags behind makes fewer, longer ones."""
        first, lost = self._queue.popleft()
        batches, size = [first], len(first.hashes)
        while self._queue and size < GATHERED and not self._queue[0].batch.whole:
            batches.append(self._queue.popleft().batch)  # of these nothing is lost: a loss is followed by a whole state
            size += len(batches[-1].hashes)
        return batches, lost

    def _answer(self, request: bytes) -> Batches | None:
        """Batches from a number on, the whole state, or its digest; any other request gets nothing."""
        if request == protocol.SNAPSHOT:
            return self._snapshot()
        if request == protocol.MARK:
            return iter([self._maker.mark()])
        return self._maker.archive.since(int.from_bytes(request, "big")) if len(request) == 8 else None

    def _snapshot(self) -> Batches:
        """Made when there is room to send it, and not before."""
        found = self._maker.snapshot()
        if found is not None:
            yield found


def _again(given: str, got: str) -> str:
    """The address that was given, with the port that it got."""
    host, _, port = given.rpartition(":")
    return f"{host}:{got.rpartition(':')[2]}" if port in ("*", "0") and given.startswith("tcp:") else given
