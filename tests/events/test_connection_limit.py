"""Many connections: however many connect, ask and read nothing, what is kept for them is bounded."""

from __future__ import annotations

import os
import shutil
import socket as sockets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from quire.events import Publisher, RecordedMessage, Recording, Room
from quire.events.publish.replay_server import MAX_BYTES
from quire.events.wire.connection_limit import LENIENT_FACTOR, ConnectionLimit
from quire.events.wire.protocol import MAX_SUBSCRIPTION, SNAPSHOT, bound_to

from .lives import build, ids, run, until
from .test_publisher import ANY, exact, fetch, heard, heard_by_hand, published, socket

PEERS = 32  # that a publisher has room for here


def is_cut(line: sockets.socket) -> bool:
    """The other side has hung up; what it said before is passed over."""
    line.settimeout(0.001)
    try:
        while line.recv(4096):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def address_of(endpoint: str) -> tuple[str, int]:
    host, port = endpoint.removeprefix("tcp://").split(":")
    return host, int(port)


@contextmanager
def lines(publisher: Publisher, count: int) -> Iterator[list[sockets.socket]]:
    """Bare connections to the replay server, which say nothing."""
    address = address_of(str(publisher.replay_endpoint))
    with ExitStack() as stack:
        made: list[sockets.socket] = []

        def connect() -> bool:
            with suppress(ConnectionRefusedError, ConnectionResetError):  # while the endpoint is closed, or closes
                made.append(stack.enter_context(sockets.create_connection(address, 20)))
            return len(made) == count

        until(connect, "connected", pause=0)
        yield made


def connections(publisher: Publisher) -> ConnectionLimit:
    """Those of its replay server."""
    assert publisher._replay_server._limit is not None
    return publisher._replay_server._limit


def num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def are_few_open(most: int) -> bool:
    return num_files() < most


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files")
def test_too_many_are_disconnected_and_who_lives_comes_back() -> None:
    cache = build(64)
    with published(cache, room=Room(peers=PEERS)) as publisher, heard(publisher) as (index, _):
        publisher.tell()
        until(lambda: exact(index, publisher), "exact")
        for count in (PEERS + 20, LENIENT_FACTOR * PEERS + 20, LENIENT_FACTOR * PEERS + 20):
            most = num_files() + count + count // 2
            with lines(publisher, count) as many:
                until(partial(is_cut, many[0]), "the first of them is cut off")
                until(partial(are_few_open, most), "most files of the others are closed")
        run(cache, 1, ids(range(9)))
        publisher.tell(whole=True)
        until(lambda: exact(index, publisher), "the index has come back")
        until(lambda: len(connections(publisher)) < 8, "all others have gone")
        assert len(fetch(publisher, SNAPSHOT)) == 1 and index.find(ids(range(9)))["w"].tokens == 8


def test_few_are_left_alone() -> None:
    with published(build(), room=Room(peers=PEERS)) as publisher, lines(publisher, PEERS - 2) as many:
        until(lambda: len(connections(publisher)) == len(many), "all counted")
        assert not any(map(is_cut, many)) and fetch(publisher, SNAPSHOT) == []


def test_more_routers_than_there_is_room_for_are_not_disconnected_over_and_over() -> None:
    """Each time they would lose what they had asked for; once is enough to be rid of the dead."""
    cache = build(64)
    with published(cache, room=Room(peers=4)) as publisher, heard_by_hand() as (index, follower):
        for worker in range(6):
            follower.follow(worker, publisher.endpoint, publisher.replay_endpoint)
        run(cache, 1, ids(range(9)))
        publisher.tell()
        limit = connections(publisher)
        until(lambda: len(limit) == 6, "all six are connected")
        until(lambda: all(exact(index, publisher, worker) for worker in range(6)), "all are exact")
        before = [index.report(worker).checks for worker in range(6)]
        until(lambda: min(index.report(w).checks - before[w] for w in range(6)) >= 3, "each is answered again")
        assert len(limit) == 6


def test_an_endpoint_that_somebody_took_meanwhile_is_had_again_later() -> None:
    with socket(zmq.ROUTER, ANY, bind=True) as router, sockets.socket() as other, ExitStack() as stack:
        limit, address = ConnectionLimit(router, 1), address_of(bound_to(router))
        stack.callback(limit.close)
        peers = [stack.enter_context(sockets.create_connection(address, 20)) for _ in range(2)]

        def looked(is_open: bool) -> bool:
            limit.update()
            return limit.is_open is is_open

        def taken() -> bool:
            with suppress(OSError):
                other.bind(address)
                other.listen()
                return True
            return False

        until(lambda: looked(False), "they are too many")
        other.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        until(taken, "somebody else has it")
        until(lambda: is_cut(peers[0]) and is_cut(peers[1]), "both are cut off")
        for _ in range(5):
            assert looked(False)
        other.close()
        until(lambda: looked(True), "had again")
        assert len(limit) == 0


def test_an_endpoint_that_cannot_be_bound_for_another_reason_is_had_again_later(tmp_path: Path) -> None:
    """Its folder is gone for a while: that is not EADDRINUSE, and no reason to end either."""
    folder = tmp_path / "run"
    folder.mkdir()
    with socket(zmq.ROUTER, f"ipc://{folder}/replay", bind=True) as router, ExitStack() as stack:
        limit = ConnectionLimit(router, 1)
        stack.callback(limit.close)

        def updated(is_open: bool) -> bool:
            limit.update()
            return limit.is_open is is_open

        limit.disconnect_all()
        assert limit.monitor.poll(20_000)  # it is closed
        shutil.rmtree(folder)
        until(lambda: not updated(True) and limit._failed, "it cannot be bound")
        for _ in range(5):
            assert updated(False)
        folder.mkdir()
        until(lambda: updated(True), "had again")
        with socket(zmq.DEALER, f"ipc://{folder}/replay"):
            until(lambda: updated(True) and len(limit) == 1, "peers can come")


@pytest.mark.parametrize(("size", "cut"), [(MAX_SUBSCRIPTION // 2, False), (2 * MAX_SUBSCRIPTION, True)])
@pytest.mark.parametrize("way", ["publisher", "recording"])
def test_who_subscribes_at_great_length_is_disconnected(way: str, size: int, cut: bool, tmp_path: Path) -> None:
    """A topic is kept as long as its subscriber is there: nobody may fill a publisher's memory with one."""
    with ExitStack() as stack:
        endpoint, publisher = f"ipc://{tmp_path}/stream", None
        if way == "publisher":
            publisher = stack.enter_context(Publisher(build(), endpoint, topic="x" * size))
        else:
            recording = Recording(tmp_path / "stream.qev")
            recording.write(RecordedMessage(1e6 * seq, b"x" * size, seq, b"") for seq in range(2))
            code = f"from quire.events import replay; replay({str(recording.path)!r}, {endpoint!r})"
            player = stack.enter_context(subprocess.Popen([sys.executable, "-c", code]))
            stack.callback(player.kill)
        subscriber: zmq.Socket[bytes] = stack.enter_context(zmq.Context.instance().socket(zmq.SUB))
        news = subscriber.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        stack.callback(news.close, 0)
        stack.callback(subscriber.disable_monitor)
        subscriber.linger = 0
        subscriber.subscribe(b"x" * size)
        subscriber.connect(endpoint)

        def happened() -> int:
            assert news.poll(20_000)
            return int(parse_monitor_message(news.recv_multipart())["event"])

        assert happened() == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if cut:
            assert happened() == zmq.EVENT_DISCONNECTED
        else:
            until(lambda: (publisher is None or publisher.tell(whole=True)) and subscriber.poll(10), "it is sent")
            assert not news.poll(0)


@pytest.mark.parametrize(("size", "cut"), [(MAX_BYTES, False), (MAX_BYTES + 1, True)])
def test_who_asks_at_great_length_is_cut_off(size: int, cut: bool) -> None:
    with published(build()) as publisher, socket(zmq.DEALER, str(publisher.replay_endpoint)) as dealer:
        news = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        dealer.send_multipart([b"", b"x" * size])

        def answered() -> bool:
            dealer.send_multipart([b"", SNAPSHOT])
            return bool(dealer.poll(50))

        until(answered, "answered: at once, or when it is connected again")
        assert bool(news.poll(0)) is cut
        dealer.disable_monitor()
        news.close(0)


def test_a_publisher_gives_all_its_files_back() -> None:
    with published(build()):
        pass  # whatever the process opens only once
    before = num_files()
    for _ in range(5):
        with published(build()) as publisher, lines(publisher, 4):
            publisher.tell()
    until(lambda: are_few_open(before + 2), "as many files as before")
