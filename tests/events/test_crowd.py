"""Many at the desk: however many connect, ask and read nothing, what is kept for them is bounded."""

from __future__ import annotations

import os
import socket as sockets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest
import zmq

from quire.events import Publisher
from quire.events.desk import MAX_BYTES, MAX_PEERS
from quire.events.wire import SNAPSHOT

from .lives import build, ids, run, until
from .test_publisher import exact, fetch, heard, published, socket


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


@contextmanager
def lines(publisher: Publisher, count: int) -> Iterator[list[sockets.socket]]:
    """Bare connections to the desk, which say nothing."""
    host, port = str(publisher.replay_endpoint).removeprefix("tcp://").split(":")
    with ExitStack() as stack:
        made: list[sockets.socket] = []

        def connect() -> bool:
            with suppress(ConnectionRefusedError):  # while the endpoint is closed
                made.append(stack.enter_context(sockets.create_connection((host, int(port)), 20)))
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
    with published(cache) as publisher, heard(publisher) as (index, _):
        publisher.tell()
        until(lambda: exact(index, publisher), "exact")
        for _ in range(3):
            most = num_files() + MAX_PEERS + 20 + MAX_PEERS // 2
            with lines(publisher, MAX_PEERS + 20) as crowd:
                until(partial(is_cut, crowd[0]), "the first of them is cut off")
                until(partial(are_few_open, most), "most files of the others are closed")
        run(cache, 1, ids(range(9)))
        publisher.tell(whole=True)
        until(lambda: exact(index, publisher), "the index has come back")
        until(lambda: publisher._desk._crowd is not None and len(publisher._desk._crowd) < 8, "all others have gone")
        assert len(fetch(publisher, SNAPSHOT)) == 1 and index.find(ids(range(9)))["w"].tokens == 8


def test_few_are_left_alone() -> None:
    with published(build()) as publisher, lines(publisher, MAX_PEERS - 20) as crowd:
        until(lambda: publisher._desk._crowd is not None and len(publisher._desk._crowd) == len(crowd), "all counted")
        assert not any(map(is_cut, crowd)) and fetch(publisher, SNAPSHOT) == []


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
