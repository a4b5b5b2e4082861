"""Many connections: however many connect, ask and read nothing, what is kept for them is bounded."""

from __future__ import annotations

import os
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

import quire
from quire.events import Publisher, RecordedMessage, Recording, Room
from quire.events.publish.replay_server import MAX_BYTES
from quire.events.wire.protocol import MAX_SUBSCRIPTION, SNAPSHOT
from quire.net.limits.zmq_connections import LENIENT_FACTOR, ConnectionLimit
from quire.net.zmq_sockets import bound_to

from ..waits import until
from .lives import build, ids, run
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
                made.append(stack.enter_context(sockets.create_connection(address, 120)))
            return len(made) == count

        until(connect, "connected")
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


@pytest.mark.parametrize("way", ["tcp", "tcp6", "ipc", "abstract"])
def test_all_are_disconnected_and_the_endpoint_stays_open(way: str, tmp_path: Path) -> None:
    if way == "tcp6" and not sockets.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    if way == "abstract" and sys.platform != "linux":
        pytest.skip("names without a file are Linux's")
    endpoint = {"tcp": ANY, "tcp6": "tcp://[::1]:*", "ipc": f"ipc://{tmp_path}/x", "abstract": f"ipc://@{tmp_path}"}[
        way
    ]
    with ExitStack() as stack:
        router: zmq.Socket[bytes] = stack.enter_context(zmq.Context.instance().socket(zmq.ROUTER))
        router.setsockopt(zmq.IPV6, way == "tcp6")
        router.linger = 0
        router.bind(endpoint)
        limit = ConnectionLimit(router, 2)
        stack.callback(limit.close)

        def connected() -> sockets.socket:
            if way in ("ipc", "abstract"):
                line = stack.enter_context(sockets.socket(sockets.AF_UNIX))
                line.connect(f"{tmp_path}/x" if way == "ipc" else f"\0{tmp_path}")
                return line
            port = int(bound_to(router).rpartition(":")[2])
            return stack.enter_context(sockets.create_connection(("::1" if way == "tcp6" else "127.0.0.1", port), 120))

        def counted(count: int) -> bool:
            limit.update()
            return len(limit) == count

        few = [connected() for _ in range(2)]
        until(lambda: counted(2), "two are allowed")
        third = connected()
        until(lambda: counted(0), "three are too many")
        until(lambda: all(map(is_cut, [*few, third])), "all are cut off")
        more = [connected() for _ in range(3)]
        until(lambda: counted(3), "who comes back is tolerated")
        assert not any(map(is_cut, more))
        limit.disconnect_all()
        until(lambda: all(map(is_cut, more)) and counted(0), "all of them again")


def test_a_number_that_has_become_another_file_is_left_alone(tmp_path: Path) -> None:
    """ZMQ tells of a connection by its file's number, which may be anybody's by the time it is read."""
    with socket(zmq.ROUTER, ANY, bind=True) as router, ExitStack() as stack:
        limit = ConnectionLimit(router, 8)
        stack.callback(limit.close)
        one, other = map(stack.enter_context, sockets.socketpair())
        listener = stack.enter_context(sockets.create_server(("127.0.0.1", 0)))
        caller = stack.enter_context(sockets.create_connection(listener.getsockname(), 120))
        called, _ = listener.accept()
        stack.enter_context(called)
        file = stack.enter_context(open(tmp_path / "file", "w+b", buffering=0))
        closed = os.dup(file.fileno())
        os.close(closed)
        before = num_files()
        limit._peers |= {one.fileno(), called.fileno(), listener.fileno(), file.fileno(), closed}
        limit.disconnect_all()
        assert num_files() == before and len(limit) == 0
        one.sendall(b"a")
        called.sendall(b"b")
        assert other.recv(1) == b"a" and caller.recv(1) == b"b" and file.write(b"c") == 1
        stack.enter_context(sockets.create_connection(listener.getsockname(), 120))


HALF_A_MESSAGE = """
import random, zmq
from zmq.utils.monitor import parse_monitor_message
from quire.net.limits.zmq_connections import ConnectionLimit

context = zmq.Context()
for _ in range(12):
    pub = context.socket(zmq.XPUB)  # a PUB that hears of subscriptions, here of equal ones too
    pub.setsockopt(zmq.XPUB_VERBOSE, 1)
    pub.setsockopt(zmq.SNDBUF, 4096)
    pub.linger = 0
    pub.bind("tcp://127.0.0.1:*")
    limit = ConnectionLimit(pub, 64)
    slow = [context.socket(zmq.SUB) for _ in range(8)]
    for sub in slow:
        sub.rcvhwm = 1
        sub.setsockopt(zmq.RCVBUF, 4096)
        sub.connect(pub.last_endpoint)
        sub.subscribe(b"")
    for _ in slow:
        assert pub.poll(20000) and pub.recv() == b"\\x01"  # they have subscribed
    limit.update()
    assert len(limit) == len(slow)
    for _ in range(900):
        pub.send_multipart([b"t", b"12345678", bytes(random.randrange(1, 3000))])
    for sub in slow:
        assert sub.poll(20000)  # ZMQ fills what the kernel takes, and stops somewhere in a message
    limit.disconnect_all()
    for sub in slow:
        sub.close(0)
    gone = 0
    while gone < len(slow):
        assert limit.monitor.poll(20000)
        gone += parse_monitor_message(limit.monitor.recv_multipart())["event"] == zmq.EVENT_DISCONNECTED
    limit.close()
    pub.close(0)
context.term()
print("alive")
"""


def test_who_hangs_up_with_half_a_message_on_its_way_ends_nobody() -> None:
    """ZMQ aborts the process, one time in a hundred, when that happens while its endpoint is unbound."""
    package = Path(quire.__file__).parent
    assert not [path for path in package.rglob("*.py") if ".unbind(" in path.read_text()]
    ended = subprocess.run([sys.executable, "-c", HALF_A_MESSAGE], capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr


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
