"""Many at the desk: however many connect, ask and read nothing, what is kept for them is bounded."""

from __future__ import annotations

import os
import socket as sockets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest
import zmq

from quire.events import Publisher, Room
from quire.events.publish.replay_server import MAX_BYTES
from quire.events.wire.connection_limit import SURGE, Crowd
from quire.events.wire.protocol import SNAPSHOT, bound_to

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
    """Bare connections to the desk, which say nothing."""
    address = address_of(str(publisher.replay_endpoint))
    with ExitStack() as stack:
        made: list[sockets.socket] = []

        def connect() -> bool:
            with suppress(ConnectionRefusedError, ConnectionResetError):  # while the endpoint is closed, or closes
                made.append(stack.enter_context(sockets.create_connection(address, 20)))
            return len(made) == count

        until(connect, "connected", pause=0)
        yield made


def num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def are_few_open(most: int) -> bool:
    return num_files() < most


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files")
def test_a_crowd_is_sent_away_and_who_lives_comes_back() -> None:
    cache = build(64)
    with published(cache, room=Room(peers=PEERS)) as publisher, heard(publisher) as (index, _):
        publisher.tell()
        until(lambda: exact(index, publisher), "exact")
        for count in (PEERS + 20, SURGE * PEERS + 20, SURGE * PEERS + 20):
            most = num_files() + count + count // 2
            with lines(publisher, count) as crowd:
                until(partial(is_cut, crowd[0]), "the first of them is cut off")
                until(partial(are_few_open, most), "most files of the others are closed")
        run(cache, 1, ids(range(9)))
        publisher.tell(whole=True)
        until(lambda: exact(index, publisher), "the index has come back")
        until(lambda: publisher._desk._crowd is not None and len(publisher._desk._crowd) < 8, "all others have gone")
        assert len(fetch(publisher, SNAPSHOT)) == 1 and index.find(ids(range(9)))["w"].tokens == 8


def test_few_are_left_alone() -> None:
    with published(build(), room=Room(peers=PEERS)) as publisher, lines(publisher, PEERS - 2) as crowd:
        until(lambda: publisher._desk._crowd is not None and len(publisher._desk._crowd) == len(crowd), "all counted")
        assert not any(map(is_cut, crowd)) and fetch(publisher, SNAPSHOT) == []


def test_more_routers_than_there_is_room_for_are_not_sent_away_over_and_over() -> None:
    """Each time they would lose what they had asked for; once is enough to be rid of the dead."""
    cache = build(64)
    with published(cache, room=Room(peers=4)) as publisher, heard_by_hand() as (index, follower):
        for worker in range(6):
            follower.follow(worker, publisher.endpoint, publisher.replay_endpoint)
        run(cache, 1, ids(range(9)))
        publisher.tell()
        crowd = publisher._desk._crowd
        until(lambda: crowd is not None and len(crowd) == 6, "all six are connected")
        until(lambda: all(exact(index, publisher, worker) for worker in range(6)), "all are exact")
        before = [index.report(worker).checks for worker in range(6)]
        until(lambda: min(index.report(w).checks - before[w] for w in range(6)) >= 3, "each is answered again")
        assert crowd is not None and len(crowd) == 6


def test_an_endpoint_that_somebody_took_meanwhile_is_had_again_later() -> None:
    with socket(zmq.ROUTER, ANY, bind=True) as router, sockets.socket() as other, ExitStack() as stack:
        crowd, address = Crowd(router, 1), address_of(bound_to(router))
        stack.callback(crowd.close)
        peers = [stack.enter_context(sockets.create_connection(address, 20)) for _ in range(2)]

        def looked(is_open: bool) -> bool:
            crowd.look()
            return crowd.is_open is is_open

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
        assert len(crowd) == 0


@pytest.mark.parametrize(("size", "cut"), [(MAX_BYTES, False), (MAX_BYTES + 1, True)])
def test_who_asks_at_great_length_is_cut_off(size: int, cut: bool) -> None:
    with published(build()) as publisher, socket(zmq.DEALER, str(publisher.replay_endpoint)) as desk:
        news = desk.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        desk.send_multipart([b"", b"x" * size])

        def answered() -> bool:
            desk.send_multipart([b"", SNAPSHOT])
            return bool(desk.poll(50))

        until(answered, "answered: at once, or when it is connected again")
        assert bool(news.poll(0)) is cut
        desk.disable_monitor()
        news.close(0)


def test_a_publisher_gives_all_its_files_back() -> None:
    with published(build()):
        pass  # whatever the process opens only once
    before = num_files()
    for _ in range(5):
        with published(build()) as publisher, lines(publisher, 4):
            publisher.tell()
    until(lambda: are_few_open(before + 2), "as many files as before")
